"""Evaluate one run: a value for each measure and query, and one figure for each measure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from rankwell.core.arrays import Values
from rankwell.core.errors import RankwellError
from rankwell.core.progress import track
from rankwell.corpus.records import Qrels, Run, html_table
from rankwell.corpus.sources import Source, resolve_qrels, resolve_run
from rankwell.evaluation.notation import Measure, judge, parse_measures
from rankwell.evaluation.validate import refuse_errors

Average = Literal["qrels", "both"]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The figures of one run. ``values[i, j]`` is that of ``measures[i]`` on the query ``qids[j]``."""

    run: str
    qids: tuple[str, ...]
    measures: tuple[Measure, ...]
    values: Values

    @cached_property
    def per_query(self) -> Mapping[str, Values]:
        """The values of a measure, by its notation, aligned with ``qids``."""
        return {str(measure): values for measure, values in zip(self.measures, self.values, strict=True)}

    @cached_property
    def mean(self) -> Mapping[str, float]:
        """The figure of each measure, by its notation: the mean over queries, or the sum for counts."""
        rows = zip(self.measures, self.values, strict=True)
        return {str(m): float(values.sum() if m.summary == "sum" else values.mean()) for m, values in rows}

    def as_dict(self, *, per_query: bool = False) -> dict[str, Any]:
        """The figures for a JSON file."""
        figures: dict[str, Any] = {"run": self.run, "queries": len(self.qids), "mean": dict(self.mean)}
        if per_query:
            names = [str(measure) for measure in self.measures]
            rows = self.values.T.tolist()
            figures["per_query"] = {
                qid: dict(zip(names, row, strict=True)) for qid, row in zip(self.qids, rows, strict=True)
            }
        return figures

    def __repr__(self) -> str:
        figures = ", ".join(f"{name} {value:.4f}" for name, value in self.mean.items())
        return f"Evaluation({self.run!r}, {len(self.qids):,} queries: {figures})"

    def _repr_html_(self) -> str:
        rows = ((name, f"{value:.4f}") for name, value in self.mean.items())
        return html_table(f"{self.run}: {len(self.qids):,} queries", ("measure", "mean"), rows)


def averaged_queries(qrels: Qrels, runs: Iterable[Run], average: Average) -> tuple[str, ...]:
    """The queries to average over: all judged ones, or only those that every run has results for."""
    if average == "qrels":
        return tuple(qrels)
    if average != "both":
        raise RankwellError(f"no way of averaging is called {average!r} (known: qrels, both)")
    runs = tuple(runs)
    common = tuple(qid for qid in qrels if all(run.get(qid) for run in runs))
    if not common:
        raise RankwellError("no judged query has results in every run")
    return common


def evaluate(
    qrels: Source,
    run: Source,
    measures: str | Iterable[str | Measure] = "RR@10 nDCG@10 AP",
    *,
    average: Average = "qrels",
    ignore_identical_ids: bool = False,
) -> Evaluation:
    """Evaluate ``run`` against ``qrels``; both are records, files, or dicts by query and document.

    The mean is over all queries of the judgments, and those without results count 0 (trec_eval -c). With
    ``average="both"`` it is over the queries that also have results (trec_eval's default). Queries that only the run
    has are left out; :func:`rankwell.evaluation.validate.validate` reports them. ``ignore_identical_ids`` leaves out
    documents with the id of their query, as BEIR does.

    >>> qrels = {"q1": {"a": 1}, "q2": {"b": 1}}
    >>> run = {"q1": {"x": 2.0, "a": 1.0}}
    >>> evaluate(qrels, run, "RR@10").mean
    {'RR@10': 0.25}
    >>> evaluate(qrels, run, "RR@10", average="both").mean
    {'RR@10': 0.5}
    """
    qrels, run = resolve_qrels(qrels), resolve_run(run)
    if ignore_identical_ids:
        run = run.without_identical_ids()
    refuse_errors(qrels, run)
    return evaluate_queries(qrels, run, parse_measures(measures), averaged_queries(qrels, [run], average))


def evaluate_queries(qrels: Qrels, run: Run, measures: tuple[Measure, ...], qids: tuple[str, ...]) -> Evaluation:
    """Evaluate ``run`` on exactly the judged queries ``qids``."""
    functions = [measure.function() for measure in measures]
    values = np.empty((len(qids), len(functions)))
    for row, qid in zip(values, track(qids, "evaluating", unit="queries"), strict=True):
        ranking = judge(run[qid].docids if qid in run else (), qrels[qid])
        row[:] = [function(ranking) for function in functions]
    return Evaluation(run.name, qids, measures, np.ascontiguousarray(values.T))
