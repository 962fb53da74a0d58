"""Training steps as CUDA graphs: the kernels of a batch of one form are recorded once, then replayed.

A small encoder's step is some 400 kernels, most of which finish before the host has launched the next. Replayed from a
graph they cost the host two calls, one for each pass. A graph computes on the memory it was recorded on, so

* batches come in few forms (:class:`~rankwell.models.batch.BlockPlacer`), each copied to its graph's own block, with
  the seeds of dropout in it;
* the backward pass adds to gradients at fixed addresses (:class:`Gradients`), in the graph itself, so that the chunks
  of a step add up whether replayed or not;
* all graphs share their memory, since only one is between its forward and its backward pass at a time.

A form is recorded the third time it occurs; before that, or if recording fails, it is computed as usual.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from rankwell.core.errors import RankwellError
from rankwell.models.batch import SPARE, Form, open_block
from rankwell.models.encoder import CrossEncoder, Encoder
from rankwell.models.layout import Blocks
from rankwell.models.spec import AttentionRule

GRAPHS = 16  # in memory at a time
RECORDED_AT = 3  # a form is recorded when it has occurred this often
_LINE = 32  # every gradient starts at a multiple of so many numbers: 128 bytes


class Gradients:
    """The gradients of parameters as parts of one tensor, ``flat``, whose place in memory never changes."""

    def __init__(self, parameters: Iterable[nn.Parameter]):
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        begins = [0]
        for parameter in self.parameters:
            begins.append(begins[-1] + -(-parameter.numel() // _LINE) * _LINE)
        self.flat = torch.zeros(begins[-1], device=self.parameters[0].device)
        self.parts = [
            self.flat[begin : begin + parameter.numel()].view(parameter.shape)
            for parameter, begin in zip(self.parameters, begins, strict=False)
        ]

    def clear(self) -> None:
        """Set all to 0, as the parameters' own gradients."""
        self.flat.zero_()
        for parameter, part in zip(self.parameters, self.parts, strict=True):
            if parameter.grad is not part:
                parameter.grad = part

    def clip(self, longest: float) -> Tensor:
        """Shorten the gradient to a norm of ``longest`` (0: leave it); returns the norm it had."""
        norm: Tensor = torch.linalg.vector_norm(self.flat)
        if longest:
            self.flat.mul_((longest / (norm + 1e-6)).clamp_(max=1.0))
        return norm


class GraphedEncoder(nn.Module):
    """A cross-encoder in training that takes each batch as a :class:`~rankwell.models.batch.Block`, from graphs.

    Call :meth:`clear_gradients` before each step. A backward pass must come before the next call with gradients.
    Batches of more than ``most`` tokens are computed as usual: there the GPU is the limit, and a graph holds on to the
    memory of its activations.
    """

    def __init__(self, model: CrossEncoder, rule: AttentionRule, blocks: Blocks, *, most: int | None = None):
        super().__init__()
        self.model = model
        self.rule, self.blocks, self.most = rule, blocks, most
        self.gradients = Gradients(model.parameters())
        device = self.gradients.flat.device
        self.active = device.type == "cuda"
        """Whether forms are recorded: not on a CPU, nor after recording has failed."""
        self.turn = 0
        self._seen: dict[Form, int] = {}
        self._needed = RECORDED_AT
        self._graphs: OrderedDict[Form, _Graph] = OrderedDict()
        self._pool: Any = None
        self._addresses = self._where()
        # What tells autograd that a played batch has a gradient.
        self._anchor = torch.zeros((), device=device, requires_grad=True)

    @staticmethod
    def can_take(model: nn.Module) -> bool:
        """Whether a model can be recorded: one row of logits per sequence, and parameters in 32 bits."""
        return (
            type(model) is CrossEncoder
            and type(model.encoder) is Encoder
            and all(parameter.dtype == torch.float32 for parameter in model.parameters())
        )

    def forward(self, data: Tensor, form: Form) -> Tensor:
        """The logits of the batch's sequences, without those that fill it up."""
        graph = self._graph(data, form) if self.active and self.model.training else None
        if graph is None:
            return self.compute(data, form)[: form.sequences - SPARE]
        logits: Tensor = _Played.apply(self._anchor, data, graph, self)  # type: ignore[no-untyped-call]
        return logits

    def compute(self, data: Tensor, form: Form) -> Tensor:
        """The logits of all sequences of a block, computed as usual."""
        logits: Tensor = self.model(*open_block(data, form, self.rule, self.blocks))
        return logits

    def compute_apart(self, data: Tensor, form: Form) -> tuple[Tensor, list[Tensor]]:
        """The logits of all sequences, and the weights they were computed with: new names for the parameters' memory.

        Autograd remembers for a parameter on which stream its gradient is gathered as long as any batch's graph is
        alive, and in a recording that must be the recording's own.
        """
        weights = {
            name: parameter.detach().requires_grad_()
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }
        batch = open_block(data, form, self.rule, self.blocks)
        logits: Tensor = functional_call(self.model, weights, tuple(batch))
        return logits, list(weights.values())

    def clear_gradients(self) -> None:
        """Set the gradients to 0; to be called before each step."""
        self.gradients.clear()
        addresses = self._where()
        if addresses != self._addresses:  # the parameters have been moved, which the graphs do not know
            self.forget()
            self._addresses = addresses

    def forget(self) -> None:
        """Give the graphs and their memory back; forms may be recorded again."""
        if self.gradients.flat.is_cuda:
            torch.cuda.synchronize(self.gradients.flat.device)
        self._graphs.clear()
        self._seen.clear()
        self._pool = None

    @property
    def recorded(self) -> int:
        """How many graphs there are."""
        return len(self._graphs)

    def _where(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self.gradients.parameters]

    def _graph(self, data: Tensor, form: Form) -> _Graph | None:
        if form in self._graphs:
            self._graphs.move_to_end(form)
            return self._graphs[form]
        if self.most is not None and form.tokens > self.most:
            return None
        self._seen[form] = self._seen.get(form, 0) + 1
        if self._seen[form] < self._needed:
            return None
        stream = torch.cuda.current_stream(data.device) if data.is_cuda else None
        try:
            if len(self._graphs) >= GRAPHS:
                torch.cuda.synchronize(data.device)  # it may still be playing
                self._graphs.popitem(last=False)
                # Recording takes as long as many steps: with more forms than graphs it must become rare.
                self._needed *= 2
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            graph = _Graph(self, data, form, self._pool)
        except Exception as error:
            if stream is not None:  # a recording that fails as it ends leaves its own stream behind
                torch.cuda.set_stream(stream)
            self.active = False
            self.forget()
            torch.cuda.empty_cache()
            line = str(error).split("\n")[0]
            warnings.warn(f"training continues without CUDA graphs: {type(error).__name__}: {line}", stacklevel=2)
            return None
        self._seen[form] = 0  # if evicted, it has to occur often again
        self._graphs[form] = graph
        return graph


class _Graph:
    """The forward and the backward pass of one form, recorded."""

    def __init__(self, owner: GraphedEncoder, data: Tensor, form: Form, pool: Any):
        gradients = owner.gradients
        device = data.device
        self.real = form.sequences - SPARE
        self.block = data.clone()
        # Rows beyond the real ones stay 0: what fills a batch up has no gradient.
        self.grad = torch.zeros(form.sequences, owner.model.head.out_features, device=device)

        def forward() -> tuple[Tensor, list[Tensor]]:
            with torch.enable_grad(), _autocast_without_cache(device):
                return owner.compute_apart(self.block, form)

        def backward(logits: Tensor, weights: list[Tensor]) -> None:
            # As in eager training, where the backward pass starts outside of autocast.
            with torch.autocast(device.type, enabled=False), torch.no_grad():
                torch._foreach_add_(gradients.parts, torch.autograd.grad(logits, weights, self.grad))

        # One-time work, such as loading a kernel, must not happen in a recording. It leaves the gradients as they are,
        # since those of the logits are still 0.
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call,unused-ignore]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            backward(*forward())
        torch.cuda.current_stream(device).wait_stream(side)
        self.forward_graph, self.backward_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # The mode keeps what other threads do, such as those that watch over several GPUs, from ending a recording.
        with torch.cuda.graph(self.forward_graph, pool=pool, capture_error_mode="thread_local"):
            logits, weights = forward()
        with torch.cuda.graph(self.backward_graph, pool=pool, capture_error_mode="thread_local"):
            backward(logits, weights)
        # Held, so that no other graph of the pool is recorded over it.
        self.logits = logits.detach()


class _Played(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, data: Tensor, graph: _Graph, owner: GraphedEncoder) -> Tensor:
        graph.block.copy_(data)
        graph.forward_graph.replay()
        owner.turn += 1
        ctx.rest = graph, owner, owner.turn
        return graph.logits[: graph.real].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None, None]:
        graph, owner, turn = ctx.rest
        if turn != owner.turn:
            raise RankwellError("another batch was computed between a batch's forward and backward pass")
        graph.grad[: graph.real].copy_(grad)
        graph.backward_graph.replay()
        return None, None, None, None


def _autocast_without_cache(device: torch.device) -> AbstractContextManager[object]:
    """Autocast as it is now. Its cache would keep weights in 16 bits from one step, and a recording, to the next."""
    return torch.autocast(
        device.type,
        torch.get_autocast_dtype(device.type),
        enabled=torch.is_autocast_enabled(device.type),
        cache_enabled=False,
    )
