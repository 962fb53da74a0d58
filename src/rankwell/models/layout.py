"""Where the tokens of a batch lie: on a padded grid, or packed.

:class:`Layout` is a padded grid with a mask, for torch's attention: on the CPU, where scoring takes sequences one by
one instead. :class:`Packed` pads nothing, for the Triton kernels: on a GPU, with gradients and dropout or without.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rankwell.models.spec import AttentionRule

Bounds = tuple[tuple[int, int], ...]
"""The first row and the end of each sequence."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the tokens of a batch lie: packed rows ↔ a padded grid, and who may attend to whom.

    ``slots`` (B · L) is the packed row of each place of the grid (0 for padding), ``places`` (T) the place of each
    packed row; ``mask`` broadcasts to (B, 1, L, L), ``None`` where all may attend to all; ``first`` (B) is the row of
    each ``[CLS]``, ``lengths`` (B) how many tokens each sequence has. ``bounds`` are the first and the end row of each
    sequence of a padded batch on a CPU: without gradients, attention takes them one after the other there, which pads
    nothing and copies less. ``parts`` is the layout of the same rows in which each part is a sequence.
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
    """How the kernels cut their work: rows of a tile, keys at a time (no more than rows), warps, depth of the loads'
    pipeline.
    """

    rows: int
    columns: int
    warps: int
    stages: int


@dataclass(frozen=True, eq=False)
class Packed:
    """Where the tokens of a batch lie for ``kernels/triton_attention.py``, which says what the tables hold.

    ``seeds`` (1,) is what the batch's dropout is made of (``kernels/triton_dropout.py``); ``parts`` is the
    layout of the same rows in which each part is a sequence.
    """

    rule: AttentionRule
    blocks: Blocks
    tiles: Tensor
    sequences: Tensor
    row_codes: Tensor
    column_codes: Tensor
    seeds: Tensor | None = None
    parts: Packed | None = None

    @property
    def first(self) -> Tensor:
        """The row of each ``[CLS]`` (B,)."""
        return self.sequences[:, 0]

    @property
    def lengths(self) -> Tensor:
        """How many tokens each sequence has (B,)."""
        return self.sequences[:, 1]
