"""No ranker ranks with random weights: folders without a ranking head are refused, with what to do instead."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer

from rankwell.core.errors import InputError
from rankwell.rank.ranker import open_ranker


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    """A plain BERT: the encoder without a head."""
    folder = tmp_path_factory.mktemp("bare") / "bert"
    shutil.copytree(tiny_checkpoint, folder)
    transformers.BertModel.from_pretrained(tiny_checkpoint).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def modules() -> Any:
    return pytest.importorskip("sentence_transformers.sentence_transformer.modules")


def test_a_plain_bert(bare: Path) -> None:
    with pytest.raises(InputError, match=f"has no ranking head .no classifier.*--set model.start={bare}"):
        open_ranker(bare)


def test_a_bi_encoder(bare: Path, modules: Any, tmp_path: Path) -> None:
    parts = [modules.Transformer(str(bare)), modules.Pooling(32, pooling_mode="mean"), modules.Normalize()]
    SentenceTransformer(modules=parts, device="cpu").save_pretrained(str(tmp_path / "model"))
    with pytest.raises(InputError, match="Transformer, Pooling, Normalize: a bi-encoder, not a re-ranker; use it as"):
        open_ranker(tmp_path / "model")
    twin = open_ranker(tmp_path / "model", head="score", similarity=3.0, template={"name": "twin"})
    assert len(twin.predict([("bees", "honey")])) == 1, "ranks by the cosine, which needs no head"


def test_a_cross_encoder_of_several_modules(bare: Path, modules: Any, tmp_path: Path) -> None:
    parts = [modules.Transformer(str(bare)), modules.Pooling(32, pooling_mode="cls")]
    parts.append(modules.Dense(32, 1, module_output_name="scores"))
    CrossEncoder(modules=parts, device="cpu").save_pretrained(str(tmp_path / "model"))
    assert open_ranker(tmp_path / "model").predict([("bees", "honey")]).shape == (1,)
    path = tmp_path / "model" / "2_Dense" / "config.json"
    path.write_text(path.read_text().replace('"scores"', '"sentence_embedding"'))
    with pytest.raises(InputError, match=r"Pooling, Dense; none of them gives scores, .*; use such a model"):
        open_ranker(tmp_path / "model")
