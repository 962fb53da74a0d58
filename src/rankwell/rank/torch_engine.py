"""The torch engine: unpadded tokens, the last layer for ``[CLS]`` alone. Exact in fp32, and fast in bf16 on a GPU.

There are two ways to run a batch. On the *grid*, sequences of like length stand together and attention pads them: the
CPU, and fp32. *Packed*, nothing is padded, so the sequences stay in their order and no token is moved on the host: a
batch is a slice, copied as one block while the batch before it is computed, and its scores stay on the GPU until all
are there. The host is never waited for, nor does it wait, before that.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankwell.core.errors import RankwellError
from rankwell.inputs.batching import take_sequences
from rankwell.inputs.sequences import Sequences
from rankwell.models.attention import Blocks, make_layout
from rankwell.models.encoder import CrossEncoder, Layer
from rankwell.models.shape import AttentionRule

if TYPE_CHECKING:
    from rankwell.rank.engine import Loaded, Logits

CPU_BUDGET = 2048
GPU_BUDGET = 1 << 18


def load(folder: Path, changes: Mapping[str, Any], options: Mapping[str, Any]) -> Loaded:
    """A checkpoint folder on a torch device; ``options`` are those of :class:`TorchEngine`."""
    from rankwell.models.checkpoints import load_checkpoint
    from rankwell.rank.engine import Loaded

    model, tokenizer, config = load_checkpoint(folder, **changes)
    engine = TorchEngine(model, config.attention, **options)
    return Loaded(engine, tokenizer, config, model.encoder.config.type_vocab_size)


class TorchEngine:
    """A model on one device.

    ===============  ===================================================================================================
    ``device``       a GPU where there is one
    ``dtype``        bf16 on a GPU, else fp32
    ``budget``       how many tokens (on the grid, with padding) are computed at a time
    ``packed``       whether nothing is padded: on a GPU in 16 bits, where Triton is installed and knows the head size
    ``joined_gelu``  whether a packed batch takes gelu's form with tanh, which the GPU's matrix product computes itself;
                     it differs from the exact one by up to 5e-4, less than bf16 rounds. On in 16 bits
    ===============  ===================================================================================================
    """

    def __init__(
        self,
        model: CrossEncoder,
        rule: AttentionRule,
        *,
        device: str | None = None,
        dtype: torch.dtype | None = None,
        budget: int | None = None,
        packed: bool | None = None,
        joined_gelu: bool | None = None,
    ):
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        on_gpu = self.device.type == "cuda"
        dtype = dtype or (torch.bfloat16 if on_gpu else torch.float32)
        self.model = model.eval().to(self.device, dtype)
        self.rule = rule
        self.budget = budget or (GPU_BUDGET if on_gpu else CPU_BUDGET)
        short = dtype in (torch.bfloat16, torch.float16)
        config = model.encoder.config
        blocks = _blocks(config.head_size, rule) if packed or (packed is None and on_gpu and short) else None
        if packed and blocks is None:
            raise RankwellError(f"packed attention needs the package triton and knows no heads of {config.head_size}")
        self._blocks = blocks
        self._copies = torch.cuda.Stream(self.device) if on_gpu else None  # type: ignore[no-untyped-call,unused-ignore]
        self._halved = False
        for layer in model.encoder.layers:
            assert isinstance(layer, Layer)
            layer.joined_gelu = config.hidden_act.startswith("gelu") and (short if joined_gelu is None else joined_gelu)

    @property
    def packed(self) -> bool:
        """Whether batches are computed without any padding."""
        return self._blocks is not None

    def logits(self, sequences: Sequences) -> Logits:
        """See :class:`~rankwell.rank.engine.Engine`."""
        return self.submit(sequences)()

    @torch.inference_mode()
    def submit(self, sequences: Sequences) -> Callable[[], Logits]:
        """Begin to score; what is returned gives the logits, and waits for them. A GPU computes in the meantime, so a
        caller with more to score lays the next sequences out before it asks for these.
        """
        found = torch.empty(len(sequences), self.model.head.out_features, dtype=torch.float32, device=self.device)
        run = self._run_packed if self.packed else self._run_on_grid
        # Triton launches on the current device, which need not be the engine's.
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            run(sequences, found)
        return lambda: found.cpu().numpy()

    def _run_on_grid(self, sequences: Sequences, found: Tensor) -> None:
        lengths = sequences.lengths()
        # The longest come first: if memory does not suffice it shows at once, not at the end.
        order = np.argsort(-lengths, kind="stable")
        begin = 0
        while begin < len(order):
            rows = order[begin : begin + max(1, self.budget // max(1, int(lengths[order[begin]])))]
            logits = self._compute(take_sequences(sequences, rows))
            if logits is not None:
                found[torch.from_numpy(rows).to(self.device)] = logits.float()
                begin += len(rows)

    def _run_packed(self, sequences: Sequences, found: Tensor) -> None:
        ends = sequences.ends
        begin, first = 0, 0  # the first sequence of the batch, and its first token
        while begin < len(ends):
            end = max(begin + 1, int(np.searchsorted(ends, first + self.budget, side="right")))
            logits = self._compute(_slice(sequences, begin, end))
            if logits is not None:
                found[begin:end] = logits
                begin, first = end, int(ends[end - 1])

    def _compute(self, batch: Sequences) -> Tensor | None:
        """The batch's logits, or ``None`` when it must be made anew because the budget was halved."""
        try:
            return self._forward(batch)
        except torch.cuda.OutOfMemoryError:
            # Once, and loudly: a budget that is too large twice is the user's to lower, and one sequence is no less.
            if self._halved or len(batch) == 1:
                raise
            self._halved = True
            half = self.budget // 2
            self.budget = half if len(batch.tokens) > half else len(batch.tokens) // 2
        warnings.warn(f"out of GPU memory; going on with {self.budget:,} tokens at a time", stacklevel=2)
        torch.cuda.empty_cache()
        return None

    def _forward(self, batch: Sequences) -> Tensor:
        return self._forward_packed(batch) if self.packed else self._forward_on_grid(batch)

    def _forward_on_grid(self, batch: Sequences) -> Tensor:
        def move(values: NDArray[Any], dtype: torch.dtype) -> Tensor:
            return torch.from_numpy(values).to(self.device, dtype, non_blocking=True)

        words, last = move(batch.words, torch.int32), move(batch.last, torch.bool)
        layout = make_layout(words, last, torch.from_numpy(batch.ends), self.rule)
        tokens, segments = move(batch.tokens, torch.int64), move(batch.segments, torch.int64)
        logits: Tensor = self.model(tokens, segments, move(batch.positions, torch.int64), layout)
        return logits

    def _forward_packed(self, batch: Sequences) -> Tensor:
        from rankwell.models.triton_attention import WORDS, make_tiles, pack

        assert self._blocks is not None
        masked = self.rule != "full"
        if masked and int(batch.words.max(initial=0)) >= WORDS:
            raise RankwellError(f"a sequence of over {WORDS:,} words")
        nothing = np.zeros(0, np.int32)
        words, last = (batch.words, batch.last.view(np.int8)) if masked else (nothing, nothing.astype(np.int8))
        tiles, table = make_tiles(batch.ends, self._blocks.rows)
        parts = (batch.tokens, batch.positions, words, tiles, table, batch.segments, last)
        on_device = _move(parts, self.device, self._copies)
        layout = pack(on_device[2], on_device[6], on_device[3], on_device[4], self.rule, self._blocks)
        logits: Tensor = self.model(on_device[0], on_device[5], on_device[1], layout)
        return logits


def _blocks(head_size: int, rule: AttentionRule) -> Blocks | None:
    if find_spec("triton") is None:
        return None
    from rankwell.models.triton_attention import blocks_for

    return blocks_for(head_size, rule)


def _slice(sequences: Sequences, begin: int, end: int) -> Sequences:
    """The sequences from ``begin`` to ``end``, as views."""
    first = int(sequences.ends[begin - 1]) if begin else 0
    own = slice(first, int(sequences.ends[end - 1]))
    return Sequences(
        sequences.tokens[own],
        sequences.segments[own],
        sequences.positions[own],
        sequences.words[own],
        sequences.last[own],
        sequences.ends[begin:end] - first,
    )


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
