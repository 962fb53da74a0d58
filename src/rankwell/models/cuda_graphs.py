"""Training steps as CUDA graphs: the kernels of a batch are recorded once for its sizes, then replayed.

A small encoder's step is some 400 kernels, most of which finish before the host has launched the next. Replayed from a
graph they cost the host two calls, one for each pass. A graph computes on the memory it was recorded on, so

* batches come in few sizes (:class:`~rankwell.models.batch.BlockPlacer`), and each batch, with the seed of its dropout,
  is copied to the block of its graph;
* the backward pass, within the graph, adds to gradients at fixed addresses (:class:`FlatGradients`), so that the chunks
  of a step add up whether they are replayed or not;
* all graphs share their memory, because only one at a time is between its forward and its backward pass.

A graph is recorded the third time its sizes occur; before that, or if recording fails, batches are computed as usual.
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
from rankwell.models.batch import SPARE, BlockSizes, open_block
from rankwell.models.encoder import CrossEncoder, Encoder
from rankwell.models.layout import Blocks
from rankwell.models.pooling import VectorModel
from rankwell.models.spec import AttentionRule

GRAPHS = 16  # in memory at a time
RECORDED_AT = 3  # sizes are recorded when they have occurred this often
_LINE = 32  # every gradient starts at a multiple of this many numbers: 128 bytes


class FlatGradients:
    """The gradients of parameters as views of one tensor, ``flat``, whose address never changes."""

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
        """Set the gradients to 0 and attach them to the parameters."""
        self.flat.zero_()
        for parameter, part in zip(self.parameters, self.parts, strict=True):
            if parameter.grad is not part:
                parameter.grad = part

    def clip(self, longest: float) -> Tensor:
        """Clip the gradient to the norm ``longest`` (0: no clipping) and return its norm before that."""
        norm: Tensor = torch.linalg.vector_norm(self.flat)
        if longest:
            self.flat.mul_((longest / (norm + 1e-6)).clamp_(max=1.0))
        return norm


class GraphedEncoder(nn.Module):
    """A model in training that computes each :class:`~rankwell.models.batch.Block` with a graph.

    Call :meth:`clear_gradients` before each step, and run the backward pass before the next call with gradients.
    Batches of more than ``most`` tokens are computed without graphs: for them the GPU is the limit, and a graph keeps
    the memory of its activations.
    """

    def __init__(
        self, model: CrossEncoder | VectorModel, rule: AttentionRule, blocks: Blocks, *, most: int | None = None
    ):
        super().__init__()
        self.model = model
        self.rule, self.blocks, self.most = rule, blocks, most
        self.gradients = FlatGradients(model.parameters())
        device = self.gradients.flat.device
        self.active = device.type == "cuda"
        """Whether graphs are recorded: not on a CPU, nor after recording has failed."""
        self.turn = 0
        self._seen: dict[BlockSizes, int] = {}
        self._needed = RECORDED_AT
        self._graphs: OrderedDict[BlockSizes, _Graph] = OrderedDict()
        self._pool: Any = None
        self._addresses = self._where()
        # Tells autograd that a replayed batch has a gradient.
        self._anchor = torch.zeros((), device=device, requires_grad=True)

    @staticmethod
    def can_take(model: nn.Module) -> bool:
        """Whether a model can be recorded: one row of outputs per sequence, and parameters in 32 bits."""
        return (
            type(model) in (CrossEncoder, VectorModel)
            and type(model.encoder) is Encoder
            and all(parameter.requires_grad for parameter in model.encoder.parameters())
            and all(parameter.dtype == torch.float32 for parameter in model.parameters())
        )

    def forward(self, data: Tensor, sizes: BlockSizes) -> Tensor:
        """The logits of the batch's sequences, without the spare ones."""
        graph = self._graph(data, sizes) if self.active and self.model.training else None
        if graph is None:
            return self.compute(data, sizes)[: sizes.sequences - SPARE]
        logits: Tensor = _Replay.apply(self._anchor, data, graph, self)  # type: ignore[no-untyped-call]
        return logits

    def compute(self, data: Tensor, sizes: BlockSizes) -> Tensor:
        """The logits of all sequences of a block, without a graph."""
        logits: Tensor = self.model(*open_block(data, sizes, self.rule, self.blocks))
        return logits

    def compute_apart(self, data: Tensor, sizes: BlockSizes) -> tuple[Tensor, list[Tensor]]:
        """The logits of all sequences, and the weights they were computed with: new tensors on the parameters' memory.

        As long as any batch's graph is alive, autograd remembers the stream on which a parameter's gradient is
        accumulated, and a recording needs its own stream.
        """
        weights = {
            name: parameter.detach().requires_grad_()
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }
        batch = open_block(data, sizes, self.rule, self.blocks)
        logits: Tensor = functional_call(self.model, weights, tuple(batch))
        return logits, list(weights.values())

    def clear_gradients(self) -> None:
        """Set the gradients to 0. Call it before each step."""
        self.gradients.clear()
        addresses = self._where()
        if addresses != self._addresses:  # the parameters have moved, so the graphs are out of date
            self.forget()
            self._addresses = addresses

    def forget(self) -> None:
        """Release the graphs and their memory; they may be recorded again."""
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

    def _graph(self, data: Tensor, sizes: BlockSizes) -> _Graph | None:
        if sizes in self._graphs:
            self._graphs.move_to_end(sizes)
            return self._graphs[sizes]
        if self.most is not None and sizes.tokens > self.most:
            return None
        self._seen[sizes] = self._seen.get(sizes, 0) + 1
        if self._seen[sizes] < self._needed:
            return None
        stream = torch.cuda.current_stream(data.device) if data.is_cuda else None
        try:
            if len(self._graphs) >= GRAPHS:
                torch.cuda.synchronize(data.device)  # it may still be running
                self._graphs.popitem(last=False)
                # Recording takes as long as many steps: with more sizes than graphs it must become rare.
                self._needed *= 2
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            graph = _Graph(self, data, sizes, self._pool)
        except Exception as error:
            if stream is not None:  # a recording that fails at its end does not restore the stream
                torch.cuda.set_stream(stream)
            self.active = False
            self.forget()
            torch.cuda.empty_cache()
            line = str(error).split("\n")[0]
            warnings.warn(f"training continues without CUDA graphs: {type(error).__name__}: {line}", stacklevel=2)
            return None
        self._seen[sizes] = 0  # if evicted, they have to occur often again
        self._graphs[sizes] = graph
        return graph


class _Graph:
    """The recorded forward and backward pass of batches of the same sizes."""

    def __init__(self, owner: GraphedEncoder, data: Tensor, sizes: BlockSizes, pool: Any):
        gradients = owner.gradients
        device = data.device
        self.real = sizes.sequences - SPARE
        self.block = data.clone()
        # Rows beyond the real ones stay 0: spare sequences have no gradient.
        self.grad = torch.zeros(sizes.sequences, owner.model.outputs, device=device)

        def forward() -> tuple[Tensor, list[Tensor]]:
            with torch.enable_grad(), _autocast_without_cache(device):
                return owner.compute_apart(self.block, sizes)

        def backward(logits: Tensor, weights: list[Tensor]) -> None:
            # As in eager training, where the backward pass runs outside autocast.
            with torch.autocast(device.type, enabled=False), torch.no_grad():
                computed = torch.autograd.grad(logits, weights, self.grad, materialize_grads=True)
                torch._foreach_add_(gradients.parts, computed)

        # One-time work, such as loading a kernel, must not happen in a recording. This run does not change the
        # gradients, because those of the logits are still 0.
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call,unused-ignore]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            backward(*forward())
        torch.cuda.current_stream(device).wait_stream(side)
        self.forward_graph, self.backward_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # With this mode, calls by other threads, such as those that monitor several GPUs, do not end the recording.
        with torch.cuda.graph(self.forward_graph, pool=pool, capture_error_mode="thread_local"):
            logits, weights = forward()
        with torch.cuda.graph(self.backward_graph, pool=pool, capture_error_mode="thread_local"):
            backward(logits, weights)
        # Kept, so that no other graph of the pool reuses its memory.
        self.logits = logits.detach()


class _Replay(torch.autograd.Function):
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
    """Autocast as it is now, without its cache, which would carry 16-bit weights from one step to the next."""
    return torch.autocast(
        device.type,
        torch.get_autocast_dtype(device.type),
        enabled=torch.is_autocast_enabled(device.type),
        cache_enabled=False,
    )
