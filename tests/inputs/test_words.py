"""What a word is, and which piece is its last: alike for every kind of tokenizer."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from rankwell.inputs.tokenizer import Tokenizer

KINDS = ["wordpiece", "bytes", "bytes-cls", "unigram", "unigram-cls", "sentencepiece", "bytes-chat"]
TEXT = "Insouciantly bogus claims, numerically! Bogue (insurance) bees."


@pytest.fixture
def groups(tiny_models: Any, request: pytest.FixtureRequest) -> list[str]:
    """The pieces of each word of the text, joined."""
    made = tiny_models._tokenizer(request.param)
    pieces = Tokenizer(made.backend_tokenizer).encode([TEXT])
    names = made.convert_ids_to_tokens(pieces.ids.tolist())
    words: list[str] = []
    for name, continues in zip(names, pieces.continues.tolist(), strict=True):
        clean = re.sub(r"^##|Ġ|▁|<unk>|\[UNK\]", "", name).lower()
        if continues:
            words[-1] += clean
        else:
            words.append(clean)
    return words


@pytest.mark.parametrize("groups", KINDS, indirect=True)
def test_a_word_is_a_run_of_letters_without_the_marks_around_it(groups: list[str]) -> None:
    letters = [re.findall("[a-z]+", word) for word in groups]
    assert [run[0] for run in letters if run] == re.findall("[a-z]+", TEXT.lower())
    assert all(len(run) <= 1 for run in letters)


@pytest.mark.parametrize("kind", KINDS)
def test_markers_find_the_same_words(tiny_models: Any, kind: str) -> None:
    tokenizer = Tokenizer(tiny_models._tokenizer(kind).backend_tokenizer)
    one, other = (tokenizer.encode([text], stems=True) for text in ("bees claiming", "Claims of a bee."))
    assert set(one.stems[one.stems >= 0]) == set(other.stems[other.stems >= 0])
    assert one.opens.sum() == 2


def test_an_empty_text_and_one_of_spaces(tiny_models: Any) -> None:
    for kind in KINDS:
        pieces = Tokenizer(tiny_models._tokenizer(kind).backend_tokenizer).encode(["", "  ", "bees"], stems=True)
        assert len(pieces) == 3
        assert pieces.lengths()[0] == 0
        assert not pieces.continues[pieces.begins[pieces.lengths() > 0]].any()
        assert np.array_equal(pieces.opens.shape, pieces.ids.shape)
