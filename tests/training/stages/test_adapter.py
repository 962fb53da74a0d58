"""The stage ``adapter``: maps of stored vectors, learned without the bi-encoder, and a folder that holds both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training import toys

from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.bi_encoder_modules import Modules
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.passage_vectors import PassageVectors
from rankwell.training.recipe import Recipe
from rankwell.training.recipe_reader import build_recipe
from rankwell.training.run import Trained, run_recipe
from rankwell.training.stages.adapter import MapModel

STAGE: dict[str, Any] = {
    "epochs": 60,
    "batch": 8,
    "learning_rate": 0.03,
    "tune_queries": 8,
    "k1": "0.9",
    "b": "0.4",
    "evaluate_every": 20,
    "step": 0.5,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_data(tmp_path_factory.mktemp("adapter") / "data", queries=48, apart=True)


def make(data: Path, start: Path, **changes: object) -> Recipe:
    tree = {
        "name": "adapters",
        "data": {"folder": str(data)},
        "first_stage": {"depth": 12, "hybrid": 0.5, "encoder": str(start)},
        "model": {"start": str(start), "max_length": 80},
        "evaluate": {"measures": ["RR@10"], "depth": 12},
        "stages": {"adapter": {**STAGE, "encoder": "first_stage", **changes}},
    }
    return build_recipe(tree, "r.yaml")


@pytest.fixture(scope="module", params=["both", "query"])
def trained(
    request: pytest.FixtureRequest, data: Path, tiny_bi_encoder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Trained, Path]:
    out = tmp_path_factory.mktemp("trained") / "out"
    done = run_recipe(make(data, tiny_bi_encoder, side=request.param), out, device="cpu")
    return done, next((out / "stages").glob("*-adapter-*"))


def test_it_finds_more_than_the_bi_encoder_did(trained: tuple[Trained, Path]) -> None:
    first, last = (row["mean"]["RR@10"] for row in trained[0].table.data["rows"])
    assert last > first + 0.2


def test_the_folder_computes_what_the_stored_vectors_and_maps_give(
    trained: tuple[Trained, Path], tiny_bi_encoder: Path
) -> None:
    done, folder = trained
    store = done.work.data.collection.store
    base = BiEncoder.from_pretrained(tiny_bi_encoder, device="cpu")
    adapted = BiEncoder.from_pretrained(folder / "model", device="cpu")
    names = {path.name for path in store.folder.glob("vectors-*")}
    assert names == {f"vectors-{base.name}", f"vectors-{adapted.name}"}  # one and the same for side: query
    assert (adapted.name == base.name) == (done.work.recipe.stages[0].options.side == "query")
    stored = PassageVectors.open(store, adapted).at(np.arange(len(store)))
    np.testing.assert_allclose(stored, adapted.encode_documents(store.texts_at(np.arange(len(store)))), atol=2e-3)
    first = FirstStage.open(folder)
    assert first.share == json.loads((folder / "stage.json").read_text())["produced"]["figures"]["hybrid"]


def test_sentence_transformers_computes_the_same(trained: tuple[Trained, Path]) -> None:
    library = pytest.importorskip("sentence_transformers")
    ours = BiEncoder.from_pretrained(trained[1] / "model", device="cpu")
    theirs = library.SentenceTransformer(str(trained[1] / "model"), device="cpu")
    texts = ["bee honey hive", "coffee of the market"]
    np.testing.assert_allclose(ours.encode_queries(texts), theirs.encode_query(texts), atol=1e-5)
    np.testing.assert_allclose(ours.encode_documents(texts), theirs.encode_document(texts), atol=1e-5)


def test_maps_start_as_the_identity() -> None:
    model = MapModel(4, "both")
    vectors = torch.nn.functional.normalize(torch.randn(3, 4), dim=1)
    torch.testing.assert_close(model(vectors, vectors), torch.cat([vectors, vectors]))
    modules = model.modules_after(Modules("first"))
    assert (modules.pooling, modules.query[0].is_identity, modules.document[0].is_identity) == ("first", True, True)
    assert MapModel(4, "query").modules_after(Modules()).document == ()
