"""Training from encoders of other families than BERT; what is saved scores the same in sentence-transformers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch
from tests.training import toys

from rankwell import BiEncoder, Ranker
from rankwell.models.checkpoints.folders import load_checkpoint
from rankwell.training.recipe_reader import build_recipe
from rankwell.training.run import run_recipe

STAGES = {
    "pointwise": {"max_steps": 3, "batch": 4, "evaluate_every": 10000, "learning_rate": 1e-3},
    "listwise": {"max_steps": 3, "batch": 2, "negatives": 2, "evaluate_every": 10000, "learning_rate": 1e-3},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_data(tmp_path_factory.mktemp("families") / "data", queries=30)


def train(data: Path, start: Path, out: Path, stages: Any = None, **model: Any) -> Path:
    tree = {
        "name": "families",
        "data": str(data),
        "first_stage": {"depth": 6},
        "evaluate": {"depth": 6, "measures": ["RR@10"]},
        "model": {"start": str(start), "max_length": 64, "max_query": 16, "long_documents": "cut", **model},
        "stages": stages or STAGES,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # three steps teach nothing, which the loop says
        run_recipe(build_recipe(tree, "families.yaml"), out, device="cpu")
    return out / "model"


def same_in_sentence_transformers(folder: Path, pairs: list[tuple[str, str]]) -> None:
    theirs = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    expected = theirs.predict(pairs, activation_fn=torch.nn.Identity())
    assert np.abs(Ranker(folder).predict(pairs) - expected).max() < 1e-5


@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta", "mpnet", "deberta-v2", "modernbert"])
def test_a_recipe_starts_from_it(tiny_models: Any, data: Path, tmp_path: Path, kind: str) -> None:
    start = tiny_models.make(kind, tmp_path / kind, labels=None)
    trained = train(data, start, tmp_path / "out")
    before, after = (load_checkpoint(folder, new_head=True)[0].encoder.tokens.weight for folder in (start, trained))
    assert not torch.equal(before, after)
    same_in_sentence_transformers(trained, tiny_models.PAIRS)


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta"])
def test_markers_types_and_strm_with_each_kind_of_tokenizer(
    tiny_models: Any, data: Path, tmp_path: Path, kind: str
) -> None:
    start = tiny_models.make(kind, tmp_path / kind, labels=None)
    trained = train(data, start, tmp_path / "out", attention="strm", markers=True, template="typed")
    ranker = Ranker(trained)
    fields = {"query": "honey bees", "document": "Bees, says he, make honey.", "type": "entity"}
    laid = ranker.reader.lay_out({name: ranker.reader.encode([text]) for name, text in fields.items()})
    names = ranker.tokenizer.token_names(laid.sequences.tokens)
    text = "".join(names).replace("Ġ", " ").replace("▁", " ").replace("##", "").lower()
    assert [text.count(f"[e{k}]") for k in (1, 2, 3)] == [2, 2, 0]
    for mark, word in (("e2", "bees"), ("e1", "honey")):
        inside = text.rpartition(f"[{mark}]")[2].partition(f"[/{mark}]")[0]
        assert inside.strip() == word
    assert np.isfinite(ranker.predict(tiny_models.PAIRS)).all()


FIRST_STAGES: dict[str, dict[str, Any]] = {
    "encoder": {"max_steps": 2, "batch": 4, "learning_rate": 1e-3, "max_length": 24, "evaluate_every": 10000},
    "adapter": {"epochs": 1, "batch": 4},
}


@pytest.mark.parametrize(
    ("kind", "stage"),
    [
        ("mpnet", "encoder"),
        ("xlm-roberta", "encoder"),
        ("modernbert", "encoder"),
        ("modernbert", "adapter"),
    ],
)
def test_a_bi_encoder_is_trained_from_it(tiny_models: Any, data: Path, tmp_path: Path, kind: str, stage: str) -> None:
    start = tiny_models.make_bi_encoder(kind, tmp_path / kind)
    options = {**FIRST_STAGES[stage], "tune_queries": 6, "k1": "0.9", "b": "0.4", "step": 0.5}
    train(data, start, tmp_path / "out", {stage: options})
    (trained,) = (tmp_path / "out" / "stages").glob(f"*-{stage}-*/model")
    texts = [text for pair in tiny_models.PAIRS for text in pair]
    found, before = (
        BiEncoder.from_pretrained(folder, device="cpu", precision="fp32").encode_queries(texts)
        for folder in (trained, start)
    )
    theirs = sentence_transformers.SentenceTransformer(str(trained), device="cpu")
    assert np.abs(found - theirs.encode_query(texts)).max() < 1e-5
    assert np.abs(found - before).max() > 1e-4
