"""Ranking in Python as one would guess it: documents of any kind, CrossEncoder's keywords, and what errors say."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from rankwell import Document, Ranker, RankwellError

QUERY, TEXTS = "bank", ["the river", "bank of the bank", "money bank"]


@pytest.mark.parametrize(
    ("documents", "order"),
    [
        (TEXTS, [1, 2, 0]),
        (tuple(TEXTS), [1, 2, 0]),
        (np.array(TEXTS), [1, 2, 0]),
        (dict(zip("abc", TEXTS, strict=True)), ["b", "c", "a"]),
        ({7: TEXTS[0], 8: TEXTS[1], 9: TEXTS[2]}, [8, 9, 7]),
        ([Document(name, text) for name, text in zip("abc", TEXTS, strict=True)], ["b", "c", "a"]),
        ([{"id": name, "text": text} for name, text in zip("abc", TEXTS, strict=True)], ["b", "c", "a"]),
    ],
)
def test_documents_are_ranked_by_their_texts(counting: Ranker, documents: Any, order: list[Any]) -> None:
    rows = counting.rank(QUERY, documents, return_documents=True)
    assert [row["corpus_id"] for row in rows] == order
    assert rows[0]["text"] == TEXTS[1]
    assert [row["corpus_id"] for row in counting.rank(QUERY, documents, top_k=1)] == order[:1]


def test_a_title_is_read_with_the_text(counting: Ranker) -> None:
    rows = counting.rank(QUERY, [Document("a", "river"), Document("b", "river", "bank")])
    assert rows[0]["corpus_id"] == "b"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((None, TEXTS), r"the query is 'None', expected a string, as in ranker\.rank\("),
        ((TEXTS, QUERY), r"the query is .* expected a string"),
        ((QUERY, "one text"), r"the documents are .*, expected a list of texts or {id: text}, as in ranker\.rank\("),
        ((QUERY, None), "the documents are 'None', expected a list of texts"),
        ((QUERY, [1, 2]), "documents: expected a file name, a list of texts"),
        ((QUERY, TEXTS, 2.5), r"top_k is 2\.5, expected a whole number from 1"),
        ((QUERY, TEXTS, 0), "top_k is 0, expected a whole number from 1"),
    ],
)
def test_wrong_types_are_one_line_that_shows_the_right_call(counting: Ranker, arguments: Any, problem: str) -> None:
    with pytest.raises(RankwellError, match=problem):
        counting.rank(*arguments)


def test_no_pairs_and_no_model_are_one_line_too(counting: Ranker) -> None:
    wrong: Any = None
    with pytest.raises(RankwellError, match=r"pair 1 is 'None'; expected \(query, document\)"):
        counting.predict(wrong)
    wrong = 7
    with pytest.raises(RankwellError, match=r"the model is '7', expected a name or folder, as in Ranker\("):
        Ranker(wrong)
    options: Any = {"batchsize": 3}
    with pytest.raises(RankwellError, match="no keyword is called 'batchsize'"):
        counting.predict([("a", "b")], **options)


def test_cross_encoders_keywords_give_what_cross_encoder_gives(tiny_checkpoint: Path, tmp_path: Path) -> None:
    package = pytest.importorskip("sentence_transformers")
    folder = tmp_path / "one-label"
    shutil.copytree(tiny_checkpoint, folder)
    config = transformers.AutoConfig.from_pretrained(tiny_checkpoint, num_labels=1)
    torch.manual_seed(3)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    pairs = [("how do bees keep warm", text) for text in TEXTS]
    ours, theirs = Ranker(folder, device="cpu", max_length=64), package.CrossEncoder(str(folder), device="cpu")
    every: list[dict[str, Any]] = [
        {"activation_fn": torch.nn.Identity()},
        {"activation_fn": torch.nn.Sigmoid(), "batch_size": 2},
        {"activation_fn": torch.nn.Identity(), "apply_softmax": True, "show_progress_bar": False},
        {"activation_fn": torch.nn.Sigmoid(), "convert_to_tensor": True, "show_progress_bar": True},
    ]
    for options in every:
        expected, found = theirs.predict(pairs, **options), ours.predict(pairs, **options)
        assert type(found) is type(expected)
        assert np.abs(np.asarray(found) - np.asarray(expected)).max() < 1e-5
    rows = ours.rank(pairs[0][0], TEXTS, activation_fn=torch.nn.Sigmoid(), convert_to_tensor=True)
    assert all(0 < row["score"] < 1 for row in rows)


def test_one_pair_and_no_pairs_keep_their_shapes(ranker: Ranker) -> None:
    pair = ("bank", "money")
    assert ranker.predict(pair, convert_to_tensor=True).shape == ()
    assert isinstance(ranker.predict(pair, activation_fn=torch.nn.Sigmoid()), np.float32)
    assert len(ranker.predict([], convert_to_tensor=True)) == 0
    softmax = ranker.predict([pair], apply_softmax=True)
    assert softmax[0] == ranker.predict([pair], activation="probability")[0]


def test_a_ranker_tells_what_it_is(tiny_checkpoint: Path) -> None:
    ranker = Ranker(tiny_checkpoint, device="cpu", max_length=180)
    assert repr(ranker) == f"Ranker({str(tiny_checkpoint)!r}, cpu fp32, template mono, max_length 180)"
    assert (ranker.device, ranker.max_length) == ("cpu", 180)
