"""Re-ranking on one GPU with models of other families than BERT, beside sentence-transformers' CrossEncoder.

    PYTHONPATH=src python bench/rerank_gpu_families.py --out families.json
    PYTHONPATH=src python bench/rerank_gpu_families.py --smoke --out smoke.json     # tiny sizes, any machine

ModernBERT and XLM-R of base size with random weights score pairs of up to 180 tokens, from text and from stored tokens.
CrossEncoder computes in bf16 on sorted pairs, with sdpa and, where it is installed, flash attention; the best of
several batch sizes counts. *share* is floating-point operations of the whole model for real tokens over time, relative
to an 8192³ bf16 product measured in the same run. The vocabulary is small: it changes the memory, not the speed.
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
from rankwell.sample import FOLDER
from rerank_gpu_peer import PEER_BATCHES
from rerank_gpu_steps import Bench, environment, matrix_rate

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
    },
}
PAIRS = 16_000


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
    parser.add_argument("--smoke", action="store_true", help="tiny models and few pairs, to see that all steps run")
    options = parser.parse_args()
    bench = Bench(options.out, options.limit, options.smoke)
    pairs = make_pairs(8 if options.smoke else PAIRS)
    bench.step("environment", lambda: environment(bench))
    bench.step("matrix_rate", lambda: matrix_rate(bench))
    with tempfile.TemporaryDirectory() as place:
        for kind, shape in SHAPES.items():
            folder = tiny.make(kind, Path(place) / kind, **({} if options.smoke else shape))
            own = bench.step(f"{kind}: rankwell", lambda f=folder, k=kind: ours(bench, f, k, pairs))  # type: ignore[misc]
            peer = bench.step(f"{kind}: CrossEncoder", lambda f=folder, k=kind: theirs(bench, f, k, pairs))  # type: ignore[misc]
            if "stored" in own and "best" in peer:
                ratios = {name: round(own[name]["pairs_per_s"] / peer["best"], 2) for name in ("text", "stored")}
                bench.step(f"{kind}: times CrossEncoder's best >= 2", lambda r=ratios: r)  # type: ignore[misc]


if __name__ == "__main__":
    main()
