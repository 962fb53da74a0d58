"""How deep to re-rank: a re-ranker's figures if it were given only the first stage's top candidates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_text
from rankwell.corpus.records import Qrels, Ranking, Run
from rankwell.evaluation.compare import Comparison, compare
from rankwell.evaluation.notation import Measure
from rankwell.evaluation.tables import Table, as_markdown, comparison_table


def cut_candidates(reranked: Run, first: Run, depth: int) -> Run:
    """The run that re-ranking only the top ``depth`` of ``first`` would have given, from the same scores.

    >>> first = Run.from_scores({"q": {"a": 3.0, "b": 2.0, "c": 1.0}})
    >>> reranked = Run.from_scores({"q": {"c": 0.9, "b": 0.8, "a": 0.1}})
    >>> cut_candidates(reranked, first, 2)["q"].docids
    ('b', 'a')
    """
    cut: dict[str, Ranking] = {}
    for qid, ranking in reranked.items():
        candidates = first[qid].docids if qid in first else ()
        if stray := set(ranking.docids) - set(candidates):
            problem = f"query {qid}: {first.name} does not have {min(stray)}, which {reranked.name} ranks"
            raise RankwellError(f"{reranked.name} does not re-rank {first.name}; {problem}")
        cut[qid] = ranking.select(set(candidates[:depth]).__contains__)
    return Run(cut, name=f"{depth:,}")


def compare_depths(
    qrels: Qrels, first: Run, reranked: Run, measures: str | Iterable[str | Measure], depths: Sequence[int]
) -> Comparison:
    """Compare the figures at each depth with those at the last, the deepest; runs are named by their depth."""
    longest = max(map(len, reranked.values()), default=0)
    if depths[-1] > longest:
        raise RankwellError(f"depth {depths[-1]:,}: {reranked.name} has at most {longest:,} documents per query")
    runs = {f"{depth:,}": cut_candidates(reranked, first, depth) for depth in depths}
    return compare(qrels, runs, measures, baseline=f"{depths[-1]:,}")


def write_depths(comparison: Comparison, out: Path) -> Table:
    """Write the table of :func:`compare_depths` to ``depths.md`` and return it."""
    table = comparison_table(comparison)
    table = replace(table, columns=("re-ranked", *table.columns[1:]))
    with atomic_text(out / "depths.md") as file:
        file.write(as_markdown(table) + "\n")
    return table
