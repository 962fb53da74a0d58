"""``--hybrid`` of search and tune."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwell import sample
from rankwell.corpus.formats import read_queries, read_run
from rankwell.models.bi_encoder import BiEncoder
from rankwell.rank.dense import DenseRanker, search_hybrid
from rankwell.rank.first_stage import FirstStage
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index

Call = Callable[..., Any]


def test_search_writes_what_the_function_finds(
    rankwell: Call, index: Path, queries: Path, tiny_bi_encoder: Path
) -> None:
    options = ["--hybrid", "0.4", "--encoder", tiny_bi_encoder, "--k", "20", "--k1", "0.7", "--out", "hybrid.run"]
    done = rankwell("search", index, queries, *options)
    assert done.code == 0, done.err
    dense = DenseRanker(BiEncoder.from_pretrained(tiny_bi_encoder))
    expected = search_hybrid(Index.open(index), dense, read_queries(queries), 0.4, BM25(k1=0.7), k=20)
    run = read_run("hybrid.run")
    assert {qid: ranking.docids for qid, ranking in run.items()} == {qid: expected[qid].docids for qid in expected}
    assert Path("hybrid.run").read_text().splitlines()[0].endswith(" hybrid")


def test_words_are_stored_by_index_and_re_rank_in_search(rankwell: Call, queries: Path, tiny_bi_encoder: Path) -> None:
    collection = sample.FOLDER / "collection.tsv"
    done = rankwell("index", collection, "--out", "with-words", "--encoder", tiny_bi_encoder, "--words")
    assert done.code == 0, done.err
    stored = {path: path.stat().st_mtime_ns for path in Path("with-words").rglob("shard-*")}
    assert {path.suffix for path in stored} == {".f16", ".cosine-signs"}
    options = ["--hybrid", "0.4", "--words", "0.5", "--encoder", tiny_bi_encoder, "--k", "20", "--out", "words.run"]
    done = rankwell("search", "with-words", queries, *options)
    assert done.code == 0, done.err
    assert {path: path.stat().st_mtime_ns for path in Path("with-words").rglob("shard-*")} == stored
    first = FirstStage(Index.open("with-words"), encoder=tiny_bi_encoder, share=0.4, words=0.5)
    expected, run = first.search(read_queries(queries), 20), read_run("words.run")
    assert {qid: ranking.docids for qid, ranking in run.items()} == {qid: expected[qid].docids for qid in expected}
    done = rankwell("index", collection, "--out", "without", "--words", "--no-store")
    assert (done.code, done.err) == (2, "rankwell: --words needs --store\n")


def test_tune_finds_the_share_after_k1_and_b(
    rankwell: Call, index: Path, queries: Path, qrels: Path, tiny_bi_encoder: Path
) -> None:
    options = ["--k1", "0.9,1.2", "--b", "0.4", "--hybrid", "--encoder", tiny_bi_encoder, "--out", "tuned.json"]
    done = rankwell("tune", index, queries, qrels, *options)
    assert done.code == 0, done.err
    tuned = json.loads(Path("tuned.json").read_text())
    assert [row["share"] for row in tuned["hybrid"]["grid"]] == [step / 10 for step in range(11)]
    best = max(tuned["hybrid"]["grid"], key=lambda row: row["mean"])
    assert tuned["hybrid"]["best"]["share"] == best["share"]
    alone = next(row["mean"] for row in tuned["grid"] if row["k1"] == tuned["best"]["k1"])
    assert tuned["hybrid"]["grid"][0]["mean"] == pytest.approx(alone, abs=0.02)  # BM25's ties have company
    assert "by the bi-encoder's weight" in done.out


def test_a_question_may_begin_with_a_number(rankwell: Call, index: Path, tiny_bi_encoder: Path) -> None:
    asked = rankwell("search", index, "--encoder", tiny_bi_encoder, "--json", "--hybrid", "2019 bees in winter")
    assert asked.code == 0, asked.err
    assert json.loads(asked.out)["query"] == "2019 bees in winter"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--encoder", "x"], "--encoder needs --hybrid"),
        (["--device", "cpu"], "--device needs --hybrid"),
        (["--words", "1.5"], "--words 1.5: expected a weight of more than 0 and at most 1"),
        (["--hybrid", "1.5", "--encoder", "nowhere"], "a weight of 1.5 for the bi-encoder"),
    ],
)
def test_what_does_not_go_together(
    rankwell: Call, index: Path, queries: Path, options: list[str], problem: str
) -> None:
    assert problem in rankwell("search", index, queries, "--out", "x.run", *options).complaint
