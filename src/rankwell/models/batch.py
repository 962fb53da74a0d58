"""Puts sequences on a device as a batch: the first step of scoring and of training.

A batch has one of two layouts. On the *grid* (on a CPU, and in fp32), attention pads sequences to the longest.
*Packed*, nothing is padded, so no token is moved on the host: a batch is a slice, copied as one block on a separate
stream while the previous batch is computed.

A CUDA graph (``cuda_graphs.py``) is recorded for fixed sizes. For it a packed batch is filled up with spare
sequences to one of a few :class:`BlockSizes` and stays one :class:`Block`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rankwell.core.errors import RankwellError
from rankwell.inputs.batching import Sequences
from rankwell.models.attention import make_layout
from rankwell.models.encoder import Encoder
from rankwell.models.foreign import ForeignEncoder
from rankwell.models.layout import Blocks, Layout, Packed
from rankwell.models.spec import AttentionRule, under_rule


class Batch(NamedTuple):
    """The inputs of a model: ``model(*batch)``."""

    tokens: Tensor
    segments: Tensor
    positions: Tensor
    layout: Layout | Packed


LEAST = 256  # the smallest difference in tokens between two sizes of a block
SPARE = 8  # sequences that fill a batch up; several, because the cost of attention is quadratic in the length


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """The sizes of a packed batch, which decide where everything lies in its block."""

    tokens: int
    sequences: int
    tiles: int
    masked: bool
    part_tiles: int = 0
    """The tiles of the sequences' parts, 0 if parts are not needed."""

    @classmethod
    def around(cls, tokens: int, sequences: int, rows: int, *, masked: bool, parts: bool = False) -> BlockSizes:
        """The sizes of a batch that is filled up: some 2 % more tokens, and enough tiles for any lengths."""
        width = LEAST
        while width * 32 <= tokens:
            width *= 2
        tokens = -(-(tokens + SPARE) // width) * width
        sequences += SPARE
        whole = tokens // rows
        return cls(tokens, sequences, whole + sequences, masked, whole + 2 * sequences if parts else 0)

    def parts(self) -> tuple[tuple[torch.dtype, tuple[int, ...]], ...]:
        """Type and shape of: tokens, positions, words, tiles and sequences, tiles and sequences of parts, segments,
        last pieces, seed.
        """
        known = self.tokens if self.masked else 0
        long, short = torch.int32, torch.int8
        return (
            (long, (self.tokens,)),
            (long, (self.tokens,)),
            (long, (known,)),
            (long, (self.tiles, 3)),
            (long, (self.sequences, 3)),
            (long, (self.part_tiles, 3)),
            (long, (2 * self.sequences if self.part_tiles else 0, 3)),
            (short, (self.tokens,)),
            (short, (known,)),
            (long, (1,)),
        )


class Block(NamedTuple):
    """A filled-up batch as one piece of memory, for ``cuda_graphs.GraphedEncoder`` only."""

    data: Tensor
    sizes: BlockSizes


def packed_blocks(encoder: nn.Module, rule: AttentionRule, *, trained: bool = False) -> Blocks | None:
    """How the kernels for packed batches divide this encoder's work; ``None`` if they cannot compute it.

    If it is ``trained``, they must have gradients.
    """
    foreign = isinstance(encoder, ForeignEncoder) and encoder.packable and not trained and rule == "full"
    if find_spec("triton") is None or not (foreign or isinstance(encoder, Encoder)):
        return None
    assert isinstance(encoder, Encoder | ForeignEncoder)
    from rankwell.models.kernels.triton_attention import blocks_for

    return blocks_for(encoder.config.head_size, rule)


class Placer:
    """Puts sequences on a device, packed if there are ``blocks`` (see :func:`packed_blocks`), else on the grid.

    With ``seeded`` a packed batch has a seed for its dropout, drawn from torch's generator on the CPU. With ``parts``
    the layout also locates the two parts of each sequence.
    """

    def __init__(
        self,
        device: torch.device,
        rule: AttentionRule,
        blocks: Blocks | None = None,
        *,
        seeded: bool = False,
        parts: bool = False,
    ):
        self.device = device
        self.rule = rule
        self.blocks = blocks
        self._seeded = seeded
        self._parts = parts
        on_gpu = device.type == "cuda"
        self._copies = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call,unused-ignore]

    def __call__(self, sequences: Sequences) -> Batch:
        """Make a batch."""
        sequences = under_rule(sequences, self.rule)
        if self.blocks is None:
            return self._on_grid(sequences)
        data, sizes = self._move(sequences, self.blocks)
        return open_block(data, sizes, self.rule, self.blocks, seeded=self._seeded)

    def _on_grid(self, sequences: Sequences) -> Batch:
        def move(values: NDArray[Any], dtype: torch.dtype) -> Tensor:
            return torch.from_numpy(values).to(self.device, dtype, non_blocking=True)

        words, last = move(sequences.words, torch.int32), move(sequences.last, torch.bool)
        layout = make_layout(words, last, torch.from_numpy(sequences.ends), self.rule)
        if self._parts:
            parts = make_layout(words, last, torch.from_numpy(part_ends(sequences)), self.rule)
            layout = replace(layout, parts=parts)
        tokens, segments = move(sequences.tokens, torch.int64), move(sequences.segments, torch.int64)
        return Batch(tokens, segments, move(sequences.positions, torch.int64), layout)

    def _move(self, sequences: Sequences, blocks: Blocks, *, fill: bool = False) -> Block:
        """Move a packed batch to the device: one copy from pinned memory, on another stream than the computation."""
        from rankwell.models.kernels.triton_attention import WORDS, make_tiles
        from rankwell.models.kernels.triton_dropout import draw_seed

        masked = self.rule != "full"
        if masked and int(sequences.words.max(initial=0)) >= WORDS:
            raise RankwellError(f"a sequence has more than {WORDS:,} words")
        ends, count = sequences.ends, len(sequences.tokens)
        ends_of_parts = part_ends(sequences) if self._parts else ends[:0]
        if fill:
            sizes = BlockSizes.around(count, len(ends), blocks.rows, masked=masked, parts=self._parts)
            spare = np.linspace(count, sizes.tokens, SPARE + 1).astype(np.int64)[1:]
            ends = np.concatenate([ends, spare])
            if self._parts:
                ends_of_parts = np.concatenate([ends_of_parts, np.repeat(spare, 2)])
        tiles, table = make_tiles(ends, blocks.rows)
        part_tiles, part_table = make_tiles(ends_of_parts, blocks.rows)
        if not fill:
            sizes = BlockSizes(count, len(ends), len(tiles), masked, len(part_tiles))
        seed = np.array([draw_seed() if self._seeded else 0], np.int32)
        nothing = sequences.words[:0]
        words, last = (sequences.words, sequences.last) if masked else (nothing, nothing)
        begins, size = _places(sizes)
        block = torch.empty(size, dtype=torch.uint8, pin_memory=self._copies is not None)
        memory = block.numpy()
        if fill:
            memory[:] = 0
        tables = (tiles, table, part_tiles, part_table)
        parts = (sequences.tokens, sequences.positions, words, *tables, sequences.segments, last, seed)
        for part, begin in zip(parts, begins, strict=True):
            memory[begin : begin + part.nbytes].view(part.dtype)[:] = part.reshape(-1)
        if self._copies is not None:
            computing = torch.cuda.current_stream(self.device)
            with torch.cuda.stream(self._copies):
                # torch holds the pinned block until the copy is done.
                block = block.to(self.device, non_blocking=True)
            computing.wait_stream(self._copies)
            # And the block on the device until the computation is done.
            block.record_stream(computing)
        return Block(block, sizes)


class BlockPlacer(Placer):
    """Puts sequences on a device for a ``cuda_graphs.GraphedEncoder``: packed, filled up, seeded."""

    def __init__(self, device: torch.device, rule: AttentionRule, blocks: Blocks, *, parts: bool = False):
        super().__init__(device, rule, blocks, seeded=True, parts=parts)

    def __call__(self, sequences: Sequences) -> Any:
        """Make a batch, a :class:`Block`."""
        assert self.blocks is not None
        return self._move(under_rule(sequences, self.rule), self.blocks, fill=True)


def open_block(data: Tensor, sizes: BlockSizes, rule: AttentionRule, blocks: Blocks, *, seeded: bool = True) -> Batch:
    """The inputs of a model as views of a block."""
    from rankwell.models.kernels.triton_attention import pack

    begins, _ = _places(sizes)
    tokens, positions, words, tiles, sequences, part_tiles, part_sequences, segments, last, seeds = (
        data[begin : begin + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
        for (dtype, shape), begin in zip(sizes.parts(), begins, strict=True)
    )
    layout = pack(words, last, tiles, sequences, rule, blocks, seeds if seeded else None)
    if sizes.part_tiles:
        parts = pack(words, last, part_tiles, part_sequences, rule, blocks, layout.seeds)
        layout = replace(layout, parts=parts)
    return Batch(tokens, segments, positions, layout)


def part_ends(sequences: Sequences) -> NDArray[np.int64]:
    """Where the two parts of each sequence end (2B,): the tokens of segment 0, then the others."""
    lengths = sequences.lengths()
    begins = sequences.ends - lengths
    queries = np.add.reduceat(sequences.segments == 0, begins, dtype=np.int64) if len(begins) else begins
    return np.stack([begins + queries, sequences.ends], axis=1).reshape(-1)


def _places(sizes: BlockSizes) -> tuple[list[int], int]:
    """Where each part of a block begins, in bytes, and where the last one ends."""
    begins, end = [], 0
    for dtype, shape in sizes.parts():
        begins.append(end)
        # Each part begins at a multiple of 16 bytes, which the kernels rely on.
        end += -(-math.prod(shape) * dtype.itemsize // 16) * 16
    return begins, end
