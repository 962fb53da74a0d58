"""The steps of ``train_gpu.py`` that measure rankwell."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rankwell.inputs.batching import Sequences, take_sequences
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.reader import Reader
from rankwell.inputs.templates import SpecialTokens, Template
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.batch import BlockPlacer, Placer, packed_blocks
from rankwell.models.cuda_graphs import GraphedEncoder
from rankwell.models.encoder import CrossEncoder
from rankwell.models.spec import AttentionRule, EncoderConfig
from rankwell.training.data.lists import Lists, TrainingSet
from rankwell.training.loop.list_task import RankingTask
from rankwell.training.loop.losses import make_loss
from rankwell.training.loop.optimiser import make_optimiser
from rankwell.training.loop.options import TrainingOptions
from rankwell.training.loop.task import Step
from rerank_gpu_models import CLS, LONGEST, SEP, flops, make_pairs, random_model, texts
from rerank_gpu_steps import Bench, kernel_times

RULES: tuple[AttentionRule, ...] = ("full", "strm", "strict")
LISTS = 16  # of a step
CATEGORIES = {  # part of a kernel's name → what it is; the first that fits
    "attention": ("_attend_kernel",),
    "attention, back": ("_query_gradient_kernel", "_key_value_gradient_kernel"),
    "attention of [CLS]": ("_attend_first_kernel", "_first_gradient_kernel"),
    "residual and norm": ("_add_norm_kernel",),
    "residual and norm, back": ("_add_norm_gradient_kernel",),
    "embeddings": ("_embed_norm",),
    "matrix products": ("gemm", "nvjet", "cutlass", "xmma", "cublas", "gemv", "splitk"),
    "gelu": ("Gelu", "gelu"),
    "optimiser": ("Adam", "adam", "multi_tensor", "lpnorm"),
    "sums": ("reduce_kernel",),
    "copies and casts": ("Memcpy", "Memset", "copy_kernel", "FillFunctor"),
}


@dataclass(frozen=True, eq=False)
class Data:
    """Queries and documents as pieces, and the same as texts."""

    queries: Pieces
    documents: Pieces
    query_texts: list[str]
    document_texts: list[str]

    def numbers(self, docids: Any) -> NDArray[np.int64]:
        """A document's id is its number."""
        return np.asarray(docids, np.int64)

    def lengths(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.documents.lengths()[numbers]

    def at(self, numbers: NDArray[np.int64]) -> Pieces:
        return self.documents.take(numbers)


def some_pairs(bench: Bench, count: int, seed: int) -> Sequences:
    """Pairs of 32 to 180 tokens; for Triton's interpreter, which takes its time, a few of the shortest."""
    if not bench.smoke:
        return make_pairs(count, seed)
    drawn = make_pairs(4000, seed)
    return take_sequences(drawn, np.argsort(drawn.lengths(), kind="stable")[:2])


def negatives_of(bench: Bench) -> int:
    """How many documents of a list are not relevant."""
    return 1 if bench.smoke else 5


def make_data(bench: Bench) -> Data:
    """Pairs taken apart: lists put them together anew, a little shorter or longer."""
    pairs = some_pairs(bench, 8192, seed=7)
    inner = ~np.isin(pairs.tokens, (CLS, SEP))
    owner = np.repeat(np.arange(len(pairs)), pairs.lengths())
    continues = np.concatenate([[False], ~pairs.last[:-1]])
    fields = []
    for segment in (0, 1):
        own = inner & (pairs.segments == segment)
        ends = np.cumsum(np.bincount(owner[own], minlength=len(pairs)))
        fields.append(Pieces.plain(pairs.tokens[own], continues[own], ends))
    written = texts(pairs)
    return Data(fields[0], fields[1], [query for query, _ in written], [document for _, document in written])


def make_lists(data: Data, count: int, negatives: int, seed: int = 0) -> Lists:
    """Lists of one relevant document and ``negatives`` others."""
    rng = np.random.default_rng(seed)
    documents = rng.integers(0, len(data.documents), (count, 1 + negatives))
    labels = np.zeros(documents.shape, np.float32)
    labels[:, 0] = 1
    return Lists(rng.integers(0, len(data.queries), count), documents, labels)


def make_task(data: Data, lists: Lists, max_pairs: int | None = None) -> RankingTask:
    task = RankingTask(
        # Candidates are what lists are drawn from; these are drawn.
        TrainingSet(data.queries, None, data, cast("Any", None)),
        lambda epoch: lists,
        make_loss("listwise"),
        # A reader lays pairs out with the special tokens alone; these texts are tokens already.
        Reader(
            cast("Tokenizer", SimpleNamespace(special=SpecialTokens(CLS, SEP), frame=None)),
            Template(max_length=LONGEST),
        ),
        max_pairs=max_pairs,
    )
    task.draw(0)
    return task


def computing(bench: Bench) -> Callable[[], AbstractContextManager[object]]:
    return partial(torch.autocast, "cuda", torch.bfloat16) if bench.gpu else nullcontext


def placer(bench: Bench, model: CrossEncoder, rule: AttentionRule, *, packed: bool = True) -> Placer:
    blocks = packed_blocks(model.encoder, rule) if packed and bench.packed else None
    return Placer(torch.device(bench.device), rule, blocks, seeded=True)


class Training:
    """The loop's step without its log, its checkpoints and its validation."""

    def __init__(
        self, bench: Bench, model: CrossEncoder, task: RankingTask, rule: AttentionRule, *, graphs: bool = False
    ):
        self.model, self.task, self.budget = model.train(), task, 1 << 18
        self.place, self.computing = placer(bench, model, rule), computing(bench)
        self.graphed: GraphedEncoder | None = None
        if graphs:
            assert self.place.blocks is not None
            self.graphed = GraphedEncoder(model, rule, self.place.blocks)
            self.place = BlockPlacer(self.place.device, rule, self.place.blocks)
        self.optimiser = make_optimiser(model, TrainingOptions(learning_rate=2e-5), torch.device(bench.device))
        self.parameters = list(model.parameters())
        self.number = 0

    def backward(self, items: NDArray[np.int64]) -> Tensor:
        """Leaves the gradient; returns the loss."""
        if self.graphed is None:
            self.optimiser.zero_grad(set_to_none=True)
        else:
            self.graphed.clear_gradients()
        step = Step(self.place, self.budget, self.number, self.computing, lambda loss: loss)
        return self.task.backward(self.graphed or self.model, items, slice(0, len(items)), step)["loss"]

    def step(self, items: NDArray[np.int64]) -> Tensor:
        self.number += 1
        loss = self.backward(items)
        if self.graphed is None:
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
        else:
            self.graphed.gradients.clip(1.0)
        self.optimiser.step()
        return loss

    def record(self, rounds: list[NDArray[np.int64]]) -> dict[str, Any]:
        """Go over the batches until there is a graph for the form of each."""
        if self.graphed is None:
            return {}
        begin, passes = time.perf_counter(), 0
        while passes < 4:
            before, passes = self.graphed.recorded, passes + 1
            for items in rounds:
                self.step(items)
            if passes > 2 and self.graphed.recorded == before:
                break
            if not self.graphed.active:
                break
        seconds = round(time.perf_counter() - begin, 2)
        return {"graphs": self.graphed.recorded, "active": self.graphed.active, "seconds_before": seconds}


def batches(count: int, lists: int) -> Iterator[NDArray[np.int64]]:
    for begin in range(0, count, lists):
        yield np.arange(begin, begin + lists)


def timed(
    bench: Bench, training: Training, lists: int, steps: int, warm: int
) -> tuple[float, NDArray[np.int64], dict[str, Any]]:
    """Seconds of ``steps`` steps after ``warm`` others, the lengths of the pairs in them, and how many graphs there are
    where there are graphs: they are recorded before, as in a run of many steps nearly all are.
    """
    chunks = list(batches((warm + steps) * lists, lists))
    for items in chunks[:warm]:
        training.step(items)
    recorded = training.record(chunks[warm:])
    bench.wait()
    begin = time.perf_counter()
    for items in chunks[warm:]:
        loss = training.step(items)
    bench.wait()
    seconds = time.perf_counter() - begin
    if not bool(torch.isfinite(loss)):
        raise RuntimeError(f"the loss is {float(loss)}")
    timed_lists = training.task.drawn(np.concatenate(chunks[warm:]))
    return seconds, training.task.lay_out(timed_lists).lengths(), recorded


def rates(bench: Bench, config: EncoderConfig, lengths: NDArray[np.int64], seconds: float) -> dict[str, float]:
    """Forward and backward are three times the forward; a second forward of the gradient cache does not count."""
    computed, whole = flops(config, lengths)
    return {
        "pairs_per_s": round(len(lengths) / seconds, 1),
        "share": round(3 * computed / seconds / bench.peak, 4),
        "share_of_model": round(3 * whole / seconds / bench.peak, 4),
        "mean_length": round(float(lengths.mean()), 1),
    }


def train_speed(bench: Bench, config: EncoderConfig, data: Data) -> dict[str, Any]:
    """Lists of 1 + 5, 16 a step as the peer has them; more a step for what the hardware can do. Each as CUDA graphs and
    without.
    """
    steps, warm = (1, 0) if bench.smoke else ({24: 12, 12: 30}.get(config.num_hidden_layers, 80), 4)
    found: dict[str, Any] = {}
    wanted: list[tuple[AttentionRule, int]] = [("full", LISTS), ("strm", LISTS), ("strm", 4 * LISTS)]
    if bench.smoke:
        wanted = [("strm", 1)]
    for graphs in (True, False) if bench.packed else (False,):
        for rule, lists in wanted:
            own = max(4, steps * LISTS // lists) if not bench.smoke else steps
            label = f"{rule}, {lists} lists, {'graphs' if graphs else 'eager'}"
            try:
                found[label] = _speed(bench, config, data, rule, lists, (own, warm), graphs)
            except Exception as error:
                found[label] = f"{type(error).__name__}: {error}"[:500]
    return found


def _speed(
    bench: Bench,
    config: EncoderConfig,
    data: Data,
    rule: AttentionRule,
    lists: int,
    steps_warm: tuple[int, int],
    graphs: bool,
) -> dict[str, Any]:
    steps, warm = steps_warm
    task = make_task(data, make_lists(data, (steps + warm) * lists, negatives_of(bench)))
    training = Training(bench, random_model(config, bench.device), task, rule, graphs=graphs)
    if bench.gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    seconds, lengths, recorded = timed(bench, training, lists, steps, warm)
    found: dict[str, Any] = rates(bench, config, lengths, seconds)
    found["ms_a_step"] = round(seconds / steps * 1e3, 2)
    if bench.gpu:
        found["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    return {**found, **recorded}


def memory(bench: Bench, config: EncoderConfig, data: Data) -> dict[str, Any]:
    """Longer and longer lists with the same bound on the pairs in memory; and without, where they fit."""
    found: dict[str, Any] = {}
    lists, bound = (1, 1) if bench.smoke else (LISTS, 6 * LISTS)
    plan = [(negatives, bound) for negatives in ((1,) if bench.smoke else (5, 15, 63))]
    for negatives, pairs in [*plan, *([] if bench.smoke else [(15, None)])]:
        steps, warm = (1, 0) if bench.smoke else (3, 2)
        task = make_task(data, make_lists(data, (steps + warm) * lists, negatives), pairs)
        training = Training(bench, random_model(config, bench.device), task, "strm", graphs=bench.packed)
        if bench.gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        seconds, lengths, recorded = timed(bench, training, lists, steps, warm)
        own: dict[str, Any] = {**rates(bench, config, lengths, seconds), **recorded}
        if bench.gpu:
            own["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 3)
        found[f"{negatives} negatives, {pairs or 'all'} pairs in memory"] = own
    return found


def gradients(
    model: CrossEncoder, place: Placer, sequences: Sequences, size: int, context: AbstractContextManager[object]
) -> dict[str, Tensor]:
    """The gradient of a listwise loss over lists of ``size``."""
    model.zero_grad(set_to_none=True)
    with context:
        scores = model(*place(sequences))[:, 0].float().view(-1, size)
    (torch.logsumexp(scores, 1) - scores[:, 0]).mean().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, Any]:
    total = sum(float(gradient.double().square().sum()) for gradient in expected.values())
    errors = {name: float((found[name].double() - expected[name].double()).square().sum()) for name in expected}
    own = {name: (errors[name] / max(1e-30, float(expected[name].double().square().sum()))) ** 0.5 for name in errors}
    # Some gradients are 0 but for rounding (the head's bias in a listwise loss), and their relative errors say nothing.
    told = [name for name in own if float(expected[name].double().square().sum()) > 1e-10 * total]
    worst = max(told, key=lambda name: own[name])
    return {
        "relative": float(f"{(sum(errors.values()) / total) ** 0.5:.3g}"),
        "worst": [worst, float(f"{own[worst]:.3g}")],
    }


def correct(bench: Bench, config: EncoderConfig) -> dict[str, Any]:
    """Gradients without dropout: packed against the grid in fp32, with the grid in bf16 as the measure of rounding."""
    pairs = some_pairs(bench, 96, seed=11)
    size = 1 + negatives_of(bench)
    model = random_model(config, bench.device).eval()
    short = computing(bench)
    found: dict[str, Any] = {}
    for rule in RULES[-1:] if bench.smoke else RULES:
        packed, grid = placer(bench, model, rule), placer(bench, model, rule, packed=False)
        exact = gradients(model, grid, pairs, size, nullcontext())
        found[f"{rule}, packed bf16"] = difference(gradients(model, packed, pairs, size, short()), exact)
        found[f"{rule}, grid bf16"] = difference(gradients(model, grid, pairs, size, short()), exact)
        found[f"{rule}, packed fp32"] = difference(gradients(model, packed, pairs, size, nullcontext()), exact)
    return found


def profile(bench: Bench, config: EncoderConfig, data: Data) -> dict[str, Any]:
    """Where a step's time goes, as shares of the wall time; what is left is an idle GPU."""
    found = {"eager": _profile(bench, config, data, graphs=False)}
    return {"graphs": _profile(bench, config, data, graphs=True), **found} if bench.packed else found


def _profile(bench: Bench, config: EncoderConfig, data: Data, *, graphs: bool) -> dict[str, Any]:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    steps, lists = (1, 1) if bench.smoke else (3, LISTS)
    task = make_task(data, make_lists(data, 3 * steps * lists, negatives_of(bench)))
    training = Training(bench, random_model(config, bench.device), task, "strm", graphs=graphs)
    rounds = list(batches(3 * steps * lists, lists))
    for items in rounds[:steps]:
        training.step(items)
    training.record(rounds)
    bench.wait()
    begin = time.perf_counter()
    for items in rounds[steps : 2 * steps]:
        training.step(items)
    issued = time.perf_counter() - begin
    bench.wait()
    wall = time.perf_counter() - begin
    with profiled(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.gpu else [])]) as trace:
        for items in rounds[2 * steps :]:
            training.step(items)
        bench.wait()
    kernels, shares, launches = kernel_times(trace, wall, CATEGORIES)
    top = sorted(kernels.items(), key=lambda item: -item[1])[:20]
    return {
        "ms_a_step": round(wall / steps * 1e3, 2),
        "ms_a_step_of_the_host": round(issued / steps * 1e3, 2),
        "kernels_a_step": launches // steps,
        "busy": round(sum(kernels.values()) / wall, 4),
        "shares": shares,
        "kernels_ms": {name[:100]: round(spent / steps * 1e3, 3) for name, spent in top},
    }
