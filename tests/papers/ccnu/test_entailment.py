"""A judge of entailment as a ranker: transformers' own p(entailment), with the document as the premise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import CrossEncoder

from rankwell.core.errors import InputError
from rankwell.inputs.windows import Windows
from rankwell.models.checkpoints.describe import describe
from rankwell.papers.ccnu.entailment import against_the_rest
from rankwell.rank.ranker import Ranker

LABELS = ("contradiction", "entailment", "neutral")
PAIRS = [
    ("what is bogue", "a bogus claim"),
    ("how many bees are in a hive", "the bees keep warm in winter"),
    ("bank", ""),
    ("", "honey"),
    ("bank", "the river bank " * 10),
]


@pytest.fixture(scope="module")
def folder(make_classifier: Callable[[Sequence[str]], Path]) -> Path:
    return make_classifier(LABELS)


@pytest.fixture(scope="module")
def ranker(folder: Path) -> Ranker:
    return Ranker.from_pretrained(folder, engine={"device": "cpu"})


def transformers_entailment(folder: Path, premises: list[str], hypotheses: list[str]) -> Any:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        logits = model(**tokenizer(premises, hypotheses, padding=True, return_tensors="pt")).logits
    return torch.softmax(logits, dim=1)[:, LABELS.index("entailment")].numpy()


def test_the_score_is_the_probability_that_the_document_entails_the_query(folder: Path, ranker: Ranker) -> None:
    queries, documents = [query for query, _ in PAIRS], [document for _, document in PAIRS]
    expected = transformers_entailment(folder, documents, queries)
    assert np.ptp(expected) > 0.01, "pairs that score alike would show nothing"
    assert ranker.predict(PAIRS, activation="probability") == pytest.approx(expected, abs=1e-5)
    assert ranker.predict(PAIRS) == pytest.approx(np.log(expected), abs=1e-4)


def test_the_other_direction_is_the_template_mono(folder: Path) -> None:
    other = Ranker.from_pretrained(folder, engine={"device": "cpu"}, template={"name": "mono"})
    expected = transformers_entailment(folder, *(list(part) for part in zip(*PAIRS, strict=True)))
    assert other.predict(PAIRS, activation="probability") == pytest.approx(expected, abs=1e-5)


def test_documents_are_read_in_windows_like_any_rankers(folder: Path, ranker: Ranker) -> None:
    words = "bank money interest tea coffee river honey bees winter warm".split()
    parts = [" ".join(words[begin : begin + 4]) for begin in (0, 2, 4, 6)]
    windowed = Ranker.from_pretrained(folder, engine={"device": "cpu"}, windows=Windows(4, 2, "top2"))
    single = ranker.predict([("honey", part) for part in parts])
    assert windowed.predict([("honey", " ".join(words))])[0] == pytest.approx(np.sort(single)[-2:].mean(), abs=1e-5)


def test_a_long_document_leaves_the_query_whole(folder: Path) -> None:
    cut = Ranker.from_pretrained(
        folder, engine={"device": "cpu"}, template={"max_length": 40, "max_query": 16}, windows=None
    )
    query, document = "how many bees are in a hive", "honey " * 100
    (found,) = cut.predict([(query, document)], activation="probability")
    # [CLS] 30 of the document [SEP] 7 of the query [SEP]
    (expected,) = transformers_entailment(folder, ["honey " * 30], [query])
    assert found == pytest.approx(expected, abs=1e-5)
    assert cut.truncation.pieces_cut == {"document": 70, "query": 0}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (LABELS, True),
        (("ENTAILMENT", "NEUTRAL", "CONTRADICTION"), True),
        (("entailment", "not_entailment"), True),
        (("location", "numeric", "person"), False),
        (("no", "yes"), False),
    ],
)
def test_it_is_known_by_its_labels(tmp_path: Path, labels: tuple[str, ...], expected: bool) -> None:
    transformers.BertConfig(id2label=dict(enumerate(labels))).save_pretrained(tmp_path)
    assert (describe(tmp_path).relevance_column() is not None) is expected


def test_one_class_against_the_rest() -> None:
    random = np.random.default_rng(0)
    logits = random.normal(scale=20, size=(50, 4)).astype(np.float32)
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    expected = shifted[:, 1] / shifted.sum(axis=1)
    found = against_the_rest(logits, 1).astype(np.float64)
    assert 1 / (1 + np.exp(found[:, 0] - found[:, 1])) == pytest.approx(expected, rel=1e-4, abs=1e-12)


def test_callers_learn_of_the_classifier_within(folder: Path) -> None:
    options = {"device": "cpu", "dtype": "bf16", "budget": 300, "lanes": 2}
    engine = Ranker.from_pretrained(folder, engine=options).engine
    assert engine.tokens_at_once == 600
    assert (engine.device, engine.precision) == ("cpu", "bf16")
    assert not engine.explainable


@pytest.mark.parametrize("kind", ["roberta", "deberta-v2"])
def test_a_classifier_of_three_classes_of_other_families(tiny_models: Any, tmp_path: Path, kind: str) -> None:
    labels = {0: "contradiction", 1: "entailment", 2: "neutral"}
    folder = tiny_models.make(kind, tmp_path / kind, labels=3, id2label=labels)
    swapped = [(document, query) for query, document in tiny_models.PAIRS]
    identity = torch.nn.Identity()
    theirs = CrossEncoder(str(folder), device="cpu")
    expected = theirs.predict(swapped, activation_fn=identity, convert_to_tensor=True).log_softmax(dim=1)[:, 1].numpy()
    assert np.abs(Ranker(folder).predict(tiny_models.PAIRS) - expected).max() < 1e-5


def test_the_class_that_means_relevant_may_be_named(tiny_models: Any, tmp_path: Path) -> None:
    folder = tiny_models.make("bert", tmp_path / "model", labels=3, id2label={0: "bad", 1: "fair", 2: "good"})
    with pytest.raises(InputError, match=r"a classifier of 3 classes; .* --set label=CLASS names the class"):
        Ranker(folder)
    with pytest.raises(InputError, match=r"no class is called best .known: bad, fair, good."):
        Ranker(folder, engine={"label": "best"})
    theirs = CrossEncoder(str(folder), device="cpu")
    logits = theirs.predict(tiny_models.PAIRS, activation_fn=torch.nn.Identity(), convert_to_tensor=True)
    found = Ranker(folder, engine={"label": "Good"}).predict(tiny_models.PAIRS)
    assert np.abs(found - logits.log_softmax(dim=1)[:, 2].numpy()).max() < 1e-5
