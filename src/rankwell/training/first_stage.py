"""First stages that a stage learns: queries set aside for tuning, tuning BM25, and candidates for later stages.

Such a stage leaves a folder with ``first-stage.json`` (:mod:`rankwell.rank.first_stage`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rankwell.core.errors import RankwellError
from rankwell.core.manifest import digest
from rankwell.corpus.formats import read_run, write_run
from rankwell.corpus.records import Query, Run
from rankwell.evaluation.cross_validation import Tuned
from rankwell.evaluation.notation import parse_measure
from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.names import find_model
from rankwell.models.devices import Computing
from rankwell.rank.first_stage import FirstStage
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.bm25_tuning import parse_values, tune_bm25
from rankwell.retrieve.index import Index
from rankwell.training.data.prepare import Prepared, Split, first_stage_of
from rankwell.training.options import FIRST_STAGE_ENCODER, START
from rankwell.training.recipe import RecipeStage
from rankwell.training.recipe_results import measure_of
from rankwell.training.stage import Work, stage_kinds, write_once
from rankwell.training.stage_options.first_stages import TuningOptions

FOLDS = 5


def hold_out(queries: tuple[Query, ...], count: int, seed: int) -> tuple[tuple[Query, ...], tuple[Query, ...]]:
    """The queries to train on, and ``count`` of them, at most a fifth, set aside to tune BM25.

    A stage fits its index to the training queries, so k1 and b tuned on them would suit no others.
    """
    count = min(count, len(queries) // 5)
    held_out = np.zeros(len(queries), np.bool_)
    held_out[np.random.default_rng([seed, len(queries)]).permutation(len(queries))[:count]] = True
    train = tuple(query for query, held in zip(queries, held_out, strict=True) if not held)
    return train, tuple(query for query, held in zip(queries, held_out, strict=True) if held)


def check_held_out(work: Work, options: TuningOptions) -> None:
    """Check grid and measure, and that there are queries to tune with."""
    parse_measure(options.measure)
    for text in (options.k1, options.b):
        parse_values(text)
    split = work.data.train
    _, held_out = hold_out(split.queries, options.tune_queries, work.seed)
    if len(held_out) < FOLDS:
        problem = (
            f"only {len(held_out)} of the {len(split.queries)} queries of {split.name!r} can be set aside to tune BM25"
        )
        raise RankwellError(f"{problem} (a fifth at most), expected {FOLDS} or more")


def tuning_of(work: Work, measure: str) -> dict[str, Any]:
    """How settings are tuned on queries that were set aside."""
    how = {"measure": str(measure_of(work.recipe, measure)), "folds": FOLDS, "seed": work.seed}
    return {**how, "threads": os.cpu_count() or 1}


def tune_index(work: Work, index: Index, queries: Sequence[Query], measure: str, grid: TuningOptions) -> Tuned[BM25]:
    """BM25 tuned on some of the training queries."""
    k1, b, how = parse_values(grid.k1), parse_values(grid.b), tuning_of(work, measure)
    return tune_bm25(index, queries, work.data.train.qrels, k1=k1, b=b, **how)


def current_first_stage(work: Work) -> FirstStage:
    """What finds candidates now: the first stage that an earlier stage left, or else the recipe's."""
    if work.first_stage is None:
        return first_stage_of(work.recipe.first_stage, work.data.index, work.device)
    return FirstStage.open(work.first_stage, Computing(work.device))


def find_encoder(work: Work, stage: RecipeStage[Any], name: str) -> Path | None:
    """The folder of the bi-encoder that a stage's option ``encoder`` names; None if an earlier stage is to make it."""
    if name != FIRST_STAGE_ENCODER:
        folder = find_model(work.recipe.model.start if name == START else name)
    else:
        finding = [earlier for earlier in work.recipe.before(stage) if stage_kinds()[earlier.kind].finds]
        if len(work.done) < stage.number - 1 and finding:
            return None
        encoder = current_first_stage(work).encoder
        if encoder is None:
            raise RankwellError(f"{stage.path}.encoder: the first stage has no bi-encoder; set first_stage.hybrid")
        folder = find_model(encoder)
    if not describe(folder).has_vectors:
        raise RankwellError(f"{stage.path}.encoder: {folder} is a cross-encoder, which has no similarities")
    return folder


def search_learned(folder: Path, split: Split, depth: int, device: str | None = None) -> Run:
    """Search with the first stage that a stage left in ``folder``."""
    first_stage = FirstStage.open(folder, Computing(device))
    run = first_stage.search(split.queries, depth, threads=os.cpu_count() or 1)
    if not run:
        raise RankwellError(f"{first_stage.index.folder} has no document for any query of the split {split.name!r}")
    return Run(run, name="first-stage")


def measure_first_stage(work: Work, stage: RecipeStage[Any], folder: Path) -> Run:
    """The ``measure`` of such stages: the dev queries with the new first stage."""
    return search_learned(folder, work.data.dev, work.recipe.first_stage.depth, work.device)


def with_first_stage(data: Prepared, folder: Path, depth: int, device: str | None = None) -> Prepared:
    """The data with candidates of the first stage that a stage left in ``folder``, searched once and stored there."""
    train, dev = (search_split(split, folder, depth, device) for split in (data.train, data.dev))
    return replace(data, train=train, dev=dev)


def search_split(split: Split, folder: Path, depth: int, device: str | None = None) -> Split:
    """The split with candidates of the first stage that a stage left in ``folder``, searched when they are needed."""
    key = digest({"split": split.digest, "first stage": folder.name, "depth": depth})
    path = folder / f"first-stage-{key}.run.npz"

    def find() -> Run:
        write_once(path, lambda: write_run(search_learned(folder, split, depth, device), path))
        return read_run(path, name="first-stage")

    return replace(split, find=find, digest=key)
