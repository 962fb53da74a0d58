"""Re-ranking on one GPU with models of other families than BERT, beside sentence-transformers' CrossEncoder.

    PYTHONPATH=src python bench/rerank_gpu_families.py --out families.json
    PYTHONPATH=src python bench/rerank_gpu_families.py --families modernbert --out modernbert.json
    PYTHONPATH=src python bench/rerank_gpu_families.py --smoke --out smoke.json     # tiny sizes, any machine

ModernBERT and XLM-R of base size with random weights score pairs of up to 180 tokens, from text and from stored tokens.
CrossEncoder computes in bf16 on sorted pairs, with sdpa and, where it is installed, flash attention; the best of
several batch sizes counts. *share* is floating-point operations of the whole model for real tokens over time, relative
to an 8192³ bf16 product measured in the same run. The vocabulary is small: it changes the memory, not the speed.

ModernBERT is also computed by transformers on padded batches: the scores of both ways are compared in fp32 and bf16, on
sequences that are longer than its window, and their speed with the best token budget of each.
"""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import tiny_models as tiny
from harness import make_parser
from rankwell import Ranker
from rankwell.inputs.batching import Sequences
from rankwell.models.devices import DTypeName
from rankwell.sample import FOLDER
from rerank_gpu_peer import PEER_BATCHES
from rerank_gpu_steps import Bench, environment, kernel_times, matrix_rate

LENGTH = 180
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
SHAPES: dict[str, dict[str, Any]] = {
    "xlm-roberta": BASE,
    "modernbert": {
        **BASE,
        "num_hidden_layers": 22,
        "intermediate_size": 1152,
        "local_attention": 128,
        "classifier_pooling": "mean",
        "initializer_range": 0.04,  # with tiny_models' wide weights, 22 layers would magnify any rounding
    },
}
PAIRS = 16_000
BUDGETS = (1 << 16, 1 << 18)
KERNELS = {
    "attention": ("_attend_kernel",),
    "rotary positions": ("_rotate_kernel",),
    "residual and norm": ("_add_then_norm_kernel",),
    "gated gelu": ("_gelu_gate_kernel",),
    "matrix products": ("gemm", "nvjet", "cutlass", "xmma", "cublas", "gemv", "splitk"),
}


def make_pairs(count: int) -> list[tuple[str, str]]:
    """A query with passages of the bundled sample, the longest first."""
    lines = (FOLDER / "collection.tsv").read_text(encoding="utf-8").splitlines()
    texts = [lines[number % len(lines)].partition("\t")[2] for number in range(count)]
    return [("how do bees keep warm in winter", text) for text in sorted(texts, key=len, reverse=True)]


def laid_out(ranker: Ranker, pairs: list[tuple[str, str]]) -> Sequences:
    """The pairs as stored tokens would be scored."""
    reader = ranker.reader
    queries = reader.encode_queries([pairs[0][0]]).take(np.zeros(len(pairs), np.int64))
    return reader.lay_out({"query": queries, "document": reader.encode([text for _, text in pairs])}).sequences


def operations(shape: dict[str, Any], kind: str, lengths: NDArray[np.int64]) -> float:
    """Floating-point operations of the whole model for real tokens; ModernBERT's inner layer is gated."""
    hidden, inner, layers = shape["hidden_size"], shape["intermediate_size"], shape["num_hidden_layers"]
    a_token = 2 * (4 * hidden**2 + (3 if kind == "modernbert" else 2) * hidden * inner)
    return float(layers * (a_token * lengths.sum() + 4 * hidden * (lengths**2).sum()))


def ours(bench: Bench, folder: Path, kind: str, pairs: list[tuple[str, str]]) -> dict[str, Any]:
    ranker = Ranker(folder, device=bench.device, windows=None, max_length=LENGTH)
    sequences = laid_out(ranker, pairs)
    work = operations(SHAPES[kind], kind, sequences.lengths())
    found: dict[str, Any] = {
        "precision": ranker.engine.precision,
        "tokens": round(float(sequences.lengths().mean()), 1),
    }
    for name, run in (("text", lambda: ranker.predict(pairs)), ("stored", lambda: ranker.engine.logits(sequences))):
        seconds = bench.seconds(run)
        found[name] = {"pairs_per_s": round(len(pairs) / seconds, 1), "share": round(work / seconds / bench.peak, 4)}
    return found


def two_ways(bench: Bench, folder: Path, kind: str, pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """Pairs a second from stored tokens, packed and by transformers, by token budget, and the best of both."""
    found: dict[str, Any] = {}
    sequences: Sequences | None = None
    for name, packed in (("packed", True), ("transformers", False)):
        if packed and not bench.gpu:
            continue
        for budget in (1 << 11,) if bench.smoke else BUDGETS:
            options = {"packed": packed, "budget": budget}
            ranker = Ranker(folder, device=bench.device, windows=None, max_length=LENGTH, engine=options)
            sequences = sequences or laid_out(ranker, pairs[::2])
            seconds = bench.seconds(lambda r=ranker, s=sequences: r.engine.logits(s), repeats=2)  # type: ignore[misc]
            share = operations(SHAPES[kind], kind, sequences.lengths()) / seconds / bench.peak
            rate = round(len(sequences) / seconds, 1)
            found[f"{name}, budget {budget}"] = {"pairs_per_s": rate, "share": round(share, 4)}
            del ranker
        rates = [found[key]["pairs_per_s"] for key in found if key.startswith(f"{name},")]
        found[f"best {name}"] = max(rates)
    if bench.gpu:
        found["packed over transformers >= 1.3"] = round(found["best packed"] / found["best transformers"], 2)
    return found


def agree(bench: Bench, folder: Path, pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """Scores of each way beside those of transformers in fp32, on sequences of up to 512 tokens."""
    chosen = pairs[:: max(1, len(pairs) // 256)]
    some = [(query, " ".join([text] * (number % 4 + 1))) for number, (query, text) in enumerate(chosen)]
    ways: dict[str, tuple[DTypeName, bool]] = {
        "transformers, fp32": ("fp32", False),
        "packed, fp32": ("fp32", True),
        "transformers, bf16": ("bf16", False),
        "packed, bf16": ("bf16", True),
    }
    found: dict[str, Any] = {}
    exact: Any = None
    for name, (precision, packed) in ways.items():
        if packed and not bench.gpu:
            continue
        options = {"packed": packed, "budget": 1 << 14}
        ranker = Ranker(folder, device=bench.device, windows=None, max_length=512, precision=precision, engine=options)
        sequences = laid_out(ranker, some)
        scores = ranker.engine.logits(sequences)[:, 0]
        if exact is None:
            exact = scores
            lengths = sequences.lengths()
            found |= {"pairs": len(some), "longest": int(lengths.max()), "spread": round(float(exact.std()), 4)}
        else:
            difference = float(np.abs(scores - exact).max())
            found[name] = {"max_difference": difference, "correlation": float(np.corrcoef(scores, exact)[0, 1])}
        found[f"{name}, scores"] = [round(float(score), 5) for score in scores[:4]]
    return found


def profile(bench: Bench, folder: Path, pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """The shares of the packed kernels in the time of some pairs."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    ranker = Ranker(folder, device=bench.device, windows=None, max_length=LENGTH, engine={"packed": True})
    sequences = laid_out(ranker, pairs[::4])
    wall = bench.seconds(lambda: ranker.engine.logits(sequences), repeats=1)
    with profiled(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        ranker.engine.logits(sequences)
        bench.wait()
    kernels, shares, launches = kernel_times(trace, wall, KERNELS)
    slowest = sorted(kernels.items(), key=lambda item: -item[1])[:14]
    times = {name[:80]: round(spent * 1e3, 3) for name, spent in slowest}
    return {"wall_ms": round(wall * 1e3, 2), "shares": shares, "launches": launches, "kernels_ms": times}


def theirs(bench: Bench, folder: Path, kind: str, pairs: list[tuple[str, str]]) -> dict[str, Any]:
    from sentence_transformers import CrossEncoder

    kernels = ["sdpa", *(["flash_attention_2"] if bench.gpu and find_spec("flash_attn") else [])]
    some = pairs[:: 1 if bench.smoke else 4]
    found: dict[str, Any] = {}
    for kernel in kernels:
        model = CrossEncoder(
            str(folder),
            device=bench.device,
            max_length=LENGTH,
            model_kwargs={"dtype": bench.dtype, "attn_implementation": kernel},
        )
        for size in (4,) if bench.smoke else PEER_BATCHES:

            def run(model: Any = model, size: int = size) -> Any:
                return model.predict(some, batch_size=size, activation_fn=torch.nn.Identity(), show_progress_bar=False)

            seconds = bench.seconds(run, repeats=1)
            found[f"{kernel}, batch {size}"] = round(len(some) / seconds, 1)
    return {**found, "best": max(found.values())}


def main() -> None:
    """Run all steps."""
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("rerank_gpu_families.json"))
    parser.add_argument("--limit", type=float, default=130.0, help="seconds after which no step begins")
    parser.add_argument("--families", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--smoke", action="store_true", help="tiny models and few pairs, to see that all steps run")
    options = parser.parse_args()
    bench = Bench(options.out, options.limit, options.smoke)
    pairs = make_pairs(8 if options.smoke else PAIRS)
    bench.step("environment", lambda: environment(bench))
    bench.step("matrix_rate", lambda: matrix_rate(bench))
    with tempfile.TemporaryDirectory() as place:
        for kind in options.families:
            folder = tiny.make(kind, Path(place) / kind, **({} if options.smoke else SHAPES[kind]))
            own = bench.step(f"{kind}: rankwell", lambda f=folder, k=kind: ours(bench, f, k, pairs))  # type: ignore[misc]
            peer = bench.step(f"{kind}: CrossEncoder", lambda f=folder, k=kind: theirs(bench, f, k, pairs))  # type: ignore[misc]
            if "stored" in own and "best" in peer:
                ratios = {name: round(own[name]["pairs_per_s"] / peer["best"], 2) for name in ("text", "stored")}
                bench.step(f"{kind}: times CrossEncoder's best >= 2", lambda r=ratios: r)  # type: ignore[misc]
            if kind == "modernbert":
                bench.step(f"{kind}: agreement", lambda f=folder: agree(bench, f, pairs))  # type: ignore[misc]
                bench.step(f"{kind}: two ways", lambda f=folder, k=kind: two_ways(bench, f, k, pairs))  # type: ignore[misc]
            if kind == "modernbert" and bench.gpu:
                bench.step(f"{kind}: profile", lambda f=folder: profile(bench, f, pairs))  # type: ignore[misc]


if __name__ == "__main__":
    main()
