"""What stages share that build an index of their own, in ``index``; they record the tuning of BM25 in ``bm25.json``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankwell.core.errors import RankwellError
from rankwell.core.manifest import write_json
from rankwell.corpus.records import Query
from rankwell.rank.first_stage import FirstStage
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.bm25_tuning import as_point
from rankwell.retrieve.index import Index
from rankwell.training.first_stage import check_held_out, tune_index
from rankwell.training.recipe import RecipeStage
from rankwell.training.stage import Work
from rankwell.training.stage_options.first_stages import TuningOptions

INDEX = "index"
TUNING = "bm25.json"
SHOWN = 20


def check_tuning(work: Work, stage: RecipeStage[TuningOptions]) -> None:
    """Check grid and measure, and that there are queries to tune with, for a stage that builds an index."""
    if work.recipe.first_stage.hybrid is not None:
        problem = "a stage that builds an index searches that index only"
        raise RankwellError(f"first_stage.hybrid: {problem}; leave it out")
    check_held_out(work, stage.options)


def tune_first_stage(
    work: Work, index: Index, queries: Sequence[Query], options: TuningOptions, folder: Path
) -> dict[str, Any]:
    """Tune BM25 for a stage's index and write ``bm25.json``; returns its figures and those of the plain collection."""
    tuning = tune_index(work, index, queries, options.measure, options)
    plain = tune_index(work, work.data.index, queries, options.measure, TuningOptions())
    write_json(folder / TUNING, tuning.as_dict(as_point))
    FirstStage(index, tuning.best).save(folder)
    means, default = dict(zip(tuning.settings, tuning.means, strict=True)), BM25()
    aside = f"{tuning.measure} of {len(queries)} queries set aside"
    return {
        **as_point(tuning.best),
        f"{aside}, tuned": means[tuning.best],
        f"{aside}, k1={default.k1} b={default.b}": means[default],
        f"{aside}, BM25 of counted terms, tuned": max(plain.means),
    }


def questions_of(work: Work, queries: Sequence[Query]) -> dict[str, tuple[str, ...]]:
    """Some documents that answer the queries, by id, each with its queries' texts: examples to show."""
    qrels, level = work.data.train.qrels, work.recipe.data.relevance
    questions: dict[str, tuple[str, ...]] = {}
    for query in queries:
        for docid, grade in qrels[query.qid].items():
            if grade >= level and (docid in questions or len(questions) < SHOWN):
                questions[docid] = (*questions.get(docid, ()), query.text)
    return questions
