"""Writing queries with a trained writer: sampling and beam search, many passages at a time.

A step computes one new piece for every row from kept keys and values; a passage's own are computed once for all its
queries. The numbers a query is drawn with depend on the seed and its passage's key alone, so the same passage gets
the same queries whatever it is batched with.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankwell.core.arrays import positions
from rankwell.core.errors import RankwellError
from rankwell.core.types import Rows
from rankwell.inputs.batching import Sequences, take_sequences
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.reader import Reader
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.inputs.windows import Windows
from rankwell.models.compute import CPU_BUDGET, Compute
from rankwell.models.doc2query.inputs import passage_grid
from rankwell.models.doc2query.writer import Decoder, Memory, Passages, Past, QueryWriter
from rankwell.models.kernels.top_k import top_k

MOST_LANES = 8
MOST_ROWS = 20_480
"""Queries written at once on a GPU: their logits over the vocabulary are what takes memory."""
_LOOSE = re.compile(r" ([?.,!:;%)\]])|([(\[$#]) | (['’/-]) ")


@dataclass(frozen=True)
class Writing:
    """How queries are written: ``n`` a passage, drawn from the ``top_k`` likeliest pieces, or found by beam search."""

    n: int = 5
    method: Literal["sample", "beam"] = "sample"
    top_k: int = 10
    temperature: float = 1.0
    beams: int = 5
    """Width of the beam; at least ``n``."""
    length_penalty: float = 1.0
    """A beam's log probability is divided by its length to this power."""
    max_query: int = 32
    """Most pieces of a query, [SEP] included."""
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("n", "top_k", "beams", "max_query"):
            if getattr(self, name) < 1:
                raise RankwellError(f"{name} is {getattr(self, name)}, expected 1 or more")
        if self.temperature <= 0:
            raise RankwellError(f"temperature is {self.temperature:g}, expected a number above 0")
        if self.method not in ("sample", "beam"):
            raise RankwellError(f"queries are written by sample or beam, not by {self.method}")


@dataclass(frozen=True)
class Signs:
    """The tokens a query begins and ends with, and those it never holds."""

    begin: int
    end: int
    banned: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Signs:
        """A tokenizer's own."""
        special = tokenizer.special
        banned = {tokenizer.token_id(name) for name in ("[PAD]", "[CLS]", "[UNK]", "[MASK]")} | {tokenizer.pad}
        banned |= {special.cls}
        if special.first_marker >= 0:
            banned |= set(range(special.first_marker, len(tokenizer)))
        return cls(special.cls, special.sep, tuple(sorted(banned - {-1, special.sep})))


def sample(decoder: Decoder, passages: Passages, signs: Signs, options: Writing, uniforms: Tensor) -> Tensor:
    """Draw queries, (B, n, steps): pieces, then ``signs.end`` to the end.

    ``uniforms`` (B, n, steps) are numbers in [0, 1), one for each piece to be drawn.
    """
    batch, n, steps = uniforms.shape
    running = _Rows(decoder, passages, signs, n, steps)
    written = torch.full((batch * n, steps), signs.end, dtype=torch.int64, device=uniforms.device)
    numbers = uniforms.reshape(batch * n, steps)
    alive = torch.arange(batch * n, device=uniforms.device)  # the rows that are still computed
    done = torch.zeros(batch * n, dtype=torch.bool, device=uniforms.device)
    for step in range(steps):
        best, ids = top_k(running.logits(step), options.top_k)
        shares = torch.softmax(best / options.temperature, dim=1).cumsum(dim=1)
        picked = (shares <= numbers[alive, step, None] * shares[:, -1:]).sum(dim=1).clamp(max=ids.shape[1] - 1)
        drawn = ids.gather(1, picked[:, None])[:, 0].masked_fill(done, signs.end)
        written[alive, step] = drawn
        done = drawn == signs.end
        running.tokens = drawn[:, None]
        left = (~done).view(-1, n).any(dim=1)
        count = int(left.sum())
        if not count:
            break
        # Most queries are short: once a quarter of the passages are through, the others go on alone.
        if 4 * count <= 3 * len(left):
            passages_left = left.nonzero()[:, 0]
            rows = (passages_left[:, None] * n + torch.arange(n, device=left.device)).flatten()
            running.keep(passages_left, rows)
            alive, done = alive[rows], done[rows]
    return written.view(batch, n, steps)


def beam_search(decoder: Decoder, passages: Passages, signs: Signs, options: Writing) -> tuple[Tensor, Tensor]:
    """The likeliest queries found, best first, (B, n, steps), and their log probabilities over length ** penalty.

    A query that has ended stays in the beam with what it has.
    """
    batch, steps = passages.states.shape[0], options.max_query
    width, device = max(options.beams, options.n), passages.states.device
    running = _Rows(decoder, passages, signs, width, steps)
    written = torch.full((batch * width, steps), signs.end, dtype=torch.int64, device=device)
    scores = torch.full((batch, width), -torch.inf, device=device)
    scores[:, 0] = 0.0  # all beams of a passage begin alike, so that one of them must do at first
    lengths = torch.zeros(batch * width, device=device)
    done = torch.zeros(batch * width, dtype=torch.bool, device=device)
    first_rows = torch.arange(batch, device=device)[:, None] * width
    for step in range(steps):
        log_p = torch.log_softmax(running.logits(step).float(), dim=1)
        log_p[done] = -torch.inf
        log_p[done, signs.end] = 0.0
        words = log_p.shape[1]
        scores, places = (scores[:, :, None] + log_p.view(batch, width, words)).view(batch, -1).topk(width)
        rows = (first_rows + places // words).flatten()
        tokens = (places % words).flatten()
        written, done, lengths = written[rows], done[rows], lengths[rows]
        written[:, step] = tokens
        lengths += ~done
        done |= tokens == signs.end
        if bool(done.all()):
            break
        running.reorder(rows)
        running.tokens = tokens[:, None]
    ranked = scores / lengths.view(batch, width) ** options.length_penalty
    best, order = ranked.sort(dim=1, descending=True, stable=True)
    return written[(first_rows + order).flatten()].view(batch, width, steps)[:, : options.n], best[:, : options.n]


class _Rows:
    """The rows of a batch while their queries are written: the newest piece of each, and all that is kept."""

    def __init__(self, decoder: Decoder, passages: Passages, signs: Signs, per_passage: int, steps: int):
        rows, device = passages.states.shape[0] * per_passage, passages.states.device
        self._decoder, self._signs = decoder, signs
        self._memories: list[Memory] = decoder.remember(passages)
        self._past: list[Past] = decoder.start_past(rows, steps)
        self._banned = torch.tensor(signs.banned, dtype=torch.int64, device=device)
        self.tokens = torch.full((rows, 1), signs.begin, dtype=torch.int64, device=device)

    def logits(self, step: int) -> Tensor:
        """The logits of each row's next piece (R, vocabulary); never that of a banned one, nor of an empty query."""
        states = self._decoder.states(self.tokens, self._memories, self._past)
        logits = self._decoder.logits(states[:, 0])
        logits[:, self._banned] = -torch.inf
        if step == 0:
            logits[:, self._signs.end] = -torch.inf
        return logits

    def reorder(self, rows: Tensor) -> None:
        """Each row goes on from another of its passage."""
        for past in self._past:
            past.take(rows)

    def keep(self, passages: Tensor, rows: Tensor) -> None:
        """Go on with these passages, whose rows these are."""
        self._memories = [memory.take(passages) for memory in self._memories]
        self.reorder(rows)
        self.tokens = self.tokens[rows]


class Writer:
    """A query writer ready to use.

    >>> model, tokenizer, config = load_writer("writer")                          # doctest: +SKIP
    >>> Writer(model, tokenizer, config.max_length, Writing(n=3)).write(pieces, docids)    # doctest: +SKIP
    """

    def __init__(
        self,
        model: QueryWriter,
        tokenizer: Tokenizer,
        max_length: int,
        options: Writing,
        *,
        device: str | None = None,
        budget: int | None = None,
    ):
        # A step decodes one token of each row, so a batch has more rows than that of a model that only reads. The keys
        # and values of its passages take memory in every lane.
        self._compute = Compute(
            model,
            model.encoder,
            device=device,
            budget=budget,
            cpu_budget=4 * CPU_BUDGET,
            lanes=min(MOST_LANES, torch.get_num_threads()),
        )
        self.device = self._compute.device
        self.model, self.tokenizer, self.max_length, self.options = model, tokenizer, max_length, options
        self._reader = Reader.of_texts(tokenizer, max_length, windows=Windows())
        self._signs = Signs.of(tokenizer)

    def write(self, passages: Pieces, keys: Sequence[str]) -> list[list[str]]:
        """The queries of each passage; ``keys`` (their ids, say) name them for the random numbers.

        A passage longer than the writer reads is read in windows, which share its ``n`` queries, one each at least.
        """
        laid = self._reader.lay_out({"query": passages})
        owners = laid.owners
        counts = np.bincount(owners, minlength=len(passages))
        number = positions(counts)
        shares = -(-self.options.n // counts)[owners]
        written: list[list[str]] = [[] for _ in owners]
        for share in np.unique(shares).tolist():
            rows = np.flatnonzero(shares == share)
            names = [f"{keys[owners[row]]}\0{number[row]}" for row in rows]
            for row, queries in zip(
                rows, self._write_alike(take_sequences(laid.sequences, rows), names, share), strict=True
            ):
                written[row] = queries
        ends = np.cumsum(counts)
        return [
            _in_turns(written[end - count : end])[: max(self.options.n, count)]
            for count, end in zip(counts.tolist(), ends.tolist(), strict=True)
        ]

    def _write_alike(self, sequences: Sequences, names: Sequence[str], n: int) -> list[list[str]]:
        """``n`` queries for each sequence; sequences of similar length are written together."""
        tokens = np.empty((len(sequences), n, self.options.max_query), np.int64)

        def write(rows: Rows) -> None:
            tokens[rows] = self._write_batch(take_sequences(sequences, rows), [names[row] for row in rows], n)

        self._compute.each_batch(sequences.lengths(), write, max_rows=MOST_ROWS // n)
        return [[self._text(query) for query in queries] for queries in tokens]

    def _write_batch(self, sequences: Sequences, names: Sequence[str], n: int) -> NDArray[np.int64]:
        slots, real = (torch.from_numpy(part).to(self.device) for part in passage_grid(sequences.ends))
        passages = self.model.read(*self._compute.place(sequences), slots, real)
        options = self.options
        if options.method == "beam":
            tokens, _ = beam_search(self.model.decoder, passages, self._signs, options)
            tokens = tokens[:, :n]
        else:
            drawn = np.stack([_uniforms(options.seed, name, n, options.max_query) for name in names])
            uniforms = torch.from_numpy(drawn).to(self.device)
            tokens = sample(self.model.decoder, passages, self._signs, options, uniforms)
        written: NDArray[np.int64] = tokens.cpu().numpy()
        return written

    def _text(self, ids: NDArray[np.int64]) -> str:
        ended = np.flatnonzero(ids == self._signs.end)
        return join_pieces(self.tokenizer.token_names(ids[: ended[0]] if len(ended) else ids))


def join_pieces(tokens: Sequence[str]) -> str:
    """The text of word pieces.

    >>> join_pieces(["what", "is", "bog", "##ue", "?"])
    'what is bogue?'
    """
    text = " ".join(tokens).replace(" ##", "").removeprefix("##")
    return _LOOSE.sub(lambda match: match[1] or match[2] or match[3], text)


def _uniforms(seed: int, name: str, n: int, steps: int) -> NDArray[np.float32]:
    key = hashlib.blake2b(f"{seed}\0{name}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key)))
    return generator.random((n, steps), np.float32)


def _in_turns(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first of each row, the second of each, …"""
    longest = max(map(len, rows), default=0)
    return [row[place] for place in range(longest) for row in rows if place < len(row)]
