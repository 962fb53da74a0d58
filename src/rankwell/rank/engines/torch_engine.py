"""The torch engine: unpadded tokens, the last layer for ``[CLS]`` alone. Exact in fp32, and fast in bf16 on a GPU.

There are two ways to run a batch (:mod:`rankwell.models.placing`). On the *grid*, sequences of like length stand
together. *Packed*, they stay in their order, and scores stay on the GPU until all are there: the host is never waited
for, nor does it wait, before that.

On a CPU several batches are computed side by side, each by one thread: a matrix product that threads share makes them
wait for one another dozens of times a batch, and small products gain little from it.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankwell.core.errors import RankwellError
from rankwell.inputs.batching import Sequences, slice_sequences, take_sequences
from rankwell.models.devices import DTYPES, Precision, chosen_device
from rankwell.models.encoder import CrossEncoder, Layer
from rankwell.models.placing import Placer, packed_blocks
from rankwell.models.shape import AttentionRule

if TYPE_CHECKING:
    from rankwell.rank.engines.engine import Logits

CPU_BUDGET = 2048
GPU_BUDGET = 1 << 18


_threads: dict[int, ThreadPoolExecutor] = {}
_starting = threading.Lock()
os.register_at_fork(after_in_child=_threads.clear)


def _compute_alone() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread's first question takes over the process's number, so it is asked now


def lane_threads(lanes: int) -> ThreadPoolExecutor:
    """Threads of which each computes by itself; all engines of a process share them."""
    with _starting:
        if lanes not in _threads:
            own, ready = torch.get_num_threads(), threading.Barrier(lanes)
            pool = ThreadPoolExecutor(lanes, "rankwell-lane", initializer=_compute_alone)
            # All must have begun before this thread's own number is set again: it is also what new threads begin with.
            list(pool.map(lambda _: ready.wait(), range(lanes)))
            torch.set_num_threads(own)
            _threads[lanes] = pool
        return _threads[lanes]


class TorchEngine:
    """A model on one device.

    ===============  ===================================================================================================
    ``device``       a GPU where there is one
    ``dtype``        ``fp32``, ``bf16`` or torch's own; bf16 on a GPU, else fp32
    ``budget``       how many tokens (on the grid, with padding) are computed at a time
    ``lanes``        how many batches are computed side by side on a CPU; as many as torch has threads
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
        dtype: torch.dtype | Precision | None = None,
        budget: int | None = None,
        lanes: int | None = None,
        packed: bool | None = None,
        joined_gelu: bool | None = None,
    ):
        self.device = chosen_device(device)
        on_gpu = self.device.type == "cuda"
        chosen = DTYPES[dtype] if isinstance(dtype, str) else dtype
        dtype = chosen or (torch.bfloat16 if on_gpu else torch.float32)
        self.model = model.eval().to(self.device, dtype)
        self.rule = rule
        self.budget = budget or (GPU_BUDGET if on_gpu else CPU_BUDGET)
        self.lanes = 1 if self.device.type != "cpu" else lanes or torch.get_num_threads()
        short = dtype in (torch.bfloat16, torch.float16)
        blocks = packed_blocks(model.encoder, rule) if packed or (packed is None and on_gpu and short) else None
        if packed and blocks is None:
            size = model.encoder.config.head_size
            raise RankwellError(f"packed attention needs the package triton and a BERT; it knows no heads of {size}")
        self._place = Placer(self.device, rule, blocks, parts=model.needs_parts)
        self._halved = False
        for layer in model.modules():
            if isinstance(layer, Layer):
                gelu = model.encoder.config.hidden_act.startswith("gelu")
                layer.joined_gelu = gelu and (short if joined_gelu is None else joined_gelu)

    @property
    def packed(self) -> bool:
        """Whether batches are computed without any padding."""
        return self._place.blocks is not None

    @property
    def at_once(self) -> int:
        """How many tokens keep it busy."""
        return self.budget * self.lanes

    def logits(self, sequences: Sequences) -> Logits:
        """See :class:`~rankwell.rank.engines.engine.Engine`."""
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
        if self.lanes > 1 and len(order) > 1:
            self._run_in_lanes(sequences, order, found)
            return
        begin = 0
        while begin < len(order):
            rows = order[begin : begin + max(1, self.budget // max(1, int(lengths[order[begin]])))]
            logits = self._compute(take_sequences(sequences, rows))
            if logits is not None:
                found[torch.from_numpy(rows).to(self.device)] = logits.float()
                begin += len(rows)

    def _run_in_lanes(self, sequences: Sequences, order: NDArray[np.int64], found: Tensor) -> None:
        lengths = sequences.lengths()[order]
        # Little work is shared out evenly, as far as there are sequences.
        size = min(self.budget, -(-int(lengths.sum()) // self.lanes))
        batches, begin = [], 0
        while begin < len(order):
            end = begin + max(1, size // max(1, int(lengths[begin])))
            batches.append(order[begin:end])
            begin = end

        @torch.inference_mode()
        def compute(rows: NDArray[np.int64]) -> None:
            found[torch.from_numpy(rows)] = self._forward(take_sequences(sequences, rows)).float()

        for _ in lane_threads(self.lanes).map(compute, batches):
            pass

    def _run_packed(self, sequences: Sequences, found: Tensor) -> None:
        ends = sequences.ends
        begin, first = 0, 0  # the first sequence of the batch, and its first token
        while begin < len(ends):
            end = max(begin + 1, int(np.searchsorted(ends, first + self.budget, side="right")))
            logits = self._compute(slice_sequences(sequences, begin, end))
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
        logits: Tensor = self.model(*self._place(batch))
        return logits
