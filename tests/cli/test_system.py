"""Systems on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
from typer.testing import CliRunner

from rankwell import sample
from rankwell.cli.main import app
from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.formats import read_run
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.fusion import Shares
from rankwell.rank.system import System
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index

QUERIES = str(sample.FOLDER / "queries.dev.tsv")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path, tiny_bi_encoder: Path) -> System:
    folder = tmp_path_factory.mktemp("system")
    index = Index.build(open_dataset(sample.FOLDER).documents(), folder / "index")
    first, shares = FirstStage(index, BM25(1.2, 0.7), tiny_bi_encoder, 0.3), Shares(model=0.2, first=0.8)
    return System(first, ranker=tiny_checkpoint, depth=5, shares=shares).save(folder / "system")


def test_a_question_is_answered(system: System) -> None:
    done = CliRunner().invoke(app, ["search", str(system.folder), "how do bees keep warm", "-k", "4", "--json"])
    assert done.exit_code == 0, done.output
    answers = json.loads(done.output)["results"]
    expected = system.search("how do bees keep warm", k=4)
    assert [(answer["docid"], answer["text"]) for answer in answers] == [(own.docid, own.text) for own in expected]


def test_queries_become_a_run_with_a_manifest(system: System, tmp_path: Path) -> None:
    out = tmp_path / "system.run"
    done = CliRunner().invoke(app, ["search", str(system.folder), QUERIES, "--k", "8", "--out", str(out)])
    assert done.exit_code == 0, done.output
    run = system.search(open_dataset(sample.FOLDER).queries("dev"), k=8)
    found = read_run(out)
    assert {qid: own.docids for qid, own in found.items()} == {qid: own.docids for qid, own in run.items()}
    manifest = json.loads((tmp_path / "system.run.manifest.json").read_text())
    assert manifest["data"]["system"] == system.manifest["data_hash"]


@pytest.mark.parametrize("options", [["--k1", "1"], ["--hybrid", "0.5"], ["--encoder", "x"]])
def test_how_a_system_searches_is_not_changed_by_options(system: System, options: list[str]) -> None:
    done = CliRunner().invoke(app, ["search", str(system.folder), "a question", *options])
    assert str(done.exception) == f"{options[0]} does not go with a system"
