"""DeepCT: how much each word of a passage matters, as term frequencies for the index.

A model reads ``[CLS] passage [SEP]`` and gives each piece a weight; the first piece of a word carries the word's. A
passage longer than the model's length is read in windows that overlap by half. A term takes the largest weight it has
anywhere in the passage: of repeated words, of words with one stem, of windows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rankwell.core.arrays import gather
from rankwell.core.errors import InputError, RankwellError
from rankwell.core.jsonfile import read_object
from rankwell.core.types import Rows
from rankwell.inputs.batching import Sequences, slice_sequences, take_sequences, token_batches
from rankwell.inputs.fitting import fit_windows
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.templates import SpecialTokens, Template, lay_out_pairs
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.names import find_model
from rankwell.models.devices import chosen_device
from rankwell.models.heads import TokenWeightModel, load_token_weights
from rankwell.models.placing import Batch, Placer, packed_blocks

CPU_BUDGET = 4096
GPU_BUDGET = 1 << 18
MAX_LENGTH = 256
STEM_BITS = 31
"""Stems are numbers of so many bits, so that a row and a stem are one number."""


@dataclass(frozen=True, eq=False)
class Passages:
    """Passages as a model reads them, a sequence for each window.

    ==============  =========  ====================================================================
    ``sequences``   (W)        ``[CLS] window [SEP]``
    ``owners``      (W,)       the passage of each window, ascending
    ``tokens``      (F,)       the tokens, among the sequences', that are the first piece of a word
    ``rows``        (F,)       the passage of each of them
    ``stems``       (F,)       the stem's number of each of them
    ==============  =========  ====================================================================
    """

    sequences: Sequences
    owners: Rows
    tokens: Rows
    rows: Rows
    stems: Rows

    def part(self, begin: int, end: int) -> Passages:
        """The windows from ``begin`` to ``end``, as views."""
        ends = self.sequences.ends
        first, last = (int(ends[begin - 1]) if begin else 0), (int(ends[end - 1]) if end else 0)
        a, b = np.searchsorted(self.tokens, [first, last]).tolist()
        chosen = slice_sequences(self.sequences, begin, end)
        return Passages(chosen, self.owners[begin:end], self.tokens[a:b] - first, self.rows[a:b], self.stems[a:b])


def lay_out_passages(pieces: Pieces, special: SpecialTokens, max_length: int, *, segments: int = 2) -> Passages:
    """Passages in windows of at most ``max_length`` tokens. Stop words, and what is no word, carry no weight."""
    if len(pieces.stems) != len(pieces.ids):
        raise ValueError("term weights need pieces with stems")
    room = np.full(len(pieces), max_length - 2, np.int64)
    begins, ends, owners = fit_windows(pieces, np.ones(len(pieces.ids), np.int64), room)
    windows = pieces.cut(begins, ends - begins)
    template = Template("single", max_length=max_length, max_query=1)
    sequences = lay_out_pairs(template, special, {"query": windows}, segments=segments)
    window_of = np.repeat(np.arange(len(windows)), windows.lengths())
    firsts = np.flatnonzero(windows.opens)
    # Before a window's pieces stand its own [CLS] and both special tokens of every window before it.
    tokens = firsts + 1 + 2 * window_of[firsts]
    return Passages(sequences, owners, tokens, owners[window_of[firsts]], windows.stems[firsts].astype(np.int64))


def weights_of(model: TokenWeightModel, batch: Batch) -> Tensor:
    """The weight of every token of a batch (T,), its head in 32 bits whatever the encoder is computed in."""
    states: Tensor = model.encoder(*batch, first_only=False)
    with torch.autocast(states.device.type, enabled=False):
        weight, bias = model.head.weight.float(), model.head.bias.float()
        return functional.linear(model.dropout(states.float()), weight, bias)[:, 0]


@dataclass(frozen=True, eq=False)
class TermFrequencies:
    """The terms of passages, by passage and in the order they first stand in it: (P,) each."""

    rows: Rows
    stems: Rows
    frequencies: Rows


@dataclass(frozen=True)
class WeightOptions:
    """How weights become term frequencies: round(scale·y), or round(scale·√y) with ``root``; below 1 is dropped."""

    scaling: str = "linear"
    scale: float = 100.0

    def __post_init__(self) -> None:
        if self.scaling not in ("linear", "root"):
            raise RankwellError(f"no scaling of term weights is called {self.scaling!r} (known: linear, root)")
        if not self.scale > 0:
            raise RankwellError(f"term weights cannot be scaled by {self.scale:g}")

    def frequencies(self, weights: NDArray[np.float32]) -> Rows:
        """Weights as whole numbers, 0 for what is dropped."""
        positive = np.maximum(weights.astype(np.float64), 0.0)
        return np.rint(self.scale * (np.sqrt(positive) if self.scaling == "root" else positive)).astype(np.int64)


def term_frequencies(passages: Passages, weights: NDArray[np.float32], options: WeightOptions) -> TermFrequencies:
    """The terms that are kept of the words' weights (F,)."""
    keys = (passages.rows << STEM_BITS) | passages.stems
    order = np.argsort(keys, kind="stable")
    groups = np.flatnonzero(np.diff(keys[order], prepend=-1))
    largest = np.maximum.reduceat(weights[order], groups) if len(groups) else weights
    found, first = options.frequencies(largest), order[groups]
    kept = np.flatnonzero(found >= 1)
    kept = kept[np.argsort(first[kept])]
    return TermFrequencies(passages.rows[first[kept]], passages.stems[first[kept]], found[kept])


class TermWeigher:
    """A trained model that weighs the words of passages, on one device.

    ``max_length`` is that of its windows; the other options are those of re-ranking's
    ``rankwell.rank.engines.torch_engine.TorchEngine``.
    """

    def __init__(
        self,
        model: TokenWeightModel,
        tokenizer: Tokenizer,
        *,
        max_length: int | None = None,
        device: str | None = None,
        dtype: torch.dtype | None = None,
        budget: int | None = None,
        packed: bool | None = None,
    ):
        config = model.encoder.config
        limit = config.max_position_embeddings
        self.max_length = max_length or min(limit, tokenizer.max_length or MAX_LENGTH)
        if not 8 <= self.max_length <= limit:
            raise RankwellError(f"windows of {self.max_length} tokens; this model takes 8 to {limit}")
        self.device = chosen_device(device)
        on_gpu = self.device.type == "cuda"
        dtype = dtype or (torch.bfloat16 if on_gpu else torch.float32)
        self.tokenizer = tokenizer
        self.model = model.eval().to(self.device, dtype)
        self.budget = budget or (GPU_BUDGET if on_gpu else CPU_BUDGET)
        self._segments = config.type_vocab_size
        short = dtype in (torch.bfloat16, torch.float16)
        blocks = packed_blocks(model.encoder, "full") if packed or (packed is None and on_gpu and short) else None
        self._place = Placer(self.device, "full", blocks)
        self._halved = False

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> TermWeigher:
        """Load a checkpoint that has a weight for each token."""
        folder = find_model(folder)
        if "BertForTokenClassification" not in (read_object(folder / "config.json").get("architectures") or []):
            raise InputError(folder, None, "a model without a weight for each token; recipes/deepct.yaml trains one")
        model, tokenizer = load_token_weights(folder)
        return cls(model, tokenizer, **options)

    def lay_out(self, pieces: Pieces) -> Passages:
        """Passages as this model reads them."""
        return lay_out_passages(pieces, self.tokenizer.special, self.max_length, segments=self._segments)

    def weigh(self, passages: Passages) -> NDArray[np.float32]:
        """The weight of each word's first piece (F,)."""
        return self.submit(passages)()

    @torch.inference_mode()
    def submit(self, passages: Passages) -> Callable[[], NDArray[np.float32]]:
        """Begin to weigh; what is returned gives the weights and waits for them, while a GPU computes them."""
        sequences = passages.sequences
        found = torch.empty(len(sequences.tokens), dtype=torch.float32, device=self.device)
        pending = list(token_batches(sequences.lengths(), self.budget))[::-1]
        with self._on_device():
            while pending:
                rows = pending.pop()
                try:
                    weights = weights_of(self.model, self._place(take_sequences(sequences, rows)))
                except torch.cuda.OutOfMemoryError:
                    if self._halved or len(rows) == 1:
                        raise
                    # Once, and loudly: a budget that is too large twice is the user's to lower.
                    self._halved, self.budget = True, self.budget // 2
                    warnings.warn(f"out of GPU memory; going on with {self.budget:,} tokens at a time", stacklevel=2)
                    torch.cuda.empty_cache()
                    pending = [half for rows in [*pending, rows] for half in np.array_split(rows, 2) if len(half)]
                    continue
                found[torch.from_numpy(_tokens_of(sequences, rows)).to(self.device)] = weights
            chosen = found[torch.from_numpy(passages.tokens).to(self.device)]
        return lambda: chosen.cpu().numpy()

    def frequencies(self, pieces: Pieces, options: WeightOptions) -> TermFrequencies:
        """The terms of passages."""
        passages = self.lay_out(pieces)
        return term_frequencies(passages, self.weigh(passages), options)

    def _on_device(self) -> AbstractContextManager[object]:
        # Triton launches on the current device, which need not be the model's.
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()


def _tokens_of(sequences: Sequences, rows: Rows) -> Rows:
    """Where the tokens of these sequences stand among all."""
    lengths = sequences.lengths()[rows]
    return gather(sequences.ends[rows] - lengths, lengths)
