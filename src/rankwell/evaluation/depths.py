"""How deep to re-rank: a re-ranker's figures where it is given only the best so many candidates of the first stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_text
from rankwell.corpus.records import Qrels, Ranking, Run
from rankwell.evaluation.compare import compare
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
            raise RankwellError(f"query {qid}: {first.name} does not have {min(stray)}, which {reranked.name} ranks")
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
        raise RankwellError(f"depths {text!r}: expected numbers with commas, such as 10,20,50,100") from None
    if depths[0] < 1:
        raise RankwellError(f"a depth of {depths[0]}; expected 1 or more")
    return depths


def write_depths(
    qrels: Qrels, first: Run, reranked: Run, measures: Iterable[str | Measure], depths: Sequence[int], out: Path
) -> Table:
    """The figures at each depth, compared with the deepest; ``depths.md`` has the table, ``depths.png`` the curve."""
    longest = max(map(len, reranked.values()), default=0)
    if depths[-1] > longest:
        raise RankwellError(f"a depth of {depths[-1]:,}: {reranked.name} has at most {longest:,} documents a query")
    runs = {f"{depth:,}": cut_candidates(reranked, first, depth) for depth in depths}
    comparison = compare(qrels, runs, measures, baseline=f"{depths[-1]:,}")
    made = comparison_table(comparison)
    table = replace(made, columns=("re-ranked", *made.columns[1:]))
    with atomic_text(out / "depths.md") as file:
        file.write(as_markdown(table) + "\n")
    measure = str(comparison.measures[0])
    values = np.stack([comparison.evaluations[name].per_query[measure] for name in runs])
    line = np.asarray(depths, np.float64), values
    draw_sweep({reranked.name: line}, out / "depths.png", option="candidates re-ranked", measure=measure)
    return table
