"""How deep to re-rank: a re-ranker's figures where it is given only the best so many candidates of the first stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_text
from rankwell.corpus.records import Qrels, Ranking, Run
from rankwell.evaluation.compare import Comparison, compare
from rankwell.evaluation.notation import Measure
from rankwell.evaluation.sweep_plots import draw_sweep
from rankwell.evaluation.tables import Table, as_markdown, comparison_table


def cut_candidates(reranked: Run, first: Run, depth: int) -> Run:
    """What re-ranking only ``first``'s best ``depth`` would have given, by the scores that are there already.

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
            raise RankwellError(f"--depths needs a run that re-ranks {first.name}; {problem}")
        kept = set(candidates[:depth])
        places = [place for place, docid in enumerate(ranking.docids) if docid in kept]
        cut[qid] = Ranking(tuple(ranking.docids[place] for place in places), ranking.scores[places])
    return Run(cut, name=f"{depth:,}")


def parse_depths(text: str) -> tuple[int, ...]:
    """Depths, the smallest first.

    >>> parse_depths("100, 10,50")
    (10, 50, 100)
    """
    try:
        depths = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise RankwellError(f"--depths {text!r}: expected numbers with commas, such as 10,20,50,100") from None
    if depths[0] < 1:
        raise RankwellError(f"--depths {text!r}: a depth of {depths[0]}; expected 1 or more")
    return depths


def compare_depths(
    qrels: Qrels, first: Run, reranked: Run, measures: str | Iterable[str | Measure], depths: Sequence[int]
) -> Comparison:
    """The figures at each depth, which is what a run is called there, compared with the deepest."""
    longest = max(map(len, reranked.values()), default=0)
    if depths[-1] > longest:
        problem = f"a depth of {depths[-1]:,}: {reranked.name} has at most {longest:,} documents a query"
        raise RankwellError(f"--depths: {problem}")
    runs = {f"{depth:,}": cut_candidates(reranked, first, depth) for depth in depths}
    return compare(qrels, runs, measures, baseline=f"{depths[-1]:,}")


def write_depths(comparison: Comparison, run: str, out: Path) -> Table:
    """The figures of :func:`compare_depths`; ``depths.md`` has the table, ``depths.png`` the curve of ``run``."""
    made = comparison_table(comparison)
    table = replace(made, columns=("re-ranked", *made.columns[1:]))
    with atomic_text(out / "depths.md") as file:
        file.write(as_markdown(table) + "\n")
    measure = str(comparison.measures[0])
    depths = [float(name.replace(",", "")) for name in comparison.evaluations]
    values = np.stack([evaluation.per_query[measure] for evaluation in comparison.evaluations.values()])
    line = np.asarray(depths, np.float64), values
    draw_sweep({run: line}, out / "depths.png", option="candidates re-ranked", measure=measure)
    return table
