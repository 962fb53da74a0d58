"""Where a difference comes from: runs compared within groups of queries, and query by query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_text
from rankwell.corpus.records import Query, Run
from rankwell.evaluation.compare import Comparison, compare_evaluations
from rankwell.evaluation.evaluate import Evaluation
from rankwell.evaluation.notation import Measure
from rankwell.evaluation.significance import differences, holm
from rankwell.evaluation.tables import (
    TEST_NAMES,
    Cell,
    Table,
    as_markdown,
    comparison_table,
    contrast_table,
    figure_cell,
    mark,
    name_cell,
)

Groups = Mapping[str, frozenset[str]]
"""The queries of each group, by its name."""

LONGEST = 10


def length_groups(queries: Iterable[Query], longest: int = LONGEST) -> Groups:
    """Group queries by their number of words; ``longest`` and more are one group.

    >>> list(length_groups([Query("1", "what is it"), Query("2", "a b c d"), Query("3", "a b c d e")], longest=4))
    ['3', '4+']
    """
    by_length: dict[int, set[str]] = {}
    for query in queries:
        by_length.setdefault(min(len(query.text.split()), longest), set()).add(query.qid)
    return {f"{n}+" if n == longest else str(n): frozenset(by_length[n]) for n in sorted(by_length)}


def type_groups(types: Mapping[str, str]) -> Groups:
    """Group queries by type."""
    labels = sorted(set(types.values()))
    return {label: frozenset(qid for qid, type in types.items() if type == label) for label in labels}


def restrict(evaluation: Evaluation, qids: frozenset[str]) -> Evaluation:
    """The evaluation of some of the queries."""
    places = [place for place, qid in enumerate(evaluation.qids) if qid in qids]
    return replace(
        evaluation, qids=tuple(evaluation.qids[place] for place in places), values=evaluation.values[:, places]
    )


def break_down(comparison: Comparison, groups: Groups) -> dict[str, Comparison]:
    """Compare the runs within each group that has any of the queries.

    P-values are corrected over all groups and measures.
    """
    test, level = comparison.test, comparison.level
    comparisons: dict[str, Comparison] = {}
    for name, qids in groups.items():
        parts = {run: restrict(evaluation, qids) for run, evaluation in comparison.evaluations.items()}
        if parts[comparison.baseline].qids:
            comparisons[name] = compare_evaluations(parts, comparison.baseline, test=test, level=level)
    corrected = iter(holm([contrast.p for within in comparisons.values() for contrast in within.contrasts]))
    for name, within in comparisons.items():
        contrasts = tuple(replace(contrast, corrected=next(corrected)) for contrast in within.contrasts)
        comparisons[name] = replace(within, contrasts=contrasts)
    return comparisons


def breakdown_table(by: str, groups: Mapping[str, Comparison], measure: Measure) -> Table:
    """The comparisons of :func:`break_down`: a row for each run, a column for each group."""
    if not groups:
        raise RankwellError(f"no query belongs to a group by {by}")
    first = next(iter(groups.values()))
    best = {name: max(figures[str(measure)] for figures in within.mean.values()) for name, within in groups.items()}
    rows = []
    for run in first.evaluations:
        cells = [name_cell(run)]
        for name, within in groups.items():
            value = within.mean[run][str(measure)]
            cells.append(figure_cell(measure, value, mark(within, run, measure), value == best[name]))
        rows.append(tuple(cells))
    counts = tuple(Cell(len(within.qids), str(len(within.qids))) for within in groups.values())
    tests = sum(len(within.contrasts) for within in groups.values())
    note = (
        f"{measure} by {by}; * differs from {first.baseline} within the group at p < {first.level:g}: "
        f"{TEST_NAMES.get(first.test, first.test)}, two-sided, Holm-corrected over {tests} comparisons"
    )
    data = {name: within.as_dict() for name, within in groups.items()}
    return Table((by, *groups), ((name_cell("queries"), *counts), *rows), notes=(note,), data=data)


def query_differences(comparison: Comparison, run: str, measure: Measure) -> list[tuple[str, float]]:
    """Queries with their difference from the baseline, largest gain first; ties in query order."""
    ours, theirs = (comparison.evaluations[name].per_query[str(measure)] for name in (run, comparison.baseline))
    gaps = differences(ours, theirs)
    return [(comparison.qids[place], float(gaps[place])) for place in np.argsort(-gaps, kind="stable").tolist()]


def write_analysis(comparison: Comparison, groups: Mapping[str, Groups], out: Path) -> list[Table]:
    """Write where the runs' differences from the baseline come from, in the first measure, and return the tables.

    ``analysis.md`` holds the tables. Each run has a file of differences by query (:func:`differences_file`), largest
    gain first.
    """
    measure = comparison.measures[0]
    tables = [comparison_table(comparison), contrast_table(comparison)]
    tables += [breakdown_table(by, break_down(comparison, members), measure) for by, members in groups.items()]
    with atomic_text(out / "analysis.md") as file:
        file.write("\n\n".join(map(as_markdown, tables)) + "\n")
    for run in comparison.evaluations:
        if run == comparison.baseline:
            continue
        with atomic_text(out / differences_file(run)) as file:
            file.writelines(f"{qid}\t{gap:g}\n" for qid, gap in query_differences(comparison, run, measure))
    return tables


def differences_file(run: str) -> str:
    """The name of a run's file of differences; slashes become underscores.

    >>> differences_file("ours/x.run")
    'differences.ours_x.run.tsv'
    """
    return f"differences.{run.strip('/').replace('/', '_')}.tsv"


# How deep to re-rank


def cut_candidates(reranked: Run, first: Run, depth: int) -> Run:
    """The run that re-ranking only the top ``depth`` of ``first`` would have given, from the same scores.

    >>> first = Run.from_scores({"q": {"a": 3.0, "b": 2.0, "c": 1.0}})
    >>> reranked = Run.from_scores({"q": {"c": 0.9, "b": 0.8, "a": 0.1}})
    >>> cut_candidates(reranked, first, 2)["q"].docids
    ('b', 'a')
    """
    top = {qid: set(ranking.docids) for qid, ranking in first.head(depth).items()}
    kept = {qid: ranking.select(top.get(qid, set()).__contains__) for qid, ranking in reranked.items()}
    return Run(kept, name=f"{depth:,}")
