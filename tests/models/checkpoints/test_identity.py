"""Models are identified by their contents."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwell.core.errors import RankwellError
from rankwell.models.checkpoints.names import encoder_digest, model_digest

FILES = {
    "model.safetensors": "weights",
    "config.json": '{"a": 1}',
    "tokenizer.json": "{}",
    "rankwell.json": '{"head": "score"}',
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_digests_stay_what_score_caches_and_stored_vectors_are_named_by(model: Path) -> None:
    assert model_digest(model) == "3a7e4d0ea8eccd2c8cf5fc7922eb33f0"
    assert encoder_digest(model) == "2fdad68347e9e72399903567"


@pytest.mark.parametrize("name", FILES)
def test_a_model_is_another_when_any_of_its_files_changes(model: Path, name: str) -> None:
    before = model_digest(model)
    (model / name).write_text("other")
    assert model_digest(model) != before


def test_a_model_is_another_when_its_pooling_changes(model: Path) -> None:
    before = model_digest(model)
    (model / "modules.json").write_text('[{"type": "Pooling", "path": "1_Pooling"}]')
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text("{}")
    assert model_digest(model) != before


def test_a_model_card_makes_no_difference(model: Path) -> None:
    before = model_digest(model)
    (model / "README.md").write_text("a card")
    assert model_digest(model) == before


def test_how_pairs_are_scored_makes_no_difference_to_vectors(model: Path) -> None:
    before = encoder_digest(model)
    (model / "rankwell.json").write_text("{}")
    assert encoder_digest(model) == before
    (model / "model.safetensors").write_text("other weights")
    assert encoder_digest(model) != before


def test_vectors_of_another_tokenizer_have_another_name(model: Path) -> None:
    before = encoder_digest(model)
    (model / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert encoder_digest(model) != before


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(RankwellError, match="no model here"):
        model_digest(tmp_path)
