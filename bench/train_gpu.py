"""Listwise training on one GPU: pairs a second and share of the bf16 matrix rate, beside sentence-transformers.

    PYTHONPATH=src python bench/train_gpu.py --out train_gpu.json
    TRITON_INTERPRET=1 PYTHONPATH=src python bench/train_gpu.py --smoke --out smoke.json  # any machine: does it run?

Models of three usual shapes with random weights train on lists of one relevant document and five others, 16 lists a
step, AdamW, bf16 with fp32 weights, dropout 0.1. Pairs have at most 180 tokens, some 140 in the mean. Ours begin as
stored tokens and go through the project's own task and step; the peer's CrossEncoderTrainer gets the same queries and
documents as texts, which is what it takes. Ours are measured as CUDA graphs, recorded beforehand, and without. Each
step prints what it found and writes ``--out`` anew; a step that fails is noted and the next one goes on; past
``--limit`` seconds what is left is skipped.

*share* is floating-point operations for real tokens over time, relative to an 8192³ bf16 product measured in the same
run: three times the forward pass, the last layer for ``[CLS]`` alone, as it is computed. *share_of_model* counts the
whole model. The gradient cache's second forward pass counts for neither.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from harness import make_parser
from rankwell.models import batch
from rerank_gpu_models import SHAPES, random_model
from rerank_gpu_steps import Bench, environment, matrix_rate
from train_gpu_peer import peer
from train_gpu_steps import (
    LISTS,
    correct,
    make_data,
    memory,
    placer,
    profile,
    some_pairs,
    train_speed,
)


def probe(bench: Bench) -> dict[str, Any]:
    """Whether the packed way back runs at all; where it does not, the rest is measured on the grid."""
    model = random_model(SHAPES["smoke"], bench.device).train()
    try:
        model(*placer(bench, model, "strm")(some_pairs(bench, 2, 0))).sum().backward()
        bench.wait()
    except Exception as error:
        bench.packed = False
        return {"packed": False, "failed": f"{type(error).__name__}: {error}"[:2000]}
    return {"packed": True}


def summary(bench: Bench, names: list[str]) -> dict[str, Any]:
    """The targets, each with what was measured; ``None`` where a step failed."""

    def get(*path: str) -> Any:
        value: Any = bench.results
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return value

    found: dict[str, Any] = {}
    least = {"minilm-l6": 4, "bert-base": 2}
    for name in names:
        own: dict[str, Any] = {}
        label = f"{name}: train", f"full, {LISTS} lists, graphs"
        speed = get(*label, "pairs_per_s")
        eager = get(label[0], f"full, {LISTS} lists, eager", "pairs_per_s")
        for kind in ("default", "best", "without_tokenising"):
            theirs = get(f"{name}: peer", kind)
            target = f" >= {least[name]}" if name in least and kind != "without_tokenising" else ""
            own[f"times CrossEncoderTrainer, {kind}{target}"] = round(speed / theirs, 2) if speed and theirs else None
        own["times eager"] = round(speed / eager, 2) if speed and eager else None
        own["share" + (" >= 0.4" if name == "bert-large" else "")] = get(*label, "share")
        held = get(f"{name}: memory")
        if isinstance(held, dict):
            own["peak_gb against negatives"] = {key: get(f"{name}: memory", key, "peak_gb") for key in held}
        found[name] = own
    return found


def main() -> None:
    """Run all steps."""
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("train_gpu.json"))
    parser.add_argument("--models", default="minilm-l6,bert-base,bert-large")
    parser.add_argument("--steps", default="", help="only the steps whose name has one of these words, a,b,…")
    parser.add_argument("--limit", type=float, default=480.0, help="seconds after which no step begins")
    parser.add_argument("--smoke", action="store_true", help="a tiny model and few pairs, to see that all steps run")
    options = parser.parse_args()
    bench = Bench(options.out, options.limit, options.smoke)
    # Without a GPU the kernels need Triton's interpreter.
    bench.packed = bench.gpu or os.environ.get("TRITON_INTERPRET") == "1"
    names = ["smoke"] if options.smoke else options.models.split(",")
    chosen = [word for word in options.steps.split(",") if word]
    if options.smoke:
        batch.LEAST = 32
    data = make_data(bench)

    def step(name: str, work: Callable[[], Any]) -> None:
        if not chosen or any(word in name for word in chosen):
            bench.step(name, work)

    bench.step("environment", lambda: environment(bench))
    bench.step("matrix_rate", lambda: matrix_rate(bench))
    if bench.packed:
        bench.step("probe", lambda: probe(bench))
    step("correct", lambda: correct(bench, SHAPES[names[0]]))
    steps: dict[str, Callable[[str], Any]] = {
        "train": lambda n: train_speed(bench, SHAPES[n], data),
        "peer": lambda n: peer(bench, SHAPES[n], data),
        "profile": lambda n: profile(bench, SHAPES[n], data),
        "memory": lambda n: memory(bench, SHAPES[n], data),
    }
    for kind, work in steps.items():
        for name in names:
            step(f"{name}: {kind}", lambda n=name, w=work: w(n))  # type: ignore[misc]
    bench.step("summary", lambda: summary(bench, names))


if __name__ == "__main__":
    torch.set_float32_matmul_precision("highest")
    main()
