"""Writing queries with a trained writer: sampling, many passages at a time.

A step computes one new piece for every row from cached keys and values; those of a passage are computed once for all
its queries. The random numbers of a query depend on the seed and the key of its passage alone, so a passage gets the
same queries in every batch.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankwell.core.arrays import Rows, positions
from rankwell.core.errors import RankwellError
from rankwell.inputs.batching import Sequences, take_sequences
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.reader import Reader
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.inputs.windows import Windows
from rankwell.models.compute import CPU_BUDGET, Compute
from rankwell.papers.doc2query.writer import Decoder, KeyValueCache, Memory, QueryWriter, passage_grid
from rankwell.rank.vector_search import top_k

MOST_LANES = 8
MOST_ROWS = 20_480
"""Queries written at once on a GPU; the logits over the vocabulary take most of the memory."""
_LOOSE = re.compile(r" ([?.,!:;%)\]])|([(\[$#]) | (['’/-]) ")


@dataclass(frozen=True)
class WritingOptions:
    """How queries are written: ``n`` per passage, sampled from the ``top_k`` likeliest pieces."""

    n: int = 5
    top_k: int = 10
    temperature: float = 1.0
    max_query: int = 32
    """Maximum length of a query in pieces, [SEP] included."""
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("n", "top_k", "max_query"):
            if getattr(self, name) < 1:
                raise RankwellError(f"{name} is {getattr(self, name)}, expected 1 or more")
        if self.temperature <= 0:
            raise RankwellError(f"temperature is {self.temperature:g}, expected a number above 0")


@dataclass(frozen=True)
class DecodingTokens:
    """The tokens that a query begins and ends with, and those that it never contains."""

    begin: int
    end: int
    banned: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> DecodingTokens:
        """Those of a tokenizer."""
        special = tokenizer.special
        banned = {tokenizer.token_id(name) for name in ("[PAD]", "[CLS]", "[UNK]", "[MASK]")}
        banned |= {tokenizer.pad, special.cls}
        if special.first_marker >= 0:
            banned |= set(range(special.first_marker, len(tokenizer)))
        return cls(special.cls, special.sep, tuple(sorted(banned - {-1, special.sep})))


def sample(
    decoder: Decoder, memories: list[Memory], special: DecodingTokens, options: WritingOptions, uniforms: Tensor
) -> Tensor:
    """Sample queries, (B, n, steps): pieces, then ``special.end`` up to the last step.

    ``uniforms`` (B, n, steps) are random numbers in [0, 1), one for each piece.
    """
    batch, n, steps = uniforms.shape
    running = _Rows(decoder, memories, special, n, steps)
    written = torch.full((batch * n, steps), special.end, dtype=torch.int64, device=uniforms.device)
    numbers = uniforms.reshape(batch * n, steps)
    alive = torch.arange(batch * n, device=uniforms.device)  # the rows that are still computed
    done = torch.zeros(batch * n, dtype=torch.bool, device=uniforms.device)
    for step in range(steps):
        best, ids = top_k(running.logits(step), options.top_k)
        shares = torch.softmax(best / options.temperature, dim=1).cumsum(dim=1)
        picked = (shares <= numbers[alive, step, None] * shares[:, -1:]).sum(dim=1).clamp(max=ids.shape[1] - 1)
        drawn = ids.gather(1, picked[:, None])[:, 0].masked_fill(done, special.end)
        written[alive, step] = drawn
        done = drawn == special.end
        running.tokens = drawn[:, None]
        left = (~done).view(-1, n).any(dim=1)
        count = int(left.sum())
        if not count:
            break
        # Most queries are short: once a quarter of the passages are done, they leave the batch.
        if 4 * count <= 3 * len(left):
            passages_left = left.nonzero()[:, 0]
            rows = (passages_left[:, None] * n + torch.arange(n, device=left.device)).flatten()
            running.keep(passages_left, rows)
            alive, done = alive[rows], done[rows]
    return written.view(batch, n, steps)


class _Rows:
    """The rows of a batch while their queries are written: the newest piece of each, and the cached states."""

    def __init__(self, decoder: Decoder, memories: list[Memory], special: DecodingTokens, per_passage: int, steps: int):
        rows, device = len(memories[0].keys) * per_passage, memories[0].keys.device
        self._decoder, self._special = decoder, special
        self._memories = memories
        self._past: list[KeyValueCache] = decoder.start_past(rows, steps)
        self._banned = torch.tensor(special.banned, dtype=torch.int64, device=device)
        self.tokens = torch.full((rows, 1), special.begin, dtype=torch.int64, device=device)

    def logits(self, step: int) -> Tensor:
        """The logits of each row's next piece (R, vocabulary). Banned tokens and empty queries are ruled out."""
        states = self._decoder.states(self.tokens, self._memories, self._past)
        logits = self._decoder.logits(states[:, 0])
        logits[:, self._banned] = -torch.inf
        if step == 0:
            logits[:, self._special.end] = -torch.inf
        return logits

    def keep(self, passages: Tensor, rows: Tensor) -> None:
        """Continue with these passages only; ``rows`` are their rows."""
        self._memories = [memory.take(passages) for memory in self._memories]
        for past in self._past:
            past.take(rows)
        self.tokens = self.tokens[rows]


class Writer:
    """A query writer ready to use.

    >>> model, tokenizer, config = load_writer("writer")                          # doctest: +SKIP
    >>> Writer(model, tokenizer, config.max_length, WritingOptions(n=3)).write(pieces, docids)    # doctest: +SKIP
    """

    def __init__(
        self,
        model: QueryWriter,
        tokenizer: Tokenizer,
        max_length: int,
        options: WritingOptions,
        *,
        device: str | None = None,
        budget: int | None = None,
    ):
        # A step decodes one token per row, so batches are larger than for a model that only reads. There are fewer
        # lanes because the keys and values of the passages take memory in each of them.
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
        self._special = DecodingTokens.of(tokenizer)

    def write(self, passages: Pieces, keys: Sequence[str]) -> list[list[str]]:
        """The queries of each passage. ``keys`` (such as docids) seed the random numbers of the passages.

        Long passages are read in windows, which share the ``n`` queries; each window has at least one.
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
            batch = self._write_alike(take_sequences(laid.sequences, rows), names, share)
            for row, queries in zip(rows, batch, strict=True):
                written[row] = queries
        ends = np.cumsum(counts)
        windows = [written[end - count : end] for count, end in zip(counts.tolist(), ends.tolist(), strict=True)]
        # The first query of each window, then the second of each, and so on.
        turns = [[query for turn in zip_longest(*rows) for query in turn if query is not None] for rows in windows]
        return [queries[: max(self.options.n, len(rows))] for queries, rows in zip(turns, windows, strict=True)]

    def _write_alike(self, sequences: Sequences, names: Sequence[str], n: int) -> list[list[str]]:
        """``n`` queries for each sequence; sequences of similar length are batched."""
        tokens = np.empty((len(sequences), n, self.options.max_query), np.int64)

        def write(rows: Rows) -> None:
            tokens[rows] = self._write_batch(take_sequences(sequences, rows), [names[row] for row in rows], n)

        self._compute.each_batch(sequences.lengths(), write, max_rows=MOST_ROWS // n)
        return [[self._text(query) for query in queries] for queries in tokens]

    def _write_batch(self, sequences: Sequences, names: Sequence[str], n: int) -> NDArray[np.int64]:
        slots, real = (torch.from_numpy(part).to(self.device) for part in passage_grid(sequences.ends))
        memories = self.model.read(*self._compute.place(sequences), slots, real)
        options = self.options
        drawn = np.stack([_uniforms(options.seed, name, n, options.max_query) for name in names])
        uniforms = torch.from_numpy(drawn).to(self.device)
        tokens = sample(self.model.decoder, memories, self._special, options, uniforms)
        written: NDArray[np.int64] = tokens.cpu().numpy()
        return written

    def _text(self, ids: NDArray[np.int64]) -> str:
        ended = np.flatnonzero(ids == self._special.end)
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
