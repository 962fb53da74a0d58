"""``--hybrid`` of search and tune."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
from typer.testing import CliRunner

from rankwell import sample
from rankwell.cli.main import app
from rankwell.core.errors import RankwellError
from rankwell.corpus.formats import read_queries, read_run
from rankwell.models.bi_encoder import BiEncoder
from rankwell.rank.dense import DenseRanker
from rankwell.rank.hybrid import search_hybrid
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index

SAMPLE = Path(sample.__file__).parent
QUERIES = str(SAMPLE / "queries.dev.tsv")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hybrid") / "index"
    done = CliRunner().invoke(app, ["index", str(SAMPLE / "collection.tsv"), "--out", str(folder)])
    assert done.exit_code == 0
    return folder


def test_search_writes_what_the_function_finds(index: Path, tiny_bi_encoder: Path, tmp_path: Path) -> None:
    out, encoder = tmp_path / "hybrid.run", str(tiny_bi_encoder)
    options = ["--hybrid", "0.4", "--encoder", encoder, "--k", "20", "--k1", "0.7", "--out", str(out)]
    done = CliRunner().invoke(app, ["search", str(index), QUERIES, *options])
    assert done.exit_code == 0, done.output
    dense = DenseRanker(BiEncoder.from_pretrained(encoder))
    expected = search_hybrid(Index.open(index), dense, read_queries(QUERIES), 0.4, BM25(k1=0.7), k=20)
    found = read_run(out)
    assert {qid: own.docids for qid, own in found.items()} == {qid: own.docids for qid, own in expected.items()}
    assert out.read_text().splitlines()[0].endswith(" hybrid")
    manifest = json.loads((tmp_path / "hybrid.run.manifest.json").read_text())
    assert manifest["config"]["hybrid"] == 0.4
    assert manifest["data"]["encoder"] == dense.encoder.name


def test_tune_finds_the_share_after_k1_and_b(index: Path, tiny_bi_encoder: Path, tmp_path: Path) -> None:
    out, qrels = tmp_path / "tuned.json", str(SAMPLE / "qrels.dev.txt")
    options = ["--k1", "0.9,1.2", "--b", "0.4", "--hybrid", "--encoder", str(tiny_bi_encoder), "--out", str(out)]
    done = CliRunner().invoke(app, ["tune", str(index), QUERIES, qrels, *options])
    assert done.exit_code == 0, done.output
    tuned = json.loads(out.read_text())
    assert [row["share"] for row in tuned["hybrid"]["grid"]] == [step / 10 for step in range(11)]
    best = max(tuned["hybrid"]["grid"], key=lambda row: row["mean"])
    assert tuned["hybrid"]["share"] == best["share"]
    alone = next(row["mean"] for row in tuned["grid"] if row["k1"] == tuned["best"]["k1"])
    assert tuned["hybrid"]["grid"][0]["mean"] == pytest.approx(alone, abs=0.02)  # BM25's ties have company
    assert "by the bi-encoder's share" in done.output


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--encoder", "x"], "--encoder needs --hybrid"),
        (["--device", "cpu"], "--device needs --hybrid"),
        (["--hybrid", "0.5", "--ray", "local", "--device", "cuda:1"], "with --ray each worker gets its own GPU"),
        (["--hybrid", "1.5", "--encoder", "nowhere"], "a share of 1.5 for the bi-encoder"),
    ],
)
def test_what_does_not_go_together(options: list[str], problem: str, index: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["search", str(index), QUERIES, "--out", str(tmp_path / "x.run"), *options])
    assert isinstance(done.exception, RankwellError)
    assert problem in str(done.exception)
