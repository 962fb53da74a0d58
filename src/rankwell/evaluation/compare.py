"""Compare runs on the same queries with one of them, the baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Run
from rankwell.corpus.sources import Source, resolve_qrels, resolve_run
from rankwell.evaluation.evaluate import Average, Evaluation, averaged_queries, evaluate_queries
from rankwell.evaluation.notation import Measure, parse_measures
from rankwell.evaluation.significance import TESTS, Interval, bootstrap_interval, differences, holm
from rankwell.evaluation.validate import refuse_errors


@dataclass(frozen=True, slots=True)
class Contrast:
    """How one run differs from the baseline in one measure.

    ``relative`` is the difference as a share of the baseline's figure, None where that is 0; ``corrected`` is the
    p-value after Holm's correction over all contrasts of the comparison; ``interval`` is the 95 % bootstrap interval of
    the difference.
    """

    run: str
    measure: str
    difference: float
    relative: float | None
    wins: int
    ties: int
    losses: int
    p: float
    corrected: float
    interval: Interval


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs compared with a baseline. ``contrasts`` are ordered by run, then by measure."""

    baseline: str
    test: str
    level: float
    evaluations: Mapping[str, Evaluation]
    contrasts: tuple[Contrast, ...]

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The measures in the given order."""
        return self.evaluations[self.baseline].measures

    @property
    def qids(self) -> tuple[str, ...]:
        """The compared queries."""
        return self.evaluations[self.baseline].qids

    @cached_property
    def mean(self) -> Mapping[str, Mapping[str, float]]:
        """The figure of a run and measure: ``comparison.mean["bm25"]["RR@10"]``."""
        return {name: evaluation.mean for name, evaluation in self.evaluations.items()}

    @cached_property
    def by_name(self) -> Mapping[tuple[str, str], Contrast]:
        """The contrast of a run and measure: ``comparison.by_name["mono", "RR@10"]``."""
        return {(contrast.run, contrast.measure): contrast for contrast in self.contrasts}

    def significant(self, run: str, measure: str) -> bool:
        """Whether the run differs from the baseline by more than chance, after correction."""
        contrast = self.by_name.get((run, measure))
        return contrast is not None and contrast.corrected < self.level

    def as_dict(self) -> dict[str, Any]:
        """The figures for a JSON file."""
        return {
            "baseline": self.baseline,
            "queries": len(self.qids),
            "test": self.test,
            "level": self.level,
            "mean": {name: dict(figures) for name, figures in self.mean.items()},
            "contrasts": [asdict(contrast) for contrast in self.contrasts],
        }


def names_of_runs(paths: Sequence[Path]) -> list[str]:
    """The names of runs in tables: file names, or whole paths if two files share a name.

    >>> names_of_runs([Path("a/bm25.run"), Path("b/bm25.run"), Path("b/mono.run")])
    ['a/bm25.run', 'b/bm25.run', 'mono.run']
    """
    names = [path.name for path in paths]
    return [str(path) if names.count(path.name) > 1 else path.name for path in paths]


def compare(
    qrels: Source,
    runs: Mapping[str, Source],
    measures: str | Iterable[str | Measure] = "RR@10 nDCG@10 AP",
    *,
    baseline: str | None = None,
    test: str = "t",
    average: Average = "qrels",
    level: float = 0.05,
) -> Comparison:
    """Compare ``runs`` with the ``baseline`` among them (by default the first).

    ``qrels`` and each run are records, files, or dicts by query and document.
    ``test`` is one of :data:`~rankwell.evaluation.significance.TESTS`. ``average="both"`` compares the queries with
    results in every run. Differences are per query; a query is a tie where the two values are equal.
    """
    if not runs:
        raise RankwellError("there is no run to compare")
    baseline = next(iter(runs)) if baseline is None else baseline
    if baseline not in runs:
        raise RankwellError(f"the baseline {baseline!r} is not among the runs ({', '.join(runs)})")
    TESTS[test]  # raises for an unknown name before any work
    qrels, runs = resolve_qrels(qrels), {name: Run(resolve_run(run), name=name) for name, run in runs.items()}
    for run in runs.values():
        refuse_errors(qrels, run)
    parsed = parse_measures(measures)
    qids = averaged_queries(qrels, runs.values(), average)
    evaluations = {name: evaluate_queries(qrels, run, parsed, qids) for name, run in runs.items()}
    return compare_evaluations(evaluations, baseline, test=test, level=level)


def compare_evaluations(
    evaluations: Mapping[str, Evaluation], baseline: str, *, test: str = "t", level: float = 0.05
) -> Comparison:
    """Like :func:`compare`, for existing figures of the same queries, such as means over seeds."""
    p_value, theirs = TESTS[test], evaluations[baseline]
    pairs = [(name, measure) for name in evaluations if name != baseline for measure in map(str, theirs.measures)]
    raw = [p_value(evaluations[name].per_query[measure], theirs.per_query[measure]) for name, measure in pairs]
    contrasts = [
        contrast(evaluations[name], theirs, name, measure, p, corrected)
        for (name, measure), p, corrected in zip(pairs, raw, holm(raw), strict=True)
    ]
    return Comparison(baseline, test, level, evaluations, tuple(contrasts))


def contrast(ours: Evaluation, theirs: Evaluation, run: str, measure: str, p: float, corrected: float) -> Contrast:
    """Compare one run's figures in one measure with the baseline's."""
    gaps = differences(ours.per_query[measure], theirs.per_query[measure])
    figure, reference = ours.mean[measure], theirs.mean[measure]
    interval = bootstrap_interval(ours.per_query[measure], theirs.per_query[measure])
    if any(m.summary == "sum" for m in ours.measures if str(m) == measure):
        interval = Interval(interval.low * len(gaps), interval.high * len(gaps))
    return Contrast(
        run=run,
        measure=measure,
        difference=figure - reference,
        relative=(figure - reference) / reference if reference else None,
        wins=int(np.count_nonzero(gaps > 0)),
        ties=int(np.count_nonzero(gaps == 0)),
        losses=int(np.count_nonzero(gaps < 0)),
        p=p,
        corrected=corrected,
        interval=interval,
    )
