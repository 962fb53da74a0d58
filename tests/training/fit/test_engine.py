"""Fitting on top of other engines, for real."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from tests.training.fit.engines import ENGINES, MissingError, run_of
from tests.training.fit.fitting import fitted, named, perfect, results

from rankwell import sample
from rankwell.core.errors import Notice, RankwellError
from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.formats import read_run, write_run
from rankwell.corpus.records import Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.fusion import Shares, fuse
from rankwell.rank.system import System
from rankwell.retrieve.index import Index
from rankwell.training.fit import climb, judge
from rankwell.training.fit.results import Step
from rankwell.training.fit.steps import _join as join

Rerank = Callable[[System], Run]


def export(folder: Path, split: str, out: Path, engine: str = "SQLite") -> None:
    """What an engine finds, as docs/your-engine.md exports it."""
    data = open_dataset(folder)
    try:
        run = run_of(engine, list(data.documents()), data.queries(split))
    except MissingError as error:
        pytest.skip(f"{engine} is missing: {error}")
    with out.open("w") as file:
        for qid, ranking in run.items():
            for docid, score in ranking:
                file.write(json.dumps({"query_id": qid, "doc_id": docid, "score": float(score)}) + "\n")


@pytest.fixture
def rerank(rankwell: Callable[..., Any], data: Path, tmp_path: Path) -> Rerank:
    """What the command makes of the engine's run."""

    def better(system: System) -> Run:
        named = "--queries", data / "queries.train.tsv", "--model", system.folder, "--out", "better.run"
        done = rankwell("rerank", data / "run.train.jsonl", *named, "--device", "cpu")
        assert done.code == 0, done.err
        return read_run(tmp_path / "better.run")

    return better


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The bundled sample with 12 queries, on which SQLite is ahead of BM25, and an engine's run of them."""
    folder = tmp_path / "data"
    folder.mkdir()
    shutil.copy(sample.FOLDER / "collection.tsv", folder)
    queries = (sample.FOLDER / "queries.train.tsv").read_text().splitlines(keepends=True)[70:82]
    (folder / "queries.train.tsv").write_text("".join(queries))
    qids = {line.split("\t")[0] for line in queries}
    judged = (sample.FOLDER / "qrels.train.txt").read_text().splitlines(keepends=True)
    (folder / "qrels.train.txt").write_text("".join(line for line in judged if line.split()[0] in qids))
    export(folder, "train", folder / "run.train.jsonl")
    return folder


def test_an_engine_is_re_ranked_by_the_fitted_system(
    data: Path, tmp_path: Path, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch, rerank: Rerank
) -> None:
    monkeypatch.setattr(climb, "all_steps", lambda task: [named("shipped")])
    monkeypatch.setattr(judge, "LEVEL", 1.1)  # whatever is better is kept
    system, said = fitted(tmp_path / "system", tiny_bi_encoder, data)
    tried = results(system)
    assert list(tried) == ["engine", "bm25", "shipped"]
    qrels, theirs = open_dataset(data).qrels("train"), read_run(data / "run.train.jsonl")
    before = evaluate(qrels, theirs, "RR@10 R@100").mean
    assert tried["engine"]["judged"]["RR@10"]["mean"] == pytest.approx(before["RR@10"])
    assert tried["shipped"]["kept"]
    assert "; your engine: " in said
    assert tried["shipped"]["system"].startswith("your engine, its best ")
    assert "over your engine [" in (system.folder / "report.html").read_text()
    after = evaluate(qrels, rerank(system), "RR@10 R@100").mean
    assert after["RR@10"] > before["RR@10"]
    assert after["R@100"] == pytest.approx(before["R@100"])  # what is not re-ranked follows


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_is_joined_with_the_fitted_search(
    data: Path, tmp_path: Path, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch, rerank: Rerank, engine: str
) -> None:
    theirs = data / "run.train.jsonl"
    export(data, "train", theirs, engine)
    joined = Step("joined", "joined with your engine", join, replaces=("best", "candidates"), given=True)
    monkeypatch.setattr(climb, "all_steps", lambda task: [joined])
    monkeypatch.setattr(judge, "LEVEL", 1.1)  # whatever is better is kept
    monkeypatch.setattr("rankwell.training.fit.steps.share_grid", lambda parts: [Shares.hybrid(0.4)])
    system, said = fitted(tmp_path / "system", tiny_bi_encoder, data)
    record, run = results(system)["joined"], read_run(theirs)
    queries, own = open_dataset(data).queries("train"), System.of_index(system.index)
    expected = fuse({"similarity": own.search(queries, 100), "first": run}, Shares.hybrid(0.4), depth=100)
    figures = evaluate(open_dataset(data).qrels("train"), expected, "RR@10").mean["RR@10"]
    assert record["judged"]["RR@10"]["mean"] == pytest.approx(figures)
    if record["kept"]:  # not for every engine: the queries are few
        assert record["system"] == "your engine (weight 0.6) joined with BM25 (k1 0.9, b 0.4)"
        assert "rankwell rerank RUN" in said
        assert evaluate(open_dataset(data).qrels("train"), rerank(system), "RR@10").mean["RR@10"] == pytest.approx(
            figures
        )


def test_a_system_without_a_re_ranker_re_ranks_by_its_bi_encoder(
    data: Path, tmp_path: Path, tiny_bi_encoder: Path, rerank: Rerank
) -> None:
    index = Index.build(open_dataset(data).documents(), tmp_path / "index")
    system = System(FirstStage(index, encoder=tiny_bi_encoder, share=0.6)).save(tmp_path / "system")
    run, queries = read_run(data / "run.train.jsonl"), open_dataset(data).queries("train")
    similarity = system.first_stage.dense.rerank(run, queries, system.index, depth=100)
    assert system.rerank(run, queries) == fuse({"first": run, "similarity": similarity}, Shares.hybrid(0.6))
    ranked = rerank(system)
    assert {qid: set(ranking.docids) for qid, ranking in ranked.items()} == {
        qid: set(ranking.docids) for qid, ranking in run.items()
    }


def test_a_system_that_is_better_replaces_the_engine_and_one_that_is_not_leaves_it(
    data: Path, tmp_path: Path, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(climb, "all_steps", lambda task: [Step("better", "a better step", perfect)])
    system, said = fitted(tmp_path / "system", tiny_bi_encoder, data)
    assert results(system)["better"]["kept"]
    assert "re-rank:" not in said
    monkeypatch.setattr(climb, "all_steps", lambda task: [])
    given = data / "run.train.jsonl"
    best = shutil.move(given, tmp_path / "mine.jsonl")
    system, said = fitted(tmp_path / "other", tiny_bi_encoder, data, runs=[f"train={best}"])
    assert "your engine: RR@10" in said
    assert "Nothing was shown to be better than this on 12 queries." in said
    assert system.describe() == "BM25 (k1 0.9, b 0.4)"  # the best that searches by itself
    assert f"--run train={best}" in (system.folder / "README.md").read_text()


def test_runs_that_do_not_fit_the_data_are_refused(data: Path, tmp_path: Path, tiny_bi_encoder: Path) -> None:
    theirs = read_run(data / "run.train.jsonl")
    (data / "run.train.jsonl").unlink()

    def refused(message: str, *runs: str) -> None:
        with pytest.raises(RankwellError, match=message):
            fitted(tmp_path / "system", tiny_bi_encoder, data, runs=runs)

    def written(run: Run) -> str:
        write_run(run, tmp_path / "a.run")
        return f"train={tmp_path / 'a.run'}"

    refused("expected SPLIT=FILE, as in train=run.txt", "a.run")
    refused("--run dev=…: not a split that is fitted to", written(theirs), f"dev={tmp_path / 'a.run'}")
    other = Run.from_scores({qid: {"x1": 1.0} for qid in theirs})
    refused("1 of 1 documents of your engine's run are not in the collection, such as x1", written(other))
    refused(
        "your engine's run has none of the judged queries", written(Run({f"x{qid}": r for qid, r in theirs.items()}))
    )


def test_documents_of_the_engine_that_are_not_in_the_collection_are_counted(
    data: Path, tmp_path: Path, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(climb, "all_steps", lambda task: [])
    with (data / "run.train.jsonl").open("a") as file:
        file.write('{"query_id": "new", "doc_id": "nowhere", "score": 1}\n')
    with pytest.warns(Notice, match="1 of [0-9]+ documents of your engine's run are not in the collection, such as no"):
        fitted(tmp_path / "system", tiny_bi_encoder, data)
    assert (tmp_path / "system" / "system.json").is_file()


def test_the_run_of_the_report_is_needed_too(tmp_path: Path, tiny_bi_encoder: Path) -> None:
    export(sample.FOLDER, "train", tmp_path / "train.jsonl")
    with pytest.raises(
        RankwellError, match=r"your engine's run of dev is missing.*add run\.dev\.txt or --run dev=FILE"
    ):
        fitted(tmp_path / "system", tiny_bi_encoder, runs=[f"train={tmp_path / 'train.jsonl'}"])
