"""Tunes fusions on judged queries: the shares of runs, or of a first stage and documents' windows.

The scores are computed once beforehand, so hundreds of settings are tried in a few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product

import numpy as np

from rankwell.core.arrays import Values
from rankwell.core.errors import RankwellError
from rankwell.core.progress import track
from rankwell.corpus.records import Qrels, Ranking, Run
from rankwell.evaluation.cross_validation import Tuned, check_folds
from rankwell.evaluation.notation import JudgedRanking, Measure, judge, parse_measure
from rankwell.inputs.windows import parse_aggregate
from rankwell.rank.fusion import AlignedScores, Alignment, Shares, fuse
from rankwell.rank.window_scores import WindowScores

WindowSetting = tuple[Shares, str]
"""Shares of the first stage and the model, and how the scores of a document's windows become its score."""


def share_grid(parts: Sequence[str], step: float = 0.1, normalise: str = "z-score") -> tuple[Shares, ...]:
    """All shares of ``parts`` that are multiples of ``step``, the first part's largest first.

    >>> [shares.model for shares in share_grid(["model", "first"], 0.5)]
    [1.0, 0.5, 0.0]
    """
    steps = round(1 / step) if 0 < step <= 1 else 0
    if abs(steps * step - 1) > 1e-9:
        raise RankwellError(f"a step of {step:g} between weights; expected 1, 0.5, 0.25, 0.1 or another 1/n")
    grid = [counts for counts in product(range(steps, -1, -1), repeat=len(parts)) if sum(counts) == steps]
    named = [dict(zip(parts, (count / steps for count in counts), strict=True)) for counts in grid]
    return tuple(Shares(**shares, normalise=normalise) for shares in named)


def tune_fusion(
    runs: Mapping[str, Run],
    qrels: Qrels,
    settings: Sequence[Shares],
    *,
    measure: str = "RR@10",
    folds: int = 5,
    seed: int = 0,
) -> Tuned[Shares]:
    """Choose the shares that rank best on judged queries.

    As in evaluation, a judged query that no run has counts 0. ``fuse(runs, tuned.setting_for)`` is the held-out run:
    each query is fused under the setting chosen without it.
    """
    parsed = parse_measure(measure)
    if set(qrels).isdisjoint(qid for run in runs.values() for qid in run):
        raise RankwellError("none of the runs' queries is judged in the qrels")
    check_folds(len(qrels), folds)
    values = _figures(runs, qrels, settings, parsed, track(list(qrels), "tuning", unit="queries"))
    return Tuned.choose(str(parsed), settings, list(qrels), values, folds=folds, seed=seed)


def _figures(
    runs: Mapping[str, Run], qrels: Qrels, settings: Sequence[Shares], measure: Measure, qids: Iterable[str]
) -> Values:
    """The figures of the fused runs (settings, queries)."""
    for shares in settings:
        shares.check_runs(list(runs))
    align = Alignment(runs)
    values = np.zeros((len(settings), len(qrels)))
    ranked = set(align.qids)
    for column, qid in enumerate(qids):
        if qid in ranked:
            values[:, column] = _figures_of_query(align(qid), qrels[qid], settings, measure)
    return values


def _figures_of_query(
    candidates: AlignedScores, grades: Mapping[str, int], settings: Sequence[Shares], measure: Measure
) -> list[float]:
    """One query's figure under each setting."""
    docids = candidates.docids(np.arange(candidates.scores.shape[1]))
    # By descending id, so that a stable sort by score leaves equal scores in the order of rankings.
    by_id = np.array(sorted(range(len(docids)), key=docids.__getitem__, reverse=True), np.int64)
    judged, figure = judge([docids[column] for column in by_id], grades), measure.function()
    depth = measure.cutoff if isinstance(measure.cutoff, int) else None
    figures = []
    for setting in settings:
        scores = setting.combine(candidates).astype(np.float32)
        if np.isnan(scores).any():
            raise RankwellError(f"document {docids[int(np.isnan(scores).argmax())]} has the score NaN")
        scores, places = scores[by_id], np.arange(len(docids))
        if depth is not None and depth < len(places):
            places = np.flatnonzero(scores >= np.partition(scores, -depth)[-depth])
        places = places[np.argsort(-scores[places], kind="stable")][:depth]
        figures.append(figure(JudgedRanking(judged.grades[places], judged.judged)))
    return figures


def weight_grid(n: int, step: float = 0.1) -> tuple[str, ...]:
    """All weights of the ``n`` best windows that are multiples of ``step`` and sum to 1, the first above 0.

    >>> weight_grid(2, 0.25)
    ('top2:0.25,0.75', 'top2:0.5,0.5', 'top2:0.75,0.25', 'top2:1,0')
    """
    parts = round(1 / step)
    if n < 1 or not 1 <= parts <= 100 or abs(parts * step - 1) > 1e-9:
        raise RankwellError(f"weights of {n} windows by {step:g}: expected at least 1 window and a step that divides 1")
    return tuple(
        f"top{n}:" + ",".join(f"{weight / parts:g}" for weight in (*weights, parts - sum(weights)))
        for weights in product(range(parts + 1), repeat=n - 1)
        if sum(weights) <= parts and (weights or (parts,))[0] > 0
    )


def window_grid(
    first: Iterable[float], aggregates: Iterable[str], normalise: str = "min-max"
) -> tuple[WindowSetting, ...]:
    """Every share of the first stage with every aggregate of windows."""
    grid = tuple(
        (Shares.beside_model(first=share, normalise=normalise), aggregate)
        for aggregate, share in product(dict.fromkeys(aggregates), first)
    )
    for _, aggregate in grid:
        parse_aggregate(aggregate)
    return grid


def fuse_windows(
    first: Run,
    windows: WindowScores,
    setting: WindowSetting | Callable[[str], WindowSetting],
    *,
    similarity: Run | None = None,
    name: str = "documents",
) -> Run:
    """Documents by the first stage, their windows and a bi-encoder, under one setting or one for each query."""
    setting_of = {qid: setting(qid) if callable(setting) else setting for qid in windows.docids}
    shares_of = {qid: shares for qid, (shares, _) in setting_of.items()}
    fused = {
        aggregate: fuse(_window_runs(first, windows, aggregate, similarity), shares_of.__getitem__)
        for aggregate in dict.fromkeys(aggregate for _, aggregate in setting_of.values())
    }
    return Run({qid: fused[aggregate][qid] for qid, (_, aggregate) in setting_of.items()}, name=name)


def tune_windows(
    first: Run,
    windows: WindowScores,
    qrels: Qrels,
    settings: Sequence[WindowSetting],
    *,
    similarity: Run | None = None,
    measure: str = "RR@10",
    folds: int = 5,
    seed: int = 0,
) -> Tuned[WindowSetting]:
    """Choose the setting that ranks best on judged queries; those without candidates count 0.

    ``fuse_windows(first, windows, tuned.setting_for)`` is the held-out run.
    """
    if set(qrels).isdisjoint(windows.docids):
        raise RankwellError("none of the queries with scores of windows is judged in the qrels")
    parsed = parse_measure(measure)
    check_folds(len(qrels), folds)
    values = np.zeros((len(settings), len(qrels)))
    for aggregate in track(list(dict.fromkeys(aggregate for _, aggregate in settings)), "tuning", unit="aggregates"):
        rows = [row for row, (_, other) in enumerate(settings) if other == aggregate]
        shares = [settings[row][0] for row in rows]
        values[rows] = _figures(_window_runs(first, windows, aggregate, similarity), qrels, shares, parsed, qrels)
    return Tuned.choose(str(parsed), settings, list(qrels), values, folds=folds, seed=seed)


def _window_runs(first: Run, windows: WindowScores, aggregate: str, similarity: Run | None) -> dict[str, Run]:
    """The documents that have scores of windows, by their windows, by a bi-encoder and by the first stage."""
    if not len(windows):
        raise RankwellError("there are no scores of windows to fuse with a run")
    rankings = {}
    for qid, docids in windows.docids.items():
        scores = dict(first.get(qid, ()))
        if lacking := next((docid for docid in docids if docid not in scores), None):
            raise RankwellError(f"document {lacking!r} has scores of windows for query {qid!r}, but is not in the run")
        rankings[qid] = Ranking.of(docids, [scores[docid] for docid in docids])
    other = {} if similarity is None else {"similarity": similarity}
    return {"model": windows.run(aggregate), **other, "first": Run(rankings)}
