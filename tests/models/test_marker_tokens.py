"""Marker tokens: their embeddings, and that they are saved with the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from rankwell.core.errors import RankwellError
from rankwell.inputs.tokenizer import Tokenizer, marker_names
from rankwell.models.checkpoints.folders import add_markers, load_checkpoint, save_checkpoint
from rankwell.rank.ranker import Ranker


def test_their_embeddings_start_as_the_mean_of_their_pieces(tiny_checkpoint: Path) -> None:
    model, tokenizer, _ = load_checkpoint(tiny_checkpoint)
    old, size = model.encoder.tokens.weight.detach().clone(), len(tokenizer)
    add_markers(model, tokenizer)
    new = model.encoder.tokens.weight
    assert new.shape == (size + 40, 32)
    assert model.encoder.config.vocab_size == size + 40
    assert torch.equal(new[:size], old)
    twelfth = [tokenizer.token_id(piece) for piece in ("[", "/", "e", "##12", "]")]
    assert torch.allclose(new[tokenizer.token_id("[/e12]")], old[twelfth].mean(dim=0))
    assert new.requires_grad


def test_adding_them_twice_changes_nothing(tiny_checkpoint: Path) -> None:
    model, tokenizer, _ = load_checkpoint(tiny_checkpoint)
    add_markers(model, tokenizer)
    table = model.encoder.tokens
    add_markers(model, tokenizer)
    assert model.encoder.tokens is table


def test_a_padded_vocabulary_gives_them_its_free_rows(copy: Any) -> None:
    size = len(Tokenizer.open(copy.folder))
    name = "bert.embeddings.word_embeddings.weight"
    copy.edit_tensors(lambda t: {**t, name: torch.cat([t[name], torch.zeros(60, 32)])})
    copy.configure(vocab_size=size + 60)
    model, tokenizer, _ = load_checkpoint(copy.folder)
    add_markers(model, tokenizer)
    weight = model.encoder.tokens.weight
    assert weight.shape == (size + 60, 32)
    assert weight[size : size + 40].abs().sum(dim=1).min() > 0
    assert weight[size + 40 :].abs().sum() == 0


def test_a_tokenizer_of_another_model_is_an_error(tiny_checkpoint: Path) -> None:
    model, tokenizer, _ = load_checkpoint(tiny_checkpoint)
    tokenizer.add_markers()
    with pytest.raises(RankwellError, match="has no embeddings for them"):
        add_markers(model, tokenizer)


def test_they_are_saved_and_score_the_same(tiny_checkpoint: Path, tmp_path: Path, pairs: Any) -> None:
    model, tokenizer, config = load_checkpoint(tiny_checkpoint)
    add_markers(model, tokenizer)
    save_checkpoint(tmp_path / "saved", model, tokenizer, config.changed({"template": {"markers": True}}))
    again, again_tokenizer, again_config = load_checkpoint(tmp_path / "saved")
    assert again_config.template.markers
    assert again_tokenizer.special == tokenizer.special
    assert torch.equal(again.encoder.tokens.weight, model.encoder.tokens.weight)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert theirs.convert_tokens_to_ids(marker_names()) == [tokenizer.token_id(name) for name in marker_names()]
    marked, plain = (
        Ranker.from_pretrained(tmp_path / "saved", template={"markers": on}).predict(pairs) for on in (True, False)
    )
    assert np.abs(plain - Ranker.from_pretrained(tiny_checkpoint).predict(pairs)).max() < 1e-6
    # Porter's stemmer makes one stem of bogue and bogus, so the first pair is marked, too.
    assert (np.abs(marked - plain) > 1e-4).tolist() == [True, True, False, False, True, False]
