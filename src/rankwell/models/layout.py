"""Where the tokens of a batch lie: on a padded grid, or packed.

:class:`Layout` is a padded grid with a mask, for torch's attention (on a CPU, scoring computes sequences one by one
instead). :class:`Packed` has no padding and is for the Triton kernels on a GPU, in scoring and in training.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rankwell.models.spec import AttentionRule

Bounds = tuple[tuple[int, int], ...]
"""The first row of each sequence and the row after its last."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the tokens of a batch lie on a padded grid, and which of them may attend to which.

    ``slots`` (B · L) is the packed row of each place of the grid (0 at padding), ``places`` (T) the place of each
    packed row. ``mask`` broadcasts to (B, 1, L, L); ``None`` means that all attend to all. ``first`` (B) is the row of
    each ``[CLS]``, ``lengths`` (B) the number of tokens of each sequence. ``bounds`` are set on a CPU if the lengths
    differ: without gradients, attention then computes one sequence after the other, which pads nothing and copies less.
    ``parts`` is the layout of the same rows in which each part is a sequence.
    """

    batch: int
    longest: int
    slots: Tensor | None
    places: Tensor | None
    mask: Tensor | None
    first: Tensor
    lengths: Tensor
    bounds: Bounds | None = None
    parts: Layout | None = None


@dataclass(frozen=True, slots=True)
class Blocks:
    """How the kernels divide their work: rows of a tile, keys at a time (at most as many), warps, and the depth of the
    load pipeline.
    """

    rows: int
    columns: int
    warps: int
    stages: int


@dataclass(frozen=True, eq=False)
class Packed:
    """Where the tokens of a packed batch lie; ``kernels/triton_attention.py`` describes the tables.

    ``seeds`` (1,) is the seed of the batch's dropout (``kernels/triton_dropout.py``); ``parts`` is the layout of the
    same rows in which each part is a sequence. With ``window``, tokens attend to at most so many on each side, in
    inference only (``attention.within``).
    """

    rule: AttentionRule
    blocks: Blocks
    tiles: Tensor
    sequences: Tensor
    row_codes: Tensor
    column_codes: Tensor
    seeds: Tensor | None = None
    parts: Packed | None = None
    window: int = 0

    @property
    def first(self) -> Tensor:
        """The row of each ``[CLS]`` (B,)."""
        return self.sequences[:, 0]

    @property
    def lengths(self) -> Tensor:
        """The number of tokens of each sequence (B,)."""
        return self.sequences[:, 1]
