"""The steps of ``rerank_gpu.py`` that measure rankwell."""

from __future__ import annotations

import json
import statistics
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import machine
from rankwell.inputs.batching import Sequences, take_sequences
from rankwell.models.encoder import CrossEncoder
from rankwell.models.spec import AttentionRule, EncoderConfig
from rankwell.rank.engines.torch_engine import TorchEngine
from rerank_gpu_models import flops, make_pairs, random_model

RULES: tuple[AttentionRule, ...] = ("full", "strm", "strict")
BUDGETS = (1 << 15, 1 << 16, 1 << 17, 1 << 18)
CATEGORIES = {  # part of a kernel's name → what it is
    "attention": ("_attend_kernel",),
    "attention of [CLS]": ("_attend_first_kernel",),
    "residual and norm": ("_add_norm_kernel",),
    "embeddings": ("_embed_norm_kernel",),
    "codes of the mask": ("_codes_kernel",),
    "matrix products": ("gemm", "nvjet", "cutlass", "xmma", "cublas", "gemv", "splitk"),
    "gelu": ("Gelu", "gelu"),
    "copies": ("Memcpy", "Memset", "copy_kernel"),
}


class Bench:
    """The results so far, and what all steps need."""

    def __init__(self, out: Path, limit: float, smoke: bool):
        self.out = out
        self.limit = limit
        self.smoke = smoke
        self.gpu = torch.cuda.is_available()
        self.device = "cuda" if self.gpu else "cpu"
        self.dtype = torch.bfloat16 if self.gpu else torch.float32
        self.packed = True
        self.begin = time.perf_counter()
        self.results: dict[str, Any] = {}

    def step(self, name: str, work: Callable[[], Any]) -> Any:
        """Do one step; a failure is a result too."""
        spent = time.perf_counter() - self.begin
        found: Any
        if spent > self.limit:
            found = {"skipped": f"after {spent:.0f} s"}
        else:
            try:
                found = work()
            except Exception as error:
                found = {"failed": f"{type(error).__name__}: {error}", "where": traceback.format_exc()[-2000:]}
            if self.gpu:
                torch.cuda.empty_cache()
        self.results[name] = found
        self.results["seconds"] = round(time.perf_counter() - self.begin, 1)
        self.out.write_text(json.dumps(self.results, indent=1) + "\n", encoding="utf-8")
        print(f"[{time.perf_counter() - self.begin:5.0f} s] {name}: {json.dumps(found)[:3000]}", flush=True)
        return found

    def wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], Any], repeats: int = 3, warm: int = 1) -> float:
        """The median time of ``work`` by the host's clock, its own waiting included."""
        times = []
        warm, repeats = (0, 1) if self.smoke else (warm, repeats)
        for turn in range(warm + repeats):
            self.wait()
            begin = time.perf_counter()
            work()
            self.wait()
            if turn >= warm:
                times.append(time.perf_counter() - begin)
        return statistics.median(times)

    @property
    def peak(self) -> float:
        """The measured matrix rate in operations a second; 1 where it could not be measured."""
        return float(self.results.get("matrix_rate", {}).get("tflops", 0)) * 1e12 or 1.0


def environment(bench: Bench) -> dict[str, Any]:
    packages = ("torch", "triton", "transformers", "sentence-transformers", "numpy", "numba")
    found: dict[str, Any] = {**machine(*packages), "device": bench.device}
    if bench.gpu:
        properties = torch.cuda.get_device_properties(0)
        found |= {"gpu": properties.name, "memory_gb": round(properties.total_memory / 1e9)}
        found["multiprocessors"] = properties.multi_processor_count
    return found


def matrix_rate(bench: Bench) -> dict[str, float]:
    size, many = (64, 2) if bench.smoke else (8192, 20)
    a, b = (torch.randn(size, size, device=bench.device).to(bench.dtype) for _ in range(2))
    seconds = bench.seconds(lambda: [a @ b for _ in range(many)], repeats=5) / many
    return {"tflops": round(2 * size**3 / seconds / 1e12, 3)}


def engine_for(bench: Bench, model: CrossEncoder, rule: AttentionRule, **options: Any) -> TorchEngine:
    options.setdefault("packed", bench.packed)
    return TorchEngine(model, rule, device=bench.device, dtype=options.pop("dtype", bench.dtype), **options)


def probe(bench: Bench, model: CrossEncoder) -> dict[str, Any]:
    """Whether the packed engine runs at all; where it does not, the rest is measured on the grid."""
    few = make_pairs(2)
    try:
        for rule in RULES:
            engine_for(bench, model, rule).logits(few)
    except Exception as error:
        bench.packed = False
        return {"packed": False, "failed": f"{type(error).__name__}: {error}"[:1000]}
    return {"packed": True}


def rates(bench: Bench, config: EncoderConfig, pairs: Sequences, seconds: float) -> dict[str, float]:
    computed, whole = flops(config, pairs.lengths())
    return {
        "pairs_per_s": round(len(pairs) / seconds, 1),
        "share": round(computed / seconds / bench.peak, 4),
        "share_of_model": round(whole / seconds / bench.peak, 4),
    }


def best_budget(bench: Bench, model: CrossEncoder, pairs: Sequences) -> dict[str, Any]:
    found: dict[str, Any] = {}
    config = model.encoder.config
    # Enough for several batches of the largest budget.
    part = take_sequences(pairs, np.arange(min(len(pairs), max(8_000, len(pairs) // 3))))
    for budget in (512, 1024) if bench.smoke else BUDGETS:
        engine = engine_for(bench, model, "strm", budget=budget)
        found[str(budget)] = rates(bench, config, part, bench.seconds(lambda e=engine: e.logits(part), repeats=2))  # type: ignore[misc]
    found["best"] = int(max((k for k in found), key=lambda k: found[k]["pairs_per_s"]))
    return found


def score(bench: Bench, model: CrossEncoder, pairs: Sequences, budget: int) -> dict[str, Any]:
    """Full attention, STRM and strict in turns, so that a warming chip meets all."""
    config = model.encoder.config
    engines = {rule: engine_for(bench, model, rule, budget=budget) for rule in RULES}
    times: dict[str, list[float]] = {rule: [] for rule in RULES}
    for rule in RULES:
        engines[rule].logits(take_sequences(pairs, np.arange(min(len(pairs), 2_000))))
    for _ in range(1 if bench.smoke else 3):
        for rule, engine in engines.items():
            times[rule].append(bench.seconds(lambda e=engine: e.logits(pairs), repeats=1, warm=0))  # type: ignore[misc]
    found: dict[str, Any] = {
        rule: rates(bench, config, pairs, statistics.median(taken)) for rule, taken in times.items()
    }
    for rule in ("strm", "strict"):
        found[f"{rule}_slower_by"] = round(statistics.median(times[rule]) / statistics.median(times["full"]) - 1, 4)
    return found


def correct(bench: Bench, model: CrossEncoder, pairs: Sequences) -> dict[str, Any]:
    """Scores of bf16 against the grid in fp32, relative to the scores' own spread."""
    some = take_sequences(pairs, np.arange(min(512, len(pairs))))
    exact_model = random_model(model.encoder.config, bench.device)  # the same weights, not yet rounded
    found: dict[str, Any] = {}
    scores: dict[str, Any] = {}
    for rule in RULES:
        exact = engine_for(bench, exact_model, rule, dtype=torch.float32, packed=False, budget=1 << 14).logits(some)
        scores[rule] = exact
        variants: dict[str, dict[str, Any]] = {"packed": {}, "grid": {"packed": False, "budget": 1 << 14}}
        for name, options in variants.items():
            ours = engine_for(bench, model, rule, **options).logits(some)
            found[f"{rule}, {name}"] = {
                "rms_over_spread": round(float(np.sqrt(np.mean((ours - exact) ** 2)) / exact.std()), 5),
                "max_difference": round(float(np.abs(ours - exact).max()), 5),
                "correlation": round(float(np.corrcoef(ours[:, 0], exact[:, 0])[0, 1]), 6),
            }
    found["spread"] = round(float(scores["full"].std()), 4)
    found["strm_is_not_full"] = round(
        float(np.sqrt(np.mean((scores["strm"] - scores["full"]) ** 2)) / scores["full"].std()), 4
    )
    return found


def profile(bench: Bench, model: CrossEncoder, pairs: Sequences, budget: int) -> dict[str, Any]:
    """Where the time goes: the kernels' times by kind, as shares of the wall time; what is left is an idle GPU."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    tokens = 4 * budget
    few = take_sequences(pairs, np.arange(max(1, int(np.searchsorted(pairs.ends, tokens)))))
    engine = engine_for(bench, model, "strm", budget=budget)
    engine.logits(few)
    bench.wait()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.gpu else [])]
    wall = bench.seconds(lambda: engine.logits(few), repeats=1)
    with profiled(activities=activities) as trace:
        engine.logits(few)
        bench.wait()
    kernels, shares, _ = kernel_times(trace, wall, CATEGORIES)
    top = sorted(kernels.items(), key=lambda item: -item[1])[:14]
    return {
        "wall_ms": round(wall * 1e3, 2),
        "shares": shares,
        "busy": round(sum(kernels.values()) / wall, 4),
        "kernels_ms": {name[:90]: round(spent * 1e3, 3) for name, spent in top},
    }


def kernel_times(
    trace: Any, wall: float, categories: Mapping[str, tuple[str, ...]]
) -> tuple[dict[str, float], dict[str, float], int]:
    """The seconds of each GPU kernel, the categories' shares of the wall time, and the number of launches."""
    kernels: dict[str, float] = {}
    launches = 0
    for event in trace.key_averages():
        spent = float(getattr(event, "self_device_time_total", 0) or 0)
        if spent > 0 and str(getattr(event, "device_type", "")).endswith("CUDA"):
            kernels[event.key] = kernels.get(event.key, 0.0) + spent * 1e-6
            launches += event.count
    shares = dict.fromkeys((*categories, "other"), 0.0)
    for kernel, spent in kernels.items():
        kind = next((name for name, parts in categories.items() if any(p in kernel for p in parts)), "other")
        shares[kind] += spent / wall
    return kernels, {name: round(share, 4) for name, share in shares.items()}, launches


def with_layout(bench: Bench, model: CrossEncoder, pairs: Sequences, budget: int) -> dict[str, Any]:
    """From stored queries and documents: laying the pairs out is timed too, while the GPU scores those before."""
    from rankwell.inputs.pieces import Pieces
    from rankwell.inputs.templates import SpecialTokens, Template, lay_out_pairs

    inner = pairs.tokens > 4
    owner = np.repeat(np.arange(len(pairs)), pairs.lengths())
    continues = np.concatenate([[False], ~pairs.last[:-1]])
    fields = {}
    for name, segment in (("query", 0), ("document", 1)):
        own = inner & (pairs.segments == segment)
        ends = np.cumsum(np.bincount(owner[own], minlength=len(pairs)))
        fields[name] = Pieces.plain(pairs.tokens[own], continues[own], ends)
    template, special = Template(max_length=180), SpecialTokens(2, 3)
    engine = engine_for(bench, model, "strm", budget=budget)
    chunk = 16 if bench.smoke else 8192

    def run() -> Any:
        pending = []
        for begin in range(0, len(pairs), chunk):
            rows = np.arange(begin, min(begin + chunk, len(pairs)))
            taken = {name: field.take(rows) for name, field in fields.items()}
            pending.append(engine.submit(lay_out_pairs(template, special, taken)))
        return np.concatenate([wait() for wait in pending])

    same = float(np.abs(run() - engine.logits(pairs)).max())
    found: dict[str, Any] = rates(bench, model.encoder.config, pairs, bench.seconds(run, repeats=2))
    return {**found, "difference": same}
