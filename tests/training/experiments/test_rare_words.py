"""Rare words: two tiny models, the sample's cases, and cases mined from a small data set."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from rankwell import sample
from rankwell.core.errors import InputError, RankwellError
from rankwell.corpus.records import Document, Qrels, Query
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.folders import load_checkpoint, save_checkpoint
from rankwell.retrieve.index import Index
from rankwell.training.experiments import rare_words
from rankwell.training.experiments.rare_words import (
    RareWordCase,
    SplitWords,
    compare_on_rare_words,
    mine_cases,
    read_cases,
)

TEXTS = {
    "d1": "the bogue is a fish of the sea",
    "d2": "a bogus fish of the sea is not a fish",
    "d3": "the whale is large",
}


@pytest.fixture(scope="module")
def models(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The same weights with full attention and under STRM."""
    folder = tmp_path_factory.mktemp("models")
    for rule in ("full", "strm"):
        model, tokenizer, config = load_checkpoint(tiny_checkpoint, attention=rule)
        save_checkpoint(folder / rule, model, tokenizer, config)
    return str(folder / "full"), str(folder / "strm")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "collection.tsv").write_text("".join(f"{docid}\t{text}\n" for docid, text in TEXTS.items()))
    (folder / "queries.dev.tsv").write_text("q1\twhat is a bogue\nq2\thow large is the whale\n")
    (folder / "qrels.dev.txt").write_text("q1 0 d1 1\nq2 0 d3 1\n")
    return folder


def test_look_alikes_share_the_first_token_and_have_another_stem(tiny_tokenizer: Path) -> None:
    words = SplitWords(["bogue", "bogus", "insouciantly", "whale"], Tokenizer.open(tiny_tokenizer))
    assert words.look_alikes("bogue") == ["bogus"]
    assert words.look_alikes("insouciantly") == []
    assert "whale" not in words.tokens


def test_a_case_is_mined_where_a_candidate_has_only_the_look_alike(
    tiny_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.build((Document(docid, text) for docid, text in TEXTS.items()), tmp_path / "index")
    queries = [Query("q1", "bogue fish sea"), Query("q2", "how large is the whale"), Query("q3", "sea fish bogue")]
    qrels = Qrels({"q1": {"d1": 1}, "q2": {"d3": 1}, "q3": {"d1": 1}})
    tokenizer = Tokenizer.open(tiny_tokenizer)
    cases = [RareWordCase(qid, "bogue", "bogus", "d1", "d2") for qid in ("q1", "q3")]
    assert mine_cases(index, queries, qrels, tokenizer) == cases
    assert mine_cases(index, queries, qrels, tokenizer, max_cases=1) == cases[:1]
    monkeypatch.setattr(rare_words, "_QUERIES_AT_ONCE", 1)
    assert mine_cases(index, queries, qrels, tokenizer) == cases


def test_a_candidate_with_another_form_of_the_word_does_not_mislead(tiny_tokenizer: Path, tmp_path: Path) -> None:
    texts = {**TEXTS, "d2": "bogus bogues are fish of the sea", "d4": "a bogus fish of the large sea"}
    index = Index.build((Document(docid, text) for docid, text in texts.items()), tmp_path / "index")
    queries, qrels = [Query("q1", "what fish is a bogue of the sea")], Qrels({"q1": {"d1": 1}})
    assert "d2" in index.search(queries, k=10)["q1"].docids
    (case,) = mine_cases(index, queries, qrels, Tokenizer.open(tiny_tokenizer))
    assert case == RareWordCase("q1", "bogue", "bogus", "d1", "d4")


def test_two_models_are_compared_on_given_cases(models: tuple[str, str], data: Path, tmp_path: Path) -> None:
    cases = [RareWordCase("q1", "bogue", "bogus", "d1", "d2")]
    out = tmp_path / "out"
    result = compare_on_rare_words(models, data, out, cases=cases, device="cpu")
    assert result["cases"] == 1
    (row,) = csv.DictReader((out / "cases.csv").open(encoding="utf-8"))
    full, strm = (float(row[f"{model} misleading score"]) for model in models)
    assert full != strm  # the rule closes bog(query) → bog(document)
    for model in models:
        higher = float(row[f"{model} right score"]) > float(row[f"{model} misleading score"])
        assert (int(row[f"{model} right rank"]) < int(row[f"{model} misleading rank"])) == higher
        assert result["models"][model]["right document wins"] == higher
    assert "| what is a bogue | bogue | bogus |" in (out / "table.md").read_text(encoding="utf-8")
    assert json.loads((out / "results.json").read_text(encoding="utf-8")) == result


def test_attention_of_both_models_is_drawn(models: tuple[str, str], data: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cases = [RareWordCase("q1", "bogue", "bogus", "d1", "d2")]
    compare_on_rare_words(models, data, tmp_path / "out", cases=cases, device="cpu")
    assert (tmp_path / "out" / "attention-q1.png").read_bytes().startswith(b"\x89PNG")


def test_the_samples_cases_are_of_its_queries_and_documents() -> None:
    cases = read_cases(sample.FOLDER / "rare_words.tsv")
    known = {document.split("\t")[0] for document in (sample.FOLDER / "collection.tsv").read_text().splitlines()}
    assert len(cases) == 46
    assert {case.right for case in cases} | {case.misleading for case in cases} <= known


@pytest.mark.parametrize(
    ("cases", "problem"),
    [
        ([RareWordCase("q9", "bogue", "bogus", "d1", "d2")], "no query has the id 'q9'"),
        ([RareWordCase("q1", "bogue", "bogus", "d1", "d9")], "document 'd9' is not in the collection"),
    ],
)
def test_a_case_of_another_data_set_is_refused(
    models: tuple[str, str], data: Path, tmp_path: Path, cases: list[RareWordCase], problem: str
) -> None:
    with pytest.raises(RankwellError, match=problem):
        compare_on_rare_words(models, data, tmp_path / "out", cases=cases, device="cpu")


def test_one_model_is_not_enough(models: tuple[str, str], data: Path, tmp_path: Path) -> None:
    with pytest.raises(RankwellError, match="two models"):
        compare_on_rare_words(models[:1], data, tmp_path / "out")


def test_a_broken_file_of_cases_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "cases.tsv").write_text("q1\tbogue\tbogus\td1\td2\nq2 bogue\n")
    with pytest.raises(InputError, match="line 2: found 1 columns, expected 5"):
        read_cases(tmp_path / "cases.tsv")
