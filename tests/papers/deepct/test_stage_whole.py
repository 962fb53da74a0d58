"""The stage ``deepct``, and first stages that stages learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.training import toys

from rankwell.core.errors import RankwellError
from rankwell.corpus.formats import read_weights
from rankwell.corpus.records import Query
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index
from rankwell.training.first_stage import hold_out, with_first_stage
from rankwell.training.recipe import Recipe
from rankwell.training.recipe_reader import Override, build_recipe
from rankwell.training.run import Trained, run_recipe


def recipe_of(data: Path, start: Path, **changes: Any) -> Recipe:
    stage = {"epochs": 2, "batch": 8, "max_length": 32, "k1": "0.9,10", "b": "0.4", "shard": 5}
    tree = toys.recipe_tree(data, start, deepct=stage)
    overrides = [Override(path.replace("__", "."), value) for path, value in changes.items()]
    return build_recipe(tree, "r.yaml", overrides)


@pytest.fixture(scope="module")
def trained(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trained, Path]:
    place = tmp_path_factory.mktemp("deepct")
    data = toys.write_data(place / "data", queries=30)
    # A head that starts above 0, so that two epochs do not leave every word at nothing.
    done = run_recipe(recipe_of(data, tiny_checkpoint, stages__deepct__scale=1e4), place / "out", device="cpu")
    (folder,) = (place / "out" / "stages").iterdir()
    return done, folder


def test_it_leaves_model_weights_index_tuning_and_candidates(trained: tuple[Trained, Path]) -> None:
    done, folder = trained
    names = {path.name for path in folder.iterdir()}
    assert {"model", "weights", "index", "bm25.json", "terms.html", "stage.json"} <= names
    figures = json.loads((folder / "stage.json").read_text())["produced"]["figures"]
    best = json.loads((folder / "bm25.json").read_text())["best"]
    assert (figures["k1"], figures["b"]) == (best["k1"], best["b"])
    assert {"RR@10 of 6 queries set aside, tuned", "RR@10 of 6 queries set aside, k1=0.9 b=0.4"} <= set(figures)
    index, data = Index.open(folder / "index"), done.work.data
    assert index.manifest["config"]["weighted"] is True
    weighed = [
        document.docid for path in sorted((folder / "weights").glob("shard-*")) for document in read_weights(path)
    ]
    assert weighed == [f"d{i}" for i in range(12)]
    expected = index.search(data.train.queries, BM25(k1=best["k1"], b=best["b"]), k=12)
    assert {q: r.docids for q, r in data.train.run.items()} == {q: r.docids for q, r in expected.items()}


def test_the_dev_queries_are_measured_on_the_weighted_index(trained: tuple[Trained, Path]) -> None:
    done, folder = trained
    assert done.last is not None
    best = json.loads((folder / "bm25.json").read_text())["best"]
    expected = Index.open(folder / "index").search(done.work.data.dev.queries, BM25(k1=best["k1"], b=best["b"]), k=12)
    assert {q: r.docids for q, r in done.last.run.items()} == {q: r.docids for q, r in expected.items()}


def test_later_stages_can_take_their_candidates_from_it(trained: tuple[Trained, Path]) -> None:
    done, folder = trained
    data = done.work.data
    changed = with_first_stage(data, folder, 3)
    assert not list(folder.glob(f"first-stage-{changed.train.digest}*"))  # searched when they are needed
    assert changed.train.run["train0"].docids == data.train.run.head(3)["train0"].docids
    assert changed.dev.queries == data.dev.queries
    assert changed.dev.digest != data.dev.digest
    assert max(len(ranking) for ranking in changed.dev.run.values()) <= 3


def test_what_cannot_work_is_said_before_anything_is_trained(tiny_checkpoint: Path, tmp_path: Path) -> None:
    data = toys.write_data(tmp_path / "data", queries=4)
    with pytest.raises(
        RankwellError,
        match=r"only 0 of the 4 queries of 'train' can be set aside to tune BM25 .a fifth at most., expected 5 or more",
    ):
        run_recipe(recipe_of(data, tiny_checkpoint), tmp_path / "a", device="cpu")
    data = toys.write_data(tmp_path / "more", queries=30)
    with pytest.raises(RankwellError, match="'high' is neither FIRST:LAST:STEP nor a list"):
        run_recipe(recipe_of(data, tiny_checkpoint, stages__deepct__k1="high"), tmp_path / "b", device="cpu")


def test_queries_set_aside_are_not_learned_from() -> None:
    queries = tuple(Query(str(i), "x") for i in range(50))
    train, tune = hold_out(queries, 7, seed=1)
    assert len(tune) == 7
    assert sorted([*train, *tune], key=lambda query: int(query.qid)) == list(queries)
    assert hold_out(queries, 7, seed=1)[1] == tune != hold_out(queries, 7, seed=2)[1]
    assert len(hold_out(queries, 500, seed=1)[1]) == 10
