"""``filter``: which negatives would a teacher take for relevant? Leaves the candidates without them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.names import find_model
from rankwell.papers.mini.options import FilterOptions
from rankwell.training.data.candidates import TrainingCandidates, write_candidates
from rankwell.training.data.teachers import Teacher, load_teachers
from rankwell.training.first_stage import find_encoder
from rankwell.training.options import FIRST_STAGE_ENCODER, RANKER
from rankwell.training.recipe import RecipeStage
from rankwell.training.stage import STAGES, TRAINING, StageKind, StageResult, Work, write_once
from rankwell.training.stages.shared import check_ranker, training_candidates


def check(work: Work, stage: RecipeStage[FilterOptions]) -> None:
    """Raise unless the teachers exist."""
    for name in stage.options.teachers:
        if name == RANKER:
            check_ranker(work, stage)
        elif name == FIRST_STAGE_ENCODER:
            find_encoder(work, stage, name)
        else:
            describe(find_model(name))


def _teacher(work: Work, stage: RecipeStage[FilterOptions], name: str) -> str:
    """The folder of a teacher that the recipe's stages have made; other names as they are."""
    if name == FIRST_STAGE_ENCODER:
        return str(find_encoder(work, stage, name))
    return str(work.model) if name == RANKER else name


def run(work: Work, stage: RecipeStage[FilterOptions], folder: Path) -> StageResult:
    """Drop unjudged candidates that teachers score above the relevant documents. Each query keeps a negative."""
    options = stage.options
    folder.mkdir(parents=True, exist_ok=True)
    candidates = training_candidates(work)
    by_id = {query.qid: query.text for query in work.data.train.queries}
    texts = [by_id[qid] for qid in candidates.qids]
    store = work.data.collection.store
    names = [_teacher(work, stage, name) for name in options.teachers]
    teachers = load_teachers(store, names, texts, options.teacher_length, work.device)
    scores = standard_scores(teachers, candidates)
    remaining = keep_below_relevant(candidates, scores, options.margin)
    path = folder / "candidates.run.gz"
    write_once(path, lambda: write_candidates(remaining, path))
    figures = {"unjudged": int(candidates.unjudged.sum()), "dropped": len(candidates) - len(remaining)}
    return StageResult(candidates=path, figures=figures)


def standard_scores(teachers: Sequence[Teacher], candidates: TrainingCandidates) -> NDArray[np.float32]:
    """The teachers' mean score of each candidate (C,), standardised within its query."""
    whole = np.zeros(len(candidates), np.float64)
    lengths = candidates.lengths
    for teacher in teachers:
        scores = teacher.scores(candidates.rows, candidates.documents[:, None])[:, 0].astype(np.float64)
        begins = candidates.ends - lengths
        means = np.add.reduceat(scores, begins) / lengths
        scores -= np.repeat(means, lengths)
        deviations = np.sqrt(np.add.reduceat(scores**2, begins) / lengths)
        whole += scores / np.repeat(np.where(deviations > 1e-6, deviations, np.inf), lengths)
    return (whole / len(teachers)).astype(np.float32)


def keep_below_relevant(
    candidates: TrainingCandidates, scores: NDArray[np.float32], margin: float
) -> TrainingCandidates:
    """The candidates without the unjudged ones scored above their query's best relevant one less ``margin``."""
    begins = candidates.ends - candidates.lengths
    best = np.maximum.reduceat(np.where(candidates.relevant, scores, -np.inf), begins)
    keep = ~candidates.unjudged | (scores <= np.repeat(best - margin, candidates.lengths))
    # A query that would lose its last negative keeps the lowest.
    empty = candidates.per_query(keep & ~candidates.relevant) == 0
    lowest = np.minimum.reduceat(np.where(candidates.relevant, np.inf, scores), begins)
    keep |= (
        np.repeat(empty, candidates.lengths) & ~candidates.relevant & (scores <= np.repeat(lowest, candidates.lengths))
    )
    return candidates.where(keep)


STAGES.register("filter")(StageKind(FilterOptions, run, check, reads=TRAINING - {"dev"}))
