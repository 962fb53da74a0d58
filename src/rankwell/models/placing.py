"""From sequences in the host's memory to a batch on a device: what scoring and training begin with.

There are two ways to lay a batch out. On the *grid*, attention pads sequences to the longest: the CPU, and fp32.
*Packed*, nothing is padded, so no token is moved on the host: a batch is a slice, copied as one block on a stream of
its own while the batch before it is computed.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rankwell.core.errors import RankwellError
from rankwell.inputs.sequences import Sequences
from rankwell.models.attention import Blocks, Layout, Packed, make_layout
from rankwell.models.encoder import Encoder
from rankwell.models.shape import AttentionRule, under_rule


class Batch(NamedTuple):
    """What a model takes: ``model(*batch)``."""

    tokens: Tensor
    segments: Tensor
    positions: Tensor
    layout: Layout | Packed


def packed_blocks(encoder: nn.Module, rule: AttentionRule) -> Blocks | None:
    """How the kernels for packed batches cut this encoder's work; ``None`` where they cannot compute it."""
    if find_spec("triton") is None or not isinstance(encoder, Encoder):
        return None
    from rankwell.models.triton_attention import blocks_for

    return blocks_for(encoder.config.head_size, rule)


class Placer:
    """Puts sequences on a device, packed where it is given ``blocks`` (see :func:`packed_blocks`), else on the grid."""

    def __init__(self, device: torch.device, rule: AttentionRule, blocks: Blocks | None = None):
        self.device = device
        self.rule = rule
        self.blocks = blocks
        on_gpu = device.type == "cuda"
        self._copies = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call,unused-ignore]

    def __call__(self, sequences: Sequences) -> Batch:
        """The batch."""
        sequences = under_rule(sequences, self.rule)
        return self._on_grid(sequences) if self.blocks is None else self._packed(sequences, self.blocks)

    def _on_grid(self, sequences: Sequences) -> Batch:
        def move(values: NDArray[Any], dtype: torch.dtype) -> Tensor:
            return torch.from_numpy(values).to(self.device, dtype, non_blocking=True)

        words, last = move(sequences.words, torch.int32), move(sequences.last, torch.bool)
        layout = make_layout(words, last, torch.from_numpy(sequences.ends), self.rule)
        tokens, segments = move(sequences.tokens, torch.int64), move(sequences.segments, torch.int64)
        return Batch(tokens, segments, move(sequences.positions, torch.int64), layout)

    def _packed(self, sequences: Sequences, blocks: Blocks) -> Batch:
        from rankwell.models.triton_attention import WORDS, make_tiles, pack

        masked = self.rule != "full"
        if masked and int(sequences.words.max(initial=0)) >= WORDS:
            raise RankwellError(f"a sequence of over {WORDS:,} words")
        nothing = np.zeros(0, np.int32)
        words, last = (sequences.words, sequences.last.view(np.int8)) if masked else (nothing, nothing.astype(np.int8))
        tiles, table = make_tiles(sequences.ends, blocks.rows)
        parts = (sequences.tokens, sequences.positions, words, tiles, table, sequences.segments, last)
        moved = _move(parts, self.device, self._copies)
        layout = pack(moved[2], moved[6], moved[3], moved[4], self.rule, blocks)
        return Batch(moved[0], moved[5], moved[1], layout)


def _move(parts: tuple[NDArray[Any], ...], device: torch.device, copies: torch.cuda.Stream | None) -> list[Tensor]:
    """The arrays on the device: copied as one block from pinned memory, on a stream beside the one that computes."""
    # Each part begins at a multiple of 16 bytes, which the kernels can then rely on.
    sizes = [part.nbytes + -part.nbytes % 16 for part in parts]
    begins = np.cumsum([0, *sizes]).tolist()
    block = torch.empty(begins[-1], dtype=torch.uint8, pin_memory=copies is not None)
    bytes_of_block = block.numpy()
    for part, begin in zip(parts, begins, strict=False):
        bytes_of_block[begin : begin + part.nbytes].view(part.dtype)[:] = part.reshape(-1)
    if copies is not None:
        computing = torch.cuda.current_stream(device)
        with torch.cuda.stream(copies):
            # The pinned block may be let go of: torch keeps it until the copy is done.
            block = block.to(device, non_blocking=True)
        computing.wait_stream(copies)
        # Likewise the block on the device, until what computes on it is done.
        block.record_stream(computing)
    moved = []
    for part, begin in zip(parts, begins, strict=False):
        dtype = torch.int8 if part.dtype == np.int8 else torch.int32
        moved.append(block[begin : begin + part.nbytes].view(dtype).view(part.shape))
    return moved
