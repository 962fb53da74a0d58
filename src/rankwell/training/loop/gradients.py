"""Gradients of a batch on whatever there is: CPU or GPU, 16 or 32 bits, CUDA graphs, one process or several."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed, nn

from rankwell.core.errors import RankwellError
from rankwell.models.batch import BlockPlacer, Placer, packed_blocks
from rankwell.models.cuda_graphs import GraphedEncoder
from rankwell.models.devices import chosen_device, resolve
from rankwell.models.foreign import ForeignEncoder
from rankwell.models.spec import AttentionRule
from rankwell.training.loop.task import Step, Task
from rankwell.training.options import TrainingOptions

CPU_BUDGET, LEAST_BUDGET = 8192, 1024
_SHORT = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Gradients:
    """Computes a task's gradient into the model's parameters, which stay fp32.

    Of several processes each computes a part of the batch, and all have the sum. If a GPU runs out of memory, the token
    budget is halved, with a warning.
    """

    def __init__(self, model: nn.Module, task: Task, options: TrainingOptions, rule: AttentionRule, device: str | None):
        self.processes = Processes.start(device)
        self.device = self.processes.device
        self.model, self.task = model.to(self.device), task
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        on_gpu = self.device.type == "cuda"
        precision = resolve(options.precision, "train", self.device)
        self.computing: Callable[[], AbstractContextManager[object]] = nullcontext
        if precision in _SHORT:
            self.computing = partial(torch.autocast, self.device.type, _SHORT[precision])
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")  # type: ignore[attr-defined,unused-ignore]
        encoder = getattr(model, "encoder", model)
        blocks = packed_blocks(encoder, rule, trained=True) if on_gpu and precision in _SHORT else None
        self.budget = options.budget or (gpu_budget(encoder, self.device) if on_gpu else CPU_BUDGET)
        self.pads = isinstance(encoder, ForeignEncoder) and blocks is None
        self.graphed: GraphedEncoder | None = None
        parts: bool = getattr(model, "needs_parts", False)
        if blocks is not None and GraphedEncoder.can_take(model):
            self.graphed = GraphedEncoder(model, rule, blocks, most=self.budget // 2)  # type: ignore[arg-type]
            self.place: Placer = BlockPlacer(self.device, rule, blocks, parts=parts)
        else:
            self.place = Placer(self.device, rule, blocks, seeded=True, parts=parts)

    def compute(self, items: NDArray[np.int64], seed: int) -> dict[str, Tensor]:
        """The gradient of the mean loss over ``items``, of all processes; returns what the task logs."""
        count, rank = self.processes.count, self.processes.rank
        part = slice(len(items) * rank // count, len(items) * (rank + 1) // count)
        while (figures := self._try(items, part, seed)) is None:  # what the error held is free by now
            self.budget //= 2
            warnings.warn(f"out of GPU memory; continuing with {self.budget:,} tokens at a time", stacklevel=2)
            if self.graphed is not None:
                self.graphed.most = self.budget // 2
                self.graphed.forget()
            torch.cuda.empty_cache()
        return self._sum_over_processes(figures) if count > 1 else figures

    def _try(self, items: NDArray[np.int64], part: slice, seed: int) -> dict[str, Tensor] | None:
        """None if the GPU is out of memory and the budget can be halved."""
        try:
            return self._backward(items, part, seed)
        except torch.cuda.OutOfMemoryError:
            if self.budget < 2 * LEAST_BUDGET:
                raise
            return None

    def _backward(self, items: NDArray[np.int64], part: slice, seed: int) -> dict[str, Tensor]:
        step = Step(self.place, self.budget, seed, self.computing, self.scaler.scale, pads=self.pads)
        if self.graphed is not None:
            self.graphed.clear_gradients()
            return self.task.backward(self.graphed, items, part, step)
        for parameter in self.parameters:
            parameter.grad = None
        return self.task.backward(self.model, items, part, step)

    def _sum_over_processes(self, figures: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sum gradients and figures in one exchange."""
        names = sorted(figures)
        logged = torch.stack([figures[name].float() for name in names])
        if self.graphed is not None:
            whole = self.graphed.gradients.flat
            summed = self.processes.sum(torch.cat([whole, logged]))
            whole.copy_(summed[: len(whole)])
            return dict(zip(names, summed[len(whole) :], strict=True))
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters]
        flat = self.processes.sum(torch.cat([*(gradient.reshape(-1) for gradient in gradients), logged]))
        begin = 0
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = flat[begin : begin + gradient.numel()].view_as(gradient)
            begin += gradient.numel()
        return dict(zip(names, flat[begin:], strict=True))

    def apply(self, optimiser: torch.optim.Optimizer, clip: float) -> Tensor:
        """Clip the gradient to the norm ``clip`` (0: not at all) and take a step; returns the norm it had."""
        self.scaler.unscale_(optimiser)
        if self.graphed is not None:
            norm = self.graphed.gradients.clip(clip)
        else:
            norm = nn.utils.clip_grad_norm_(self.parameters, clip or math.inf)
        self.scaler.step(optimiser)
        self.scaler.update()
        return norm.detach()

    @property
    def scale(self) -> float | None:
        """fp16's loss scale, or None."""
        return self.scaler.get_scale() if self.scaler.is_enabled() else None

    @scale.setter
    def scale(self, value: float | None) -> None:
        if value is not None:
            self.scaler.load_state_dict({**self.scaler.state_dict(), "scale": value})


@dataclass(frozen=True)
class Processes:
    """This process, the ``rank``-th of ``count`` that ``torchrun`` started or the only one, and its device."""

    device: torch.device
    count: int
    rank: int

    @classmethod
    def start(cls, device: str | None) -> Processes:
        """Join the others, if there are any."""
        target = chosen_device(device)
        here, count = (int(os.environ.get(name, "1")) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
        if target.type == "cuda" and here > (gpus := torch.cuda.device_count()):
            # Else NCCL, which wants a GPU for each, ends it some steps later with a page of its own.
            start = f"start {gpus}, or train on the CPU (--device cpu)"
            raise RankwellError(f"{here} processes were started on this machine, where torch sees {gpus} GPUs: {start}")
        if count == 1:
            return cls(target, 1, 0)
        if target.type == "cuda":
            target = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(target)
        if not distributed.is_initialized():  # by the stage before
            distributed.init_process_group("nccl" if target.type == "cuda" else "gloo")
        return cls(target, count, distributed.get_rank())

    def sum(self, values: Tensor) -> Tensor:
        """The sum over several processes, in place."""
        distributed.all_reduce(values)
        return values

    def wait(self) -> None:
        """Wait until every process is here."""
        if self.count > 1:
            distributed.barrier(device_ids=[self.device.index] if self.device.type == "cuda" else None)


def gpu_budget(encoder: nn.Module, device: torch.device) -> int:
    """Tokens whose activations fill half of the GPU's free memory: some 40 numbers of 16 bits per feature and layer.

    transformers' models may keep the weights of attention, too, which take as much again.
    """
    config: Any = getattr(encoder, "config", None)
    free, _ = torch.cuda.mem_get_info(device)
    layers, width = getattr(config, "num_hidden_layers", 12), getattr(config, "hidden_size", 768)
    size = layers * width * (160 if isinstance(encoder, ForeignEncoder) else 80)
    return max(LEAST_BUDGET, int(free // 2 // size))
