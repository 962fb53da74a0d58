"""Re-ranking on one GPU: pairs a second and share of the bf16 matrix rate, beside sentence-transformers' CrossEncoder.

    PYTHONPATH=src python bench/rerank_gpu.py --out rerank_gpu.json
    PYTHONPATH=src python bench/rerank_gpu.py --smoke --out smoke.json     # tiny sizes, any machine: does it run?

Models of three usual shapes with random weights score the same made-up pairs of 32 to 180 tokens, 140 in the mean. A
time runs from stored tokens in the host's memory to scores in the host's memory. It needs torch, numpy and Triton; the
peer needs sentence-transformers. Each step prints what it found and writes ``--out`` anew; a step that fails is noted
and the next one goes on; past ``--limit`` seconds what is left is skipped.

*share* is floating-point operations computed for real tokens over time, relative to an 8192³ bf16 product measured in
the same run: the last layer counts for ``[CLS]`` alone, as it is computed. *share_of_model* counts the whole model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import make_parser
from rankwell.models.compute import GPU_BUDGET
from rerank_gpu_models import SHAPES, make_pairs, random_model
from rerank_gpu_peer import peer
from rerank_gpu_steps import (
    Bench,
    best_budget,
    correct,
    environment,
    matrix_rate,
    probe,
    profile,
    score,
    with_layout,
)

# Pairs of a timed run: two seconds or so on an H200.
PAIRS = {"bert-large": 12_000, "bert-base": 36_000, "minilm-l6": 200_000, "smoke": 4}


def summary(bench: Bench, names: list[str]) -> dict[str, Any]:
    """The targets, each with what was measured; ``None`` where a step failed."""

    def get(*path: str) -> Any:
        value: Any = bench.results
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return value

    found: dict[str, Any] = {}
    least = {"bert-large": ("share", 0.60), "bert-base": ("share", 0.50), "minilm-l6": ("pairs_per_s", 100_000)}
    for name in names:
        own: dict[str, Any] = {}
        if name in least:
            what, target = least[name]
            own[f"{what} (full, strm) >= {target}"] = [get(f"{name}: score", rule, what) for rule in ("full", "strm")]
        own["strm slower by <= 0.05"] = get(f"{name}: score", "strm_slower_by")
        speed = get(f"{name}: score", "full", "pairs_per_s")
        for label, target in (("default", 6), ("best", 2), ("best_without_tokenising", 2)):
            theirs = get(f"{name}: peer", label)
            own[f"times CrossEncoder, {label} >= {target}"] = round(speed / theirs, 2) if speed and theirs else None
        found[name] = own
    return found


def main() -> None:
    """Run all steps."""
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("rerank_gpu.json"))
    parser.add_argument("--models", default="minilm-l6,bert-base,bert-large")
    parser.add_argument("--limit", type=float, default=420.0, help="seconds after which no step begins")
    parser.add_argument("--smoke", action="store_true", help="a tiny model and few pairs, to see that all steps run")
    options = parser.parse_args()
    bench = Bench(options.out, options.limit, options.smoke)
    names = ["smoke"] if options.smoke else options.models.split(",")
    bench.step("environment", lambda: environment(bench))
    bench.step("matrix_rate", lambda: matrix_rate(bench))
    models, pairs, budgets = {}, {}, {}
    bench.step("probe", lambda: probe(bench, random_model(SHAPES["smoke"], bench.device)))
    for name in names:
        models[name] = random_model(SHAPES[name], bench.device).to(bench.dtype)
        pairs[name] = make_pairs(PAIRS[name])
        found = bench.step(f"{name}: budgets", lambda n=name: best_budget(bench, models[n], pairs[n]))  # type: ignore[misc]
        budgets[name] = found.get("best", GPU_BUDGET)
        bench.step(f"{name}: score", lambda n=name: score(bench, models[n], pairs[n], budgets[n]))  # type: ignore[misc]
    steps: dict[str, Callable[[str], Any]] = {
        "correct": lambda n: correct(bench, models[n], pairs[n]),
        "profile": lambda n: profile(bench, models[n], pairs[n], budgets[n]),
        "peer": lambda n: peer(bench, models[n], pairs[n]),
        "with layout": lambda n: with_layout(bench, models[n], pairs[n], budgets[n]),
    }
    for step, work in steps.items():
        for name in names:
            bench.step(f"{name}: {step}", lambda n=name, w=work: w(n))  # type: ignore[misc]
    bench.step("summary", lambda: summary(bench, names))


if __name__ == "__main__":
    main()
