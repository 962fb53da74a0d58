"""The bundled sample keeps what its README promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwell import sample
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.datasets import Dataset, open_dataset
from rankwell.evaluation.evaluate import evaluate
from rankwell.retrieve.index import Index

SPLITS = ["dev", "train"]
TYPES = {"location", "numeric", "person", "description", "entity"}


@pytest.fixture(scope="module")
def data() -> Dataset:
    return open_dataset(sample.FOLDER)


@pytest.fixture(scope="module")
def texts(data: Dataset) -> dict[str, str]:
    return {document.docid: document.text for document in data.documents()}


@pytest.fixture(scope="module")
def rare_words() -> list[list[str]]:
    lines = (sample.FOLDER / "rare_words.tsv").read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines]


def test_it_is_large_enough_to_try_things_out(data: Dataset, texts: dict[str, str]) -> None:
    assert len(texts) >= 300
    assert len(data.queries("dev")) >= 120
    assert set(data.splits) >= {"dev", "train"}


def test_no_two_passages_are_the_same(data: Dataset, texts: dict[str, str]) -> None:
    assert len(set(texts.values())) == len(texts) == len(list(data.documents()))


@pytest.mark.parametrize("split", SPLITS)
def test_every_query_has_a_type_and_all_five_occur(data: Dataset, split: str) -> None:
    types = data.types(split)
    assert types.keys() == {query.qid for query in data.queries(split)}
    assert set(types.values()) == TYPES


@pytest.mark.parametrize("split", SPLITS)
def test_every_query_is_judged_and_has_a_right_answer(data: Dataset, texts: dict[str, str], split: str) -> None:
    qrels = data.qrels(split)
    assert set(qrels) == {query.qid for query in data.queries(split)}
    for grades in qrels.values():
        assert grades.keys() <= texts.keys()
        assert set(grades.values()) <= {0, 1, 2, 3}
        assert max(grades.values()) >= 2


def test_no_query_is_in_both_splits(data: Dataset) -> None:
    dev, train = ({query.text for query in data.queries(split)} for split in SPLITS)
    assert dev.isdisjoint(train)


def test_there_are_enough_rare_words_among_the_development_queries(data: Dataset, rare_words: list[list[str]]) -> None:
    dev = {query.qid for query in data.queries("dev")}
    assert sum(row[0] in dev for row in rare_words) >= 20


def test_a_rare_word_is_in_the_query_and_the_right_passage_only(
    data: Dataset, texts: dict[str, str], rare_words: list[list[str]]
) -> None:
    asked = {query.qid: query.text for split in SPLITS for query in data.queries(split)}
    grades = {qid: by_doc for split in SPLITS for qid, by_doc in data.qrels(split).items()}
    plain = Analyzer.plain()
    for qid, word, lookalike, right, wrong in rare_words:
        query, answer, mislead = (set(plain.terms(text)) for text in (asked[qid], texts[right], texts[wrong]))
        assert word in query, qid
        assert answer & {word, f"{word}s"}, qid
        assert mislead.isdisjoint({word, f"{word}s"}), qid
        assert lookalike in mislead, qid
        assert grades[qid][right] >= 2 > grades[qid].get(wrong, 0), qid


def test_bm25_finds_much_but_not_all(data: Dataset, tmp_path: Path) -> None:
    index = Index.build(data.documents(), tmp_path / "index")
    measure = "RR(rel=2)@10"
    figure = evaluate(data.qrels("dev"), index.search(data.queries("dev"), k=10), measure).mean[measure]
    assert 0.55 < figure < 0.75


def test_the_readme_counts_right(data: Dataset, texts: dict[str, str], rare_words: list[list[str]]) -> None:
    readme = (sample.FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"| {len(texts)} passages" in readme
    assert f"| {len(data.queries('dev'))} and {len(data.queries('train'))} queries" in readme
    judged = [sum(map(len, data.qrels(split).values())) for split in SPLITS]
    assert f"| {judged[0]} and {judged[1]} graded" in readme
    assert f"| {len(rare_words)} rare-word cases" in readme
