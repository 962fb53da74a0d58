"""Cross-encoders of every family: they score as sentence-transformers does, and are saved so that it reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch

from rankwell import Ranker
from rankwell.core.errors import InputError, RankwellError
from rankwell.models.checkpoints.folders import load_checkpoint, save_checkpoint
from rankwell.models.encoder import CrossEncoder

OWN = ["bert", "electra", "roberta", "xlm-roberta", "camembert"]
WHOLE = ["distilbert", "mpnet", "albert", "deberta-v2", "modernbert"]
KINDS = [*OWN, *WHOLE]


def their_scores(folder: Path, pairs: list[tuple[str, str]]) -> Any:
    """The raw scores of sentence-transformers; of two labels, log p(relevant)."""
    model = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    scores = model.predict(pairs, activation_fn=torch.nn.Identity(), convert_to_tensor=True)
    return (scores if scores.dim() == 1 else scores.log_softmax(dim=1)[:, 1]).numpy()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("labels", [1, 2])
def test_scores_are_those_of_sentence_transformers(tiny_models: Any, tmp_path: Path, kind: str, labels: int) -> None:
    folder = tiny_models.make(kind, tmp_path / kind, labels=labels)
    expected = their_scores(folder, tiny_models.PAIRS)
    assert np.abs(Ranker(folder).predict(tiny_models.PAIRS) - expected).max() < 1e-5
    assert expected.std() > 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_scores_the_same_here_and_there(tiny_models: Any, tmp_path: Path, kind: str) -> None:
    folder = tiny_models.make(kind, tmp_path / kind)
    model, tokenizer, config = load_checkpoint(folder)
    assert isinstance(model, CrossEncoder) == (kind in OWN)
    save_checkpoint(tmp_path / "saved", model, tokenizer, config)
    expected = Ranker(folder).predict(tiny_models.PAIRS)
    assert np.array_equal(Ranker(tmp_path / "saved").predict(tiny_models.PAIRS), expected)
    assert np.abs(their_scores(tmp_path / "saved", tiny_models.PAIRS) - expected).max() < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_a_bare_encoder_gets_a_head_for_training_only(tiny_models: Any, tmp_path: Path, kind: str) -> None:
    folder = tiny_models.make(kind, tmp_path / kind, labels=None)
    with pytest.raises(InputError, match="has no ranking head"):
        load_checkpoint(folder)
    one, two, other = (load_checkpoint(folder, new_head=True, seed=seed)[0] for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.head.weight, other.head.weight)


def test_modernbert_reads_its_first_token_if_it_was_trained_so(tiny_models: Any, tmp_path: Path) -> None:
    folder = tiny_models.make("modernbert", tmp_path / "cls", classifier_pooling="cls")
    difference = Ranker(folder).predict(tiny_models.PAIRS) - their_scores(folder, tiny_models.PAIRS)
    assert np.abs(difference).max() < 1e-5


def test_small_electras_have_a_projection_and_go_through_transformers(tiny_models: Any, tmp_path: Path) -> None:
    folder = tiny_models.make("electra", tmp_path / "small", embedding_size=16)
    assert not isinstance(load_checkpoint(folder)[0], CrossEncoder)
    difference = Ranker(folder).predict(tiny_models.PAIRS) - their_scores(folder, tiny_models.PAIRS)
    assert np.abs(difference).max() < 1e-5


def test_positions_begin_after_the_padding_s_id(tiny_models: Any, tmp_path: Path) -> None:
    model, _, config = load_checkpoint(tiny_models.make("xlm-roberta", tmp_path / "model"))
    assert (model.encoder.config.positions_from, model.encoder.config.max_position_embeddings) == (2, 512)
    assert config.template.max_length == 512


@pytest.mark.parametrize("kind", WHOLE)
def test_an_attention_rule_is_refused_where_transformers_computes(tiny_models: Any, tmp_path: Path, kind: str) -> None:
    with pytest.raises(RankwellError, match=f"type {kind}; an attention rule .* needs an encoder with BERT's layers"):
        load_checkpoint(tiny_models.make(kind, tmp_path / kind), attention="strm")
