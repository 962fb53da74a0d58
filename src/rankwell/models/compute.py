"""Runs a model over many sequences on one device. All models are run by it.

A batch has a budget of tokens and one of two layouts (:mod:`rankwell.models.batch`). On the *grid*, sequences of
similar length are batched, the longest first. *Packed*, on a GPU in 16 bits, sequences keep their order and nothing is
padded. Results stay on the GPU until all are computed, so host and device do not wait for each other in between.

On a CPU several batches are computed in parallel, each by one thread: threads that share a matrix product wait for one
another dozens of times per batch, and small products gain little from them.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rankwell.core.arrays import Rows, gather
from rankwell.core.errors import RankwellError
from rankwell.core.progress import computed
from rankwell.inputs.batching import Sequences, slice_sequences, take_sequences, token_batches
from rankwell.models.batch import Placer, packed_blocks
from rankwell.models.devices import DTypeName, chosen_device, resolve
from rankwell.models.encoder import Encoder
from rankwell.models.foreign import ForeignEncoder
from rankwell.models.int8 import quantise_encoder, restore_encoder
from rankwell.models.spec import AttentionRule

CPU_BUDGET, LEAST_DIVIDED = 2048, 1024
GPU_BUDGET = 1 << 18
"""Default token budgets of a batch, and the least for which work is divided further than once for each lane."""
DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS = {dtype: name for name, dtype in DTYPES.items()}
DTYPES["int8"] = torch.float32
HALF_TYPES = (torch.bfloat16, torch.float16)

Item = TypeVar("Item")
Result = TypeVar("Result")
_pools: dict[int, ThreadPoolExecutor] = {}
_pools_lock = threading.Lock()
os.register_at_fork(after_in_child=_pools.clear)


class Compute:
    """A model on a device, with the options of its batches.

    ==============  ====================================================================================================
    ``encoder``     the part of the model that packed kernels may compute; without one, batches are never packed
    ``rule``        which tokens attend to which
    ``parts``       whether the layout also locates the two parts of each sequence
    ``device``      default: a GPU if there is one
    ``dtype``       ``fp32``, ``bf16``, ``int8`` (the encoder's layers, on a CPU) or a torch type; default:
                    bf16 on a GPU, fp32 on a CPU
    ``budget``      tokens computed at a time (on the grid, padding included); default: ``gpu_budget`` or ``cpu_budget``
    ``lanes``       batches computed in parallel on a CPU; default: the number of torch's threads
    ``divide``      whether less than a batch for each lane is divided evenly between them. Small matrix products may
                    round differently from large ones, so vectors that are compared later should not be divided
    ``packed``      whether batches are packed; default: on a GPU in 16 bits, if the encoder has Triton kernels
    ==============  ====================================================================================================
    """

    def __init__(
        self,
        model: nn.Module,
        encoder: nn.Module | None = None,
        rule: AttentionRule = "full",
        *,
        parts: bool = False,
        device: str | None = None,
        dtype: torch.dtype | DTypeName | None = None,
        budget: int | None = None,
        lanes: int | None = None,
        divide: bool = False,
        packed: bool | None = None,
        gpu_budget: int = GPU_BUDGET,
        cpu_budget: int = CPU_BUDGET,
    ):
        self.device = chosen_device(device)
        on_gpu = self.device.type == "cuda"
        dtype = resolve(None, "rank", self.device) if dtype is None else dtype
        self.dtype = DTYPES[dtype] if isinstance(dtype, str) else dtype
        _move(model.eval(), self.device, self.dtype)
        if int8 := dtype == "int8":
            if self.device.type != "cpu":
                raise RankwellError(f"int8 is for CPUs; use the precision fp32 or bf16 on {self.device}")
            quantise_encoder(encoder)
        else:
            restore_encoder(encoder)
        self.precision = "int8" if int8 else PRECISIONS.get(self.dtype, str(self.dtype))
        self.budget = budget or (gpu_budget if on_gpu else cpu_budget)
        self.lanes = 1 if self.device.type != "cpu" else lanes or torch.get_num_threads()
        self._divide = divide or int8  # whose rows do not depend on their batch
        wants_packed = on_gpu and self.dtype in HALF_TYPES if packed is None else packed
        blocks = packed_blocks(encoder, rule) if wants_packed and encoder is not None else None
        if packed and blocks is None:
            size = encoder.config.head_size if isinstance(encoder, Encoder | ForeignEncoder) else "unknown"
            raise RankwellError(f"packed attention needs triton and a BERT or ModernBERT (its heads' size: {size})")
        self.place = Placer(self.device, rule, blocks, parts=parts)
        self._halved = False

    @property
    def packed(self) -> bool:
        """Whether batches are computed without any padding."""
        return self.place.blocks is not None

    @property
    def tokens_at_once(self) -> int:
        """The tokens that keep the device busy."""
        return self.budget * self.lanes

    def continue_after_fork(self) -> bool:
        """Use one thread from now on: torch would wait for ever for those of the parent process. False on a GPU."""
        if self.device.type != "cpu":
            return False
        torch.set_num_threads(1)
        self.lanes = 1
        return True

    def run(
        self,
        sequences: Sequences,
        forward: Callable[[Sequences], Tensor | tuple[Tensor, Tensor]],
        width: int | None = None,
        tokens: Tensor | None = None,
    ) -> Tensor:
        """The values ``forward`` gives each sequence (N, ``width``), or without ``width`` each token (T,), in fp32.

        With ``tokens`` (T, W), ``forward`` also returns W values for each token, which are written there.
        A GPU may still be computing when this returns; copying the values to the host waits for it.
        """
        per_token = width is None
        shape = (len(sequences.tokens),) if width is None else (len(sequences), width)
        values = torch.empty(shape, dtype=torch.float32, device=self.device)
        begins = sequences.ends - sequences.lengths()

        def split(result: Tensor | tuple[Tensor, Tensor], places: slice | Tensor) -> Tensor:
            if not isinstance(result, tuple):
                return result
            assert tokens is not None
            tokens[places] = result[1]
            return result[0]

        def compute(rows: Rows) -> None:
            places = torch.from_numpy(gather(begins[rows], sequences.lengths()[rows])).to(self.device)
            result = split(forward(take_sequences(sequences, rows)), places).float()
            values[places if per_token else torch.from_numpy(rows).to(self.device)] = result

        def compute_slice(begin: int, end: int) -> None:
            places = slice(begins[begin], sequences.ends[end - 1])
            result = split(forward(slice_sequences(sequences, begin, end)), places)
            values[places if per_token else slice(begin, end)] = result

        if self.packed:
            self._each_slice(sequences, compute_slice)
        else:
            self.each_batch(sequences.lengths(), compute)
        return values

    def each_batch(self, lengths: Rows, compute: Callable[[Rows], None], *, max_rows: int | None = None) -> None:
        """Call ``compute`` with the row numbers of one batch after another: rows of similar length, longest first.

        With the longest first, a shortage of memory shows at the start. ``compute`` is repeated with fewer
        rows when the GPU runs out of memory.
        """
        if self.lanes > 1:
            even = -(-int(lengths.sum()) // self.lanes)
            size = min(self.budget, even, max(LEAST_DIVIDED, even // 8)) if self._divide else self.budget
            batches = list(token_batches(lengths, size, max_rows=max_rows))
            if len(batches) > 1:
                done_batches = lane_threads(self.lanes).map(torch.inference_mode()(compute), batches)
                for rows, _ in zip(batches, done_batches, strict=True):
                    computed(len(rows))
                return
        done = 0
        while done < len(lengths):
            for rows in token_batches(lengths, self.budget, max_rows=max_rows, skip=done):
                if not self._attempt(partial(compute, rows), len(rows), int(lengths[rows].sum())):
                    break
                computed(len(rows))
                done += len(rows)

    def _each_slice(self, sequences: Sequences, compute: Callable[[int, int], None]) -> None:
        ends = sequences.ends
        begin, first = 0, 0  # the first sequence of the batch, and its first token
        while begin < len(ends):
            end = max(begin + 1, int(np.searchsorted(ends, first + self.budget, side="right")))
            last = int(ends[end - 1])
            if self._attempt(partial(compute, begin, end), end - begin, last - first):
                computed(end - begin)
                begin, first = end, last

    def _attempt(self, compute: Callable[[], None], rows: int, tokens: int) -> bool:
        """Compute a batch. Returns false if the budget was halved, so that a smaller batch must be tried."""
        try:
            with torch.inference_mode(), self._on_device():
                compute()
            return True
        except torch.cuda.OutOfMemoryError:
            # Once only: a second failure means that the user should lower the budget. One row cannot be divided.
            if self._halved or rows == 1:
                raise
            self._halved = True
            half = self.budget // 2
            self.budget = half if tokens > half else tokens // 2
        warnings.warn(f"out of GPU memory; continuing with {self.budget:,} tokens at a time", stacklevel=4)
        torch.cuda.empty_cache()
        return False

    def _on_device(self) -> AbstractContextManager[object]:
        # Triton launches on the current device, which need not be this one.
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()


def _move(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Move a model to a device and a type. Rotary frequencies stay in fp32: rounded to 16 bits, they would give angles
    whose error grows with the position.
    """
    exact = {name: buffer for name, buffer in model.named_buffers() if name.endswith("inv_freq")}
    model.to(device, dtype)
    for name, buffer in exact.items():
        owner, _, own_name = name.rpartition(".")
        setattr(model.get_submodule(owner), own_name, buffer.to(device))


def lane_threads(lanes: int) -> ThreadPoolExecutor:
    """Threads that each use one core; all models of a process share them."""
    with _pools_lock:
        if lanes not in _pools:
            threads, ready = torch.get_num_threads(), threading.Barrier(lanes)
            pool = ThreadPoolExecutor(lanes, "rankwell-lane", initializer=_compute_alone)
            # All must have started before this thread's number is restored: new threads start with it.
            list(pool.map(lambda _: ready.wait(), range(lanes)))
            torch.set_num_threads(threads)
            _pools[lanes] = pool
        return _pools[lanes]


def map_lanes(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """``work`` on each item, on all cores."""
    lanes = torch.get_num_threads()
    return list(lane_threads(lanes).map(work, items)) if lanes > 1 and len(items) > 1 else list(map(work, items))


def _compute_alone() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread's first call adopts the process's number, so it is made now
