"""DeepCT: how much each word of a passage matters, as term frequencies for the index.

A model reads ``[CLS] passage [SEP]`` and gives each piece a weight; the first piece of a word carries the word's. A
passage longer than the model's length is read in windows that overlap by half. A term takes the largest weight it has
anywhere in the passage: of repeated words, of words with one stem, of windows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.jsonfile import read_object
from rankwell.core.types import Rows
from rankwell.inputs.batching import Sequences, slice_sequences
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.templates import SpecialTokens, Template, lay_out_pairs
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.inputs.windows import fit_windows
from rankwell.models.batch import Batch
from rankwell.models.checkpoints.heads import load_token_weights
from rankwell.models.checkpoints.names import find_model
from rankwell.models.compute import Compute
from rankwell.models.heads import TokenWeightModel

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

    ``max_length`` is that of its windows; the other options are those of :class:`~rankwell.models.compute.Compute`.
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
        self.model, self.tokenizer = model, tokenizer
        self._compute = Compute(model, model.encoder, device=device, dtype=dtype, budget=budget, packed=packed)
        self.device = self._compute.device
        self._segments = config.type_vocab_size

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

    def submit(self, passages: Passages) -> Callable[[], NDArray[np.float32]]:
        """Start weighing and return a function that waits for the weights; a GPU computes in the background."""
        weights = self._compute.run(passages.sequences, self._forward)
        chosen = weights[torch.from_numpy(passages.tokens).to(self.device)]
        return lambda: chosen.cpu().numpy()

    def _forward(self, batch: Sequences) -> Tensor:
        return weights_of(self.model, self._compute.place(batch))

    def frequencies(self, pieces: Pieces, options: WeightOptions) -> TermFrequencies:
        """The terms of passages."""
        passages = self.lay_out(pieces)
        return term_frequencies(passages, self.weigh(passages), options)
