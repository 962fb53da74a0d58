"""Tuning on judged queries, cross-validated: BM25's k1 and b, and the weight of titles.

Every point of a grid is searched once. What changes an index's terms needs another index, in a temporary folder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np

from rankwell.core.errors import RankwellError
from rankwell.core.progress import track
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.records import Qrels, Query, Run
from rankwell.evaluation.cross_validation import Tuned, check_folds
from rankwell.evaluation.evaluate import evaluate
from rankwell.evaluation.notation import parse_measure
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.description import stored_columns
from rankwell.retrieve.index import Index
from rankwell.retrieve.merging import live_documents


def parse_values(text: str) -> list[float]:
    """``0.3:0.9:0.3`` or ``0.3,0.6,0.9`` as numbers.

    >>> parse_values("0.3:0.9:0.3")
    [0.3, 0.6, 0.9]
    """
    try:
        if ":" not in text:
            return [float(part) for part in text.split(",")]
        first, last, step = (float(part) for part in text.split(":"))
        count = math.floor((last - first) / step + 1e-9) + 1
        if step <= 0 or not 1 <= count <= 1000:
            raise ValueError
        return [round(first + i * step, 10) for i in range(count)]
    except (ValueError, ArithmeticError):
        raise RankwellError(f"{text!r} is neither FIRST:LAST:STEP nor a list of numbers separated by commas") from None


def tune_bm25(
    index: Index,
    queries: Sequence[Query],
    qrels: Qrels,
    *,
    measure: str = "RR@10",
    k1: Sequence[float],
    b: Sequence[float],
    folds: int = 5,
    seed: int = 0,
    threads: int = 1,
) -> Tuned[BM25]:
    """Search the judged queries at every point of the grid; the default k1 and b are always among them."""
    parsed = parse_measure(measure)
    judged, wanted = _judged(queries, qrels)
    settings = list(dict.fromkeys([*(BM25(*point) for point in product(k1, b)), BM25()]))
    depth = min(1000, parsed.cutoff) if isinstance(parsed.cutoff, int) else 1000
    check_folds(len(judged), folds)
    rows = []
    for bm25 in track(settings, "tuning", unit="settings"):
        run = index.search(judged, bm25, k=depth, threads=threads)
        rows.append(evaluate(wanted, run, [parsed]).values[0])
    return Tuned.choose(str(parsed), settings, list(wanted), np.stack(rows), folds=folds, seed=seed)


def _judged(queries: Sequence[Query], qrels: Qrels) -> tuple[list[Query], Qrels]:
    """The queries that are judged, and their judgments."""
    judged = [query for query in queries if query.qid in qrels]
    if not judged:
        raise RankwellError("none of the queries is judged in the qrels")
    return judged, Qrels({query.qid: qrels[query.qid] for query in judged})


def other_analyzers(index: Index, title_weights: Sequence[float]) -> list[Analyzer]:
    """What to try instead of the index's analyser: weights of titles, if there are any.

    Nothing for an index without texts, or one of weighted or expanded texts.
    """
    stores, own = index.documents.stores, index.analyzer
    if not index.has_texts or index.manifest["config"]["weighted"] or index.manifest["config"]["expanded"]:
        return []
    weights = title_weights if any(store.has_titles for store in stores) else []
    return [own.changed(title_weight=weight) for weight in dict.fromkeys(weights) if weight != own.title_weight]


def built_with(index: Index, analyzer: Analyzer, folder: Path | None = None) -> Index:
    """The same documents with another analyser, in place of what ``folder`` has, or else a while and without texts."""
    documents = chain.from_iterable(map(live_documents, index.documents.stores))
    stays = folder is not None
    columns = stored_columns(index.folder)
    return Index.build(documents, folder, columns=columns, analyzer=analyzer, store=stays, overwrite=stays)


def choose_analyzer(
    index: Index,
    analyzers: Sequence[Analyzer],
    queries: Sequence[Query],
    qrels: Qrels,
    bm25: BM25,
    *,
    measure: str = "RR@10",
    k: int = 1000,
    folds: int = 5,
    seed: int = 0,
    threads: int = 1,
) -> tuple[Tuned[Analyzer], Run]:
    """Try other analysers beside the index's own; the run has each query's results with the one chosen without it."""
    judged, wanted = _judged(queries, qrels)
    runs = {}
    for analyzer in [index.analyzer, *analyzers]:
        built = index if analyzer == index.analyzer else built_with(index, analyzer)
        runs[analyzer] = built.search(judged, bm25, k=k, threads=threads)
    values = np.stack([evaluate(wanted, run, [measure]).values[0] for run in runs.values()])
    tuned = Tuned.choose(measure, list(runs), list(wanted), values, folds=folds, seed=seed)
    found = {qid: runs[tuned.setting_for(qid)].get(qid) for qid in wanted}
    return tuned, Run({qid: ranking for qid, ranking in found.items() if ranking is not None}, name="BM25")


def build_options(analyzer: Analyzer) -> str:
    """The options of ``rankwell index`` that are tuned."""
    return f"--weight title={analyzer.title_weight:g}"


def grid_table(tuned: Tuned[BM25]) -> str:
    """The figures as text, k1 down and b across, with those of the best and the default values."""
    table = tuned.table("k1 (down) and b (across)", lambda bm25: bm25.k1, lambda bm25: bm25.b, _options)
    if BM25() in tuned.settings:
        table += f"\ndefault: {_options(BM25())}, {tuned.means[tuned.settings.index(BM25())]:.4f}"
    return table


def _options(bm25: BM25) -> str:
    return f"--k1 {bm25.k1:g} --b {bm25.b:g}"


def as_point(bm25: BM25) -> dict[str, Any]:
    """k1 and b for a JSON file."""
    return {"k1": bm25.k1, "b": bm25.b}
