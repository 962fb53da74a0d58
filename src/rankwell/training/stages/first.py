"""What stages that learn a first stage share: queries to tune BM25 with, the tuning, and searching what was made.

Such a stage leaves a folder with ``index`` and, in ``bm25.json``, the k1 and b it was tuned to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.manifest import digest
from rankwell.corpus.formats import read_run, write_run
from rankwell.corpus.records import Qrels, Query, Run
from rankwell.evaluation.notation import parse_measure
from rankwell.retrieve.index import Index
from rankwell.retrieve.tune import DEFAULT, Tuning, parse_values, tune_bm25
from rankwell.training.data.prepare import Prepared, Split
from rankwell.training.results import measure_of
from rankwell.training.stage import Work

INDEX = "index"
TUNING = "bm25.json"
FOLDS = 5
PLAIN_K1, PLAIN_B = "0.3,0.6,0.9,1.2,1.6,2,3,4", "0.1:0.9:0.2"
"""The grid of an index of counted terms, for comparison."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The training queries, but for some that are kept to tune BM25 with."""

    train: tuple[Query, ...]
    tune: tuple[Query, ...]


def hold_out(queries: tuple[Query, ...], count: int, seed: int) -> HeldOut:
    """Set ``count`` queries aside, though never more than a fifth of all.

    What a stage makes of a passage is fitted to its training queries; k1 and b tuned to those would suit no others.
    """
    count = min(count, len(queries) // 5)
    chosen = np.zeros(len(queries), np.bool_)
    chosen[np.random.default_rng([seed, len(queries)]).permutation(len(queries))[:count]] = True
    return HeldOut(
        tuple(query for query, held in zip(queries, chosen, strict=True) if not held),
        tuple(query for query, held in zip(queries, chosen, strict=True) if held),
    )


class TuningOptions(Protocol):
    """What the options of such a stage have."""

    @property
    def tune_queries(self) -> int: ...  # noqa: D102
    @property
    def measure(self) -> str: ...  # noqa: D102
    @property
    def k1(self) -> str: ...  # noqa: D102
    @property
    def b(self) -> str: ...  # noqa: D102


def check_tuning(work: Work, options: TuningOptions) -> None:
    """The grid must be one, the measure too, and there must be queries to tune with."""
    if work.recipe.first_stage.hybrid is not None:
        problem = "a stage that learns a first stage finds candidates in its own index alone"
        raise RankwellError(f"first_stage.hybrid: {problem}; leave it out")
    parse_measure(options.measure)
    for text in (options.k1, options.b):
        parse_values(text)
    split = work.data.train
    if (found := len(hold_out(split.queries, options.tune_queries, work.seed).tune)) < FOLDS:
        problem = f"{found} of the {len(split.queries)} queries of {split.name!r} would be set aside to tune BM25 with"
        raise RankwellError(f"{problem}, a fifth at most; it takes {FOLDS}")


def tune(work: Work, index: Index, queries: Sequence[Query], options: TuningOptions, *, plain: bool = False) -> Tuning:
    """Tune BM25 on training queries; ``plain`` takes the grid for counted terms."""
    qrels = work.data.train.qrels
    return tune_bm25(
        index,
        queries,
        Qrels({query.qid: qrels[query.qid] for query in queries}),
        measure=str(measure_of(work.recipe, options.measure)),
        k1=parse_values(PLAIN_K1 if plain else options.k1),
        b=parse_values(PLAIN_B if plain else options.b),
        folds=FOLDS,
        seed=work.seed,
        threads=os.cpu_count() or 1,
    )


def tune_first_stage(
    work: Work, index: Index, queries: Sequence[Query], options: TuningOptions, folder: Path
) -> dict[str, Any]:
    """Tune BM25 to a stage's index and leave ``bm25.json``; returns its figures, and those of the plain collection."""
    tuning, plain = tune(work, index, queries, options), tune(work, work.data.index, queries, options, plain=True)
    tuning.write(folder / TUNING)
    means = dict(zip(tuning.settings, tuning.values.mean(axis=1).tolist(), strict=True))
    aside = f"{tuning.measure} of {len(queries)} queries set aside"
    return {
        "k1": tuning.best[0],
        "b": tuning.best[1],
        f"{aside}, tuned": means[tuning.best],
        f"{aside}, k1={DEFAULT[0]} b={DEFAULT[1]}": means[DEFAULT],
        f"{aside}, BM25 of counted terms, tuned": float(plain.values.mean(axis=1).max()),
    }


def search_tuned(folder: Path, split: Split, depth: int) -> Run:
    """The split's queries on the index a stage left in ``folder``, with the k1 and b it was tuned to."""
    try:
        best = json.loads((folder / TUNING).read_text(encoding="utf-8"))["best"]
        k1, b = float(best["k1"]), float(best["b"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(folder / TUNING, None, "not the k1 and b of an index") from None
    index = Index.open(folder / INDEX)
    found = index.search(split.queries, k=depth, k1=k1, b=b, threads=os.cpu_count() or 1, name="first-stage")
    if not found:
        raise RankwellError(f"{index.folder} has no document for any query of the split {split.name!r}")
    return found


def with_first_stage(data: Prepared, folder: Path, depth: int) -> Prepared:
    """The data with candidates from the index a stage left in ``folder``, searched once and kept there."""
    return replace(data, train=_searched(data.train, folder, depth), dev=_searched(data.dev, folder, depth))


def _searched(split: Split, folder: Path, depth: int) -> Split:
    key = digest({"split": split.digest, "first stage": folder.name, "depth": depth})
    path = folder / f"first-stage-{key}.run.gz"
    if not path.exists():
        write_run(search_tuned(folder, split, depth), path)
    return replace(split, run=read_run(path, name="first-stage"), digest=key)
