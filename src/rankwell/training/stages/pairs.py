"""What stages that learn vectors from pairs (``encoder``, ``adapter``) share: options, pairs, validation and tuning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Qrels, Query, Ranking, Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.evaluation.notation import parse_measures
from rankwell.inputs.stored import StoredTokens
from rankwell.models.bi_encoder import Vectors
from rankwell.models.devices import Computing
from rankwell.rank.dense import tune_hybrid
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.tuning import share_grid
from rankwell.training.data.sampling import Lists, Plan, RelevantDocuments, draw, find_copies
from rankwell.training.first_stage import check_held_out, current_first_stage, tune_index, tuning_of
from rankwell.training.loop.contrastive import PairTask
from rankwell.training.loop.loop import train
from rankwell.training.recipe import RecipeStage
from rankwell.training.recipe_results import measure_of
from rankwell.training.stage import StageResult, Work, process_number, stage_kinds
from rankwell.training.stage_options.first_stages import PairOptions
from rankwell.training.stage_options.ranking import ListOptions
from rankwell.training.stages.shared import training_candidates

POOL_DEPTH = 20
"""Validation ranks the relevant documents of the queries set aside and this many candidates of each."""
RANKED = 100


@dataclass(frozen=True, eq=False)
class TrainingPairs:
    """The pairs of an epoch, as lists that begin with the relevant document; list ``i`` is of ``qids[queries[i]]``."""

    texts: tuple[str, ...]
    draw: Callable[[int], Lists]
    relevant: RelevantDocuments


def check_pairs(work: Work, stage: RecipeStage[PairOptions]) -> None:
    """Check grids and measures, that queries can be set aside, and that documents' texts are at hand."""
    options = stage.options
    check_held_out(work, options)
    share_grid(("first", "similarity"), options.step)
    if options.best != "last":
        parse_measures([options.best])
    for earlier in work.recipe.before(stage):
        if stage_kinds()[earlier.kind].builds_index:
            raise RankwellError(f"{stage.path}: the index of {earlier.path} has no texts, so it cannot have vectors")
    if options.negatives and work.candidates is None:
        training_candidates(work, ListOptions(depth=options.depth, found_only=False))


def training_pairs(
    work: Work, options: PairOptions, queries: Sequence[Query], documents: StoredTokens
) -> TrainingPairs:
    """The pairs of these queries, and their further negatives if the options ask for some."""
    text_of = {query.qid: query.text for query in queries if query.text.strip()}
    split, level = work.data.train, work.recipe.data.relevance
    if not options.negatives:
        relevant = RelevantDocuments.of(tuple(text_of), split.qrels, documents, level)
        pairs = relevant.pairs()
        return TrainingPairs(tuple(text_of.values()), lambda epoch: pairs, relevant)
    candidates = training_candidates(work, ListOptions(depth=options.depth, found_only=False))
    rows = [row for row, qid in enumerate(candidates.qids) if qid in text_of]
    candidates = candidates.take(np.array(rows, np.int64))
    relevant = RelevantDocuments.of(candidates.qids, split.qrels, documents, level)
    copies = find_copies(np.concatenate([relevant.documents, candidates.documents]), documents)
    relevant = replace(relevant, copy_of=copies)
    lists = partial(draw, candidates, Plan(1, options.negatives), work.seed)
    return TrainingPairs(tuple(text_of[qid] for qid in candidates.qids), lists, relevant)


def pool_of(work: Work, queries: Sequence[Query]) -> list[str]:
    """The documents that validation ranks: the queries' relevant ones and the best of their candidates."""
    split, pool = work.data.train, dict[str, None]()
    for query in queries:
        pool |= dict.fromkeys(split.qrels.get(query.qid, {}))
        if query.qid in split.run:
            pool |= dict.fromkeys(split.run[query.qid].docids[:POOL_DEPTH])
    return list(pool)


def fit_first_stage(
    work: Work,
    stage: RecipeStage[PairOptions],
    folder: Path,
    model: nn.Module,
    task: PairTask,
    queries: Sequence[Query],
    docids: Sequence[str],
    encode: Callable[[nn.Module], tuple[Vectors, Vectors]],
    save: Callable[[Path], None],
) -> StageResult:
    """Train a model of vectors, then tune BM25 and its share on the ``queries`` set aside, in one process of several.

    ``encode`` gives the vectors of these queries and of the documents ``docids`` (:func:`pool_of`), to validate with.
    """
    options = stage.options
    qrels = Qrels({query.qid: work.data.train.qrels[query.qid] for query in queries})

    def validate(model: nn.Module) -> Mapping[str, float]:
        """The queries set aside find their documents among a sample of all."""
        vectors, pool = encode(model)
        rankings = {}
        for query, row in zip(queries, vectors @ pool.T, strict=True):
            best = np.argsort(-row, kind="stable")[:RANKED]
            rankings[query.qid] = Ranking.of([docids[place] for place in best], row[best])
        return dict(evaluate(qrels, Run(rankings), [measure_of(work.recipe, options.best)]).mean)

    how = {**work.computing, "validate": None if options.best == "last" else validate}
    outcome = train(model, task, options, folder, save=save, description=stage.kind, **how)
    if process_number() > 0:
        return StageResult()
    figures = {**outcome.figures(), "pairs": task.draw(0)}
    figures |= tune_encoder(work, folder / "model", queries, options, folder)
    return StageResult(first_stage=folder, figures=figures)


def tune_encoder(
    work: Work, encoder: Path, queries: Sequence[Query], options: PairOptions, folder: Path
) -> dict[str, Any]:
    """Tune BM25 and the bi-encoder's share beside it; writes ``first-stage.json`` and returns the figures."""
    index = current_first_stage(work).index
    bm25 = tune_index(work, index, queries, options.measure, options)
    dense = FirstStage(index, encoder=encoder, share=1.0, computing=Computing(work.device)).dense
    how = tuning_of(work, options.measure)
    tuned = tune_hybrid(index, dense, queries, work.data.train.qrels, bm25.best, step=options.step, **how)
    share = tuned.best.similarity
    FirstStage(index, bm25.best, encoder, share).save(folder)
    means = {shares.similarity: mean for shares, mean in zip(tuned.settings, tuned.means, strict=True)}
    aside = f"{tuned.measure} of {len(queries)} queries set aside"
    return {
        "k1": bm25.best.k1,
        "b": bm25.best.b,
        "hybrid": share,
        f"{aside}, hybrid": means[share],
        f"{aside}, bi-encoder alone": means[1.0],
        f"{aside}, BM25 alone": means[0.0],
    }
