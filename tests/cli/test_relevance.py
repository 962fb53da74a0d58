"""Relevance on the command line: shown, and the least of it asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwell.corpus.formats import read_run
from rankwell.corpus.records import Document
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.relevance import Calibration
from rankwell.rank.system import System
from rankwell.retrieve.index import Index

Call = Callable[..., Any]
CALIBRATION = Calibration(("words", "score"), (-2.5, 6.0, 0.1, -0.5), queries=60, documents=369)
QUESTION, STRANGE = "how do bees keep warm in winter", "bees of the quark gluon zzyzx"


@pytest.fixture
def system(index: Path, tmp_path: Path) -> System:
    return System(FirstStage(Index.open(index)), relevance=CALIBRATION).save(tmp_path / "system")


def test_each_answer_is_printed_with_its_relevance(rankwell: Call, system: System) -> None:
    printed = rankwell("search", system.folder, QUESTION, "-k", "2").out
    for answer in system.search(QUESTION, k=2):
        assert f"{answer.score:.3f}  {answer.docid}  relevance {answer.relevance:.2f}\n" in printed
    rows = json.loads(rankwell("search", system.folder, QUESTION, "-k", "2", "--json").out)["results"]
    assert [row["relevance"] for row in rows] == [answer.relevance for answer in system.search(QUESTION, k=2)]


def test_an_index_has_none(rankwell: Call, index: Path) -> None:
    assert "relevance" not in rankwell("search", index, QUESTION).out
    [row, *_] = json.loads(rankwell("search", index, QUESTION, "--json").out)["results"]
    assert row["relevance"] is None
    refused = rankwell("search", index, QUESTION, "--min-relevance", "0.5")
    assert refused.complaint.startswith("this system cannot tell how relevant its answers are: it is not fitted")


def test_what_fits_too_little_is_left_out_and_if_nothing_fits_it_is_said(rankwell: Call, system: System) -> None:
    best = max(answer.relevance or 0 for answer in system.search(STRANGE))
    assert best < 0.5 < max(answer.relevance or 0 for answer in system.search(QUESTION))
    command = "search", system.folder, STRANGE, "--min-relevance", "0.5"
    line = f"othing fits: the relevance of the 10 documents found is {best:.2f} at most"
    assert rankwell(*command).out == f"N{line}.\n\n"
    assert json.loads(rankwell(*command, "--json").out) == {
        "qid": "1", "query": STRANGE, "did_you_mean": None, "results": [], "nothing": f"n{line}"
    }  # fmt: skip
    Path("q.tsv").write_text(f"1\t{QUESTION}\n2\t{STRANGE}\n")
    assert rankwell("search", system.folder, "q.tsv", "--min-relevance", "0.5", "--out", "some.run").code == 0
    assert list(read_run("some.run")) == ["1"]


@pytest.mark.parametrize("least", ["-0.1", "1.5", "much"])
def test_a_relevance_that_is_no_probability_is_refused(rankwell: Call, system: System, least: str) -> None:
    assert "--min-relevance" in rankwell("search", system.folder, QUESTION, "--min-relevance", least).complaint


def test_a_re_ranked_run_has_relevance_too(rankwell: Call, index: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    own = Calibration(("words", "model"), (-2.5, 6.0, 0.0, 0.0, 0.0), queries=60, documents=369)
    ranked = System(FirstStage(Index.open(index)), ranker=tiny_checkpoint, depth=5, relevance=own)
    folder = ranked.save(tmp_path / "ranked").folder
    Path("q.tsv").write_text(f"1\t{QUESTION}\n2\t{STRANGE}\n")
    assert rankwell("search", folder, "q.tsv", "--out", "all.run").code == 0
    command = "rerank", "all.run", "--queries", "q.tsv", "--model", folder
    rows = [json.loads(line) for line in rankwell(*command, "--json").out.splitlines()]
    rated = {row["qid"]: [own["relevance"] for own in row["results"]] for row in rows}
    assert len(rated["1"]) == len(rated["2"]) == 10
    assert max(rated["2"]) < 0.5 < max(rated["1"])
    assert rankwell(*command, "--min-relevance", "0.5", "--out", "some.run").code == 0
    fitting = [answer for answer in ranked.search(QUESTION, k=1000) if (answer.relevance or 0) >= 0.5]
    assert {qid: len(ranking) for qid, ranking in read_run("some.run").items()} == {"1": len(fitting)}


def test_check_says_when_the_collection_has_changed_too_much(rankwell: Call, system: System) -> None:
    assert "relevance: measured on 60 queries\n" in rankwell("check", system.folder).out
    system.add(Document(f"new-{number}", "tea") for number in range(93))
    printed = rankwell("check", system.folder).out
    assert "relevance was measured on 369 documents, and there are 462; fit again\n" in printed
