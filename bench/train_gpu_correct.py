"""The steps of ``train_gpu.py`` that compare gradients: of both layouts, with dropout, and of recorded steps."""

from __future__ import annotations

import time
import traceback
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankwell.inputs.batching import Sequences
from rankwell.models import graphs
from rankwell.models.encoder import CrossEncoder
from rankwell.models.graphs import GraphedEncoder
from rankwell.models.placing import BlockPlacer, Placer, packed_blocks
from rankwell.models.shape import AttentionRule, EncoderConfig
from rerank_gpu_models import random_model
from rerank_gpu_steps import Bench
from train_gpu_steps import (
    RULES,
    Data,
    Training,
    computing,
    make_lists,
    make_task,
    negatives_of,
    placer,
    some_pairs,
)


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


def dropout(bench: Bench, config: EncoderConfig) -> dict[str, Any]:
    """With dropout, packed, fp32: the slope along the gradient against the gradient's length, which agree only if both
    ways drop the same; the same seed twice; and how much the scores of two seeds differ.
    """
    pairs = some_pairs(bench, 48, seed=12)
    size = 1 + negatives_of(bench)
    model = random_model(config, bench.device).train()
    place = placer(bench, model, "strm")

    def loss(seed: int) -> Tensor:
        torch.manual_seed(seed)
        scores = model(*place(pairs))[:, 0].view(-1, size)
        value: Tensor = (torch.logsumexp(scores, 1) - scores[:, 0]).mean()
        return value

    parameters = list(model.parameters())
    slopes = torch.autograd.grad(loss(1), parameters)
    again = torch.autograd.grad(loss(1), parameters)
    length = float(torch.stack([slope.double().square().sum() for slope in slopes]).sum().sqrt())
    values = []
    for side in (1, -1):
        reach = side * 2e-3 / length
        with torch.no_grad():
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter.add_(slope, alpha=reach)
            values.append(float(loss(1).double()))
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter.sub_(slope, alpha=reach)
    measured = (values[0] - values[1]) / 4e-3
    same = max(float((a - b).abs().max() / (a.abs().max() + 1e-30)) for a, b in zip(slopes, again, strict=True))
    with torch.no_grad():
        losses = [float(loss(seed)) for seed in (1, 1, 2)]
    return {
        "slope_over_gradient": round(measured / length, 5),
        "largest_difference_of_a_replay": float(f"{same:.3g}"),
        "losses_of_seeds_1_1_2": [round(value, 5) for value in losses],
    }


def graph_correct(bench: Bench, config: EncoderConfig, data: Data) -> dict[str, Any]:
    """Recorded steps against the same steps computed as usual, with dropout and the same seeds: the gradient of three
    chunks, of which two have one form; the same after the weights have changed; some steps of training; and a step
    through the gradient cache.
    """
    found: dict[str, Any] = {}
    works = {"recording": _recording, "chunks": _graphed_chunks, "training": _graphed_training}
    for rule in RULES[1:2] if bench.smoke else RULES[:2]:
        for name, work in works.items():
            try:
                found[f"{rule}, {name}"] = work(bench, config, data, rule)
            except Exception:
                found[f"{rule}, {name}"] = traceback.format_exc()[-1500:]
    return found


def _recording(bench: Bench, config: EncoderConfig, data: Data, rule: AttentionRule) -> Any:
    """How long it takes; where it fails, which elsewhere is a warning, why."""
    model = random_model(config, bench.device).train()
    blocks = packed_blocks(model.encoder, rule)
    assert blocks is not None
    graphed = GraphedEncoder(model, rule, blocks)
    block, form = BlockPlacer(torch.device(bench.device), rule, blocks)(some_pairs(bench, 48, 21))
    if not bench.gpu:
        return "needs a GPU"
    begin = time.perf_counter()
    with computing(bench)():
        made = graphs._Graph(graphed, block, form, torch.cuda.graph_pool_handle())
    bench.wait()
    recorded = time.perf_counter()
    made.way_ahead.replay()
    made.way_back.replay()
    bench.wait()
    return {"seconds": round(recorded - begin, 3), "ms_of_a_replay": round((time.perf_counter() - recorded) * 1e3, 2)}


def _apart(found: Tensor, expected: Tensor) -> float:
    """The difference, relative to what is expected."""
    return float(f"{float((found.double() - expected.double()).norm() / expected.double().norm()):.3g}")


def _graphed_chunks(bench: Bench, config: EncoderConfig, data: Data, rule: AttentionRule) -> dict[str, Any]:
    size = 1 + negatives_of(bench)
    model = random_model(config, bench.device).train()
    blocks = packed_blocks(model.encoder, rule)
    assert blocks is not None
    graphed = GraphedEncoder(model, rule, blocks)
    filled = BlockPlacer(torch.device(bench.device), rule, blocks)
    plain = Placer(torch.device(bench.device), rule, blocks, seeded=True)
    pairs = [some_pairs(bench, 48, seed) for seed in (21, 22)]
    chunks = [pairs[0]] if bench.smoke else [*pairs, pairs[0]]
    short = computing(bench)

    def compute(seed: int, runs: Any = graphed, place: Placer = filled) -> tuple[Tensor, Tensor]:
        graphed.clear_gradients()
        losses = []
        for number, chunk in enumerate(chunks):
            torch.manual_seed(100 * seed + number)
            with short():
                scores = runs(*place(chunk))[:, 0].float().view(-1, size)
            loss = (torch.logsumexp(scores, 1) - scores[:, 0]).mean()
            loss.backward()
            losses.append(loss.detach())
        return graphed.gradients.flat.clone(), torch.stack(losses)

    gradient = cache(compute) if bench.smoke else compute  # once will do to see that it runs
    graphed.active = False
    eager, other, unfilled = gradient(1), gradient(2), gradient(1, model, plain)
    found: dict[str, Any] = {
        "two times eager": _apart(gradient(1)[0], eager[0]),
        "eager without filling": _apart(unfilled[0], eager[0]),
        "another seed": _apart(other[0], eager[0]),
    }
    graphed.active = bench.gpu
    for turn in range(0 if bench.smoke else 3):
        gradient(3 + turn)
    played = gradient(1)
    found |= {
        "graphs": graphed.recorded,
        "active": graphed.active,
        "graphs against eager": _apart(played[0], eager[0]),
        "losses of graphs against eager": _apart(played[1], eager[1]),
        "two times graphs": _apart(gradient(1)[0], played[0]),
        "another seed, graphs against eager": _apart(gradient(2)[0], other[0]),
    }
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    changed = gradient(1)
    graphed.active = False
    found["changed weights, graphs against eager"] = _apart(changed[0], gradient(1)[0])
    found["changed weights, against those before"] = _apart(changed[0], eager[0])
    return found


def _graphed_training(bench: Bench, config: EncoderConfig, data: Data, rule: AttentionRule) -> dict[str, Any]:
    steps, lists = (1, 1) if bench.smoke else (12, 8)
    drawn = make_lists(data, steps * lists, negatives_of(bench))
    whole, in_chunks = make_task(data, drawn), make_task(data, drawn, max_pairs=1 if bench.smoke else 12)

    def train(*, graphs: bool) -> tuple[Tensor, Tensor, Tensor, GraphedEncoder | None]:
        training = Training(bench, random_model(config, bench.device), in_chunks, rule, graphs=graphs)
        for _ in range(1 if bench.smoke else 2):
            training.backward(np.arange(lists))
        cached = torch.cat([own.grad.flatten() for own in training.parameters if own.grad is not None])
        training.task = whole
        losses = [training.step(np.arange(lists) + number * lists) for number in range(steps)]
        weights = torch.cat([own.detach().flatten() for own in training.parameters])
        return torch.stack(losses), weights, cached, training.graphed

    start = torch.cat([own.detach().flatten() for own in random_model(config, bench.device).parameters()])
    eager, played = train(graphs=False), train(graphs=True)
    again = eager if bench.smoke else train(graphs=False)
    assert played[3] is not None
    return {
        "graphs": played[3].recorded,
        "active": played[3].active,
        "losses, eager": [round(value, 4) for value in eager[0].tolist()],
        "losses, graphs": [round(value, 4) for value in played[0].tolist()],
        "steps taken, graphs against eager": _apart(played[1] - start, eager[1] - start),
        "steps taken, two times eager": _apart(again[1] - start, eager[1] - start),
        "gradient through the cache, graphs against eager": _apart(played[2], eager[2]),
    }
