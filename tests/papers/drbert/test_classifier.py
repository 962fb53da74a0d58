"""The classifier: the inputs and the probabilities of transformers' own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from rankwell.core.errors import RankwellError
from rankwell.corpus.query_types import QUERY_TYPES
from rankwell.inputs.reader import Reader
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.papers.drbert import query_types
from rankwell.papers.drbert.query_types import Classifier, lay_out_texts

TEXTS = [
    "what is bogue",
    "",
    "who",
    "how many bees are in a hive in winter, insouciantly?",
    "日 ω",
    "the bees keep warm " * 20,
]
PAIRS = [("the dog", "a cat drinks milk"), ("", "honey"), ("bank", ""), ("what is bogue", "a bogus claim")]


@pytest.fixture(scope="module")
def folder(make_classifier: Callable[[Sequence[str]], Path]) -> Path:
    return make_classifier(QUERY_TYPES)


def transformers_probabilities(folder: Path, *texts: list[str], max_length: int) -> Any:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    inputs = tokenizer(*texts, padding=True, truncation=True, max_length=max_length, return_tensors="pt")
    with torch.inference_mode():
        return torch.softmax(model(**inputs).logits, dim=1).numpy()


@pytest.mark.parametrize("max_length", [512, 40])
def test_texts_get_the_probabilities_of_transformers(folder: Path, max_length: int) -> None:
    classifier = Classifier.from_pretrained(folder, max_length=max_length, engine={"device": "cpu"})
    labels, probabilities = classifier.predict(TEXTS)
    expected = transformers_probabilities(folder, TEXTS, max_length=max_length)
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    assert labels == [QUERY_TYPES[number] for number in expected.argmax(axis=1)]
    assert len(set(labels)) > 1  # else the labels would say nothing
    assert classifier.reader.truncation.pairs_cut == (max_length == 40)


def test_pairs_of_texts_get_them_too(folder: Path) -> None:
    classifier = Classifier.from_pretrained(folder, engine={"device": "cpu"})
    expected = transformers_probabilities(
        folder, *(list(column) for column in zip(*PAIRS, strict=True)), max_length=512
    )
    np.testing.assert_allclose(classifier.predict(PAIRS)[1], expected, atol=1e-5)


def test_the_sequences_are_written_as_in_bert(tiny_tokenizer: Path) -> None:
    tokenizer = Tokenizer.open(tiny_tokenizer)
    reader = Reader.of_texts(tokenizer, 512)
    single = lay_out_texts(reader, ["honey bee", ""])
    assert tokenizer.token_names(single.tokens) == ["[CLS]", "honey", "bee", "[SEP]", "[CLS]", "[SEP]"]
    assert single.segments.tolist() == [0] * 6
    pair = lay_out_texts(reader, ["honey bee"], ["tea"])
    assert tokenizer.token_names(pair.tokens) == ["[CLS]", "honey", "bee", "[SEP]", "tea", "[SEP]"]
    assert pair.segments.tolist() == [0, 0, 0, 0, 1, 1]


def test_two_long_texts_share_the_room(tiny_tokenizer: Path) -> None:
    tokenizer = Tokenizer.open(tiny_tokenizer)
    pair = lay_out_texts(Reader.of_texts(tokenizer, 13), ["bee " * 50], ["tea " * 50])
    names = tokenizer.token_names(pair.tokens)
    assert (names.count("bee"), names.count("tea"), len(names)) == (5, 5, 13)


def test_many_texts_come_in_groups_and_in_their_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = Classifier.from_pretrained(folder, engine={"device": "cpu"})
    whole = classifier.logits(TEXTS)
    monkeypatch.setattr(query_types, "TEXTS_AT_A_TIME", 2)
    np.testing.assert_allclose(classifier.logits(TEXTS), whole, atol=1e-5)


def test_no_texts_are_no_error(folder: Path) -> None:
    labels, probabilities = Classifier.from_pretrained(folder, engine={"device": "cpu"}).predict([])
    assert labels == []
    assert probabilities.shape == (0, 5)


def test_a_length_beyond_the_encoder_s_is_an_error(folder: Path) -> None:
    with pytest.raises(RankwellError, match="a length of 600, but the encoder has 512 positions"):
        Classifier.from_pretrained(folder, max_length=600)


def test_a_bare_encoder_is_no_classifier(folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    transformers.AutoModel.from_pretrained(folder).save_pretrained(bare)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(folder / name, bare)
    with pytest.raises(RankwellError, match="not a classifier"):
        Classifier.from_pretrained(bare)
