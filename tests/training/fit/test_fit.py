"""Fitting whole systems, with models of a few thousand parameters."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.training import toys

pytest.importorskip("torch")
from tests.training.fit.fitting import fitted, named, perfect, results, take, write_titles

from rankwell import sample
from rankwell.core.errors import RankwellError
from rankwell.core.native import working_time
from rankwell.core.stopping import TimeIsUp
from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.records import Document, Qrels, Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.names import DEFAULT
from rankwell.models.devices import Computing
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.fusion import before_rest, fuse
from rankwell.rank.ranker import open_ranker
from rankwell.rank.system import System
from rankwell.rank.tuning import share_grid
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index
from rankwell.training.fit import climb, judge, steps
from rankwell.training.fit.fit import command_of
from rankwell.training.fit.plans import comparing_words, is_larger
from rankwell.training.fit.results import Bests, Plan, Result, Step
from rankwell.training.fit.steps import all_steps as every_step
from rankwell.training.fit.task import FitTask


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve documents, and 110 queries in each split."""
    return toys.write_data(tmp_path_factory.mktemp("data") / "small", queries=110)


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, small: Path, tiny_bi_encoder: Path, tiny_checkpoint: Path
) -> tuple[System, str]:
    return fitted(tmp_path_factory.mktemp("fit") / "system", tiny_bi_encoder, small, ranker=tiny_checkpoint)


def test_every_step_is_measured_and_the_best_is_saved(whole: tuple[System, str]) -> None:
    system, said = whole
    tried = results(system)
    assert list(tried) == ["bm25", "hybrid", "tuned", "adapter", "words", "encoder", "shipped", "rerank"]
    assert tried["bm25"]["kept"]
    for result in tried.values():
        assert 0 < result["judged"]["RR@10"]["mean"] <= 1
        assert result["queries"] == 110
        assert ("report" in result) == result["kept"]
        if result["step"] != "bm25":
            test = result["against the step below"]
            better, shown = test["difference"] > 0, test["p"] < 0.05
            assert result["kept"] == (better and (shown or result["step"] == "hybrid"))
    best = [result for result in tried.values() if result["kept"]][-1]
    assert best["system"] == system.describe() == System.open(system.folder).describe()
    sizes = "110 for training and, in turn, for choosing between trained steps; 110 of dev for the report"
    assert f"12 documents; 110 judged queries of train: {sizes}" in said
    assert f"rankwell serve {system.folder}" in said
    assert not system.folder.with_name("system.work").exists()
    assert system.check().without == 0


def test_a_small_bi_encoder_is_taught_by_a_larger_one_and_saved_beside_it(
    tiny_bi_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with a GPU, as the fit is told, and after a step that finds what BM25 does not."""
    data = toys.write_data(tmp_path / "data", queries=110)
    for split in ("train", "dev"):
        lines = [f"{split}{i}\t{toys.WORDS[(i + 5) % 12]} market" for i in range(110)]
        (data / f"queries.{split}.tsv").write_text("\n".join(lines) + "\n")

    def fit_larger(task: FitTask, below: Result, plan: Plan) -> Result:
        first = FirstStage(task.index, encoder=DEFAULT, share=1.0, words=0.5, computing=Computing("cpu"))
        return replace(perfect(task, below, plan), system=System(first), stages={"encoder": {"encoder": DEFAULT}})

    def short(task: FitTask) -> list[Step]:
        by_name = {step.name: step for step in every_step(task)}
        return [replace(by_name["encoder"], make=fit_larger), by_name["taught"]]

    monkeypatch.setattr(climb, "all_steps", short)
    monkeypatch.setattr(steps, "chosen_device", lambda name: SimpleNamespace(type="cuda"))
    out = tmp_path / "system"
    system, said = fitted(out, tiny_bi_encoder, data, tries=[DEFAULT])
    taught = System.open(tmp_path / "system-small")
    tried = results(system)
    assert [tried[name]["kept"] for name in ("encoder", "taught")] == [True, False]
    assert f"{out}-small: {taught.describe()}, to serve without a GPU" in said
    assert (taught.ranker, taught.first_stage.words > 0) == (None, True)
    assert "teacher" in (tmp_path / "system-small" / "encoder" / "README.md").read_text()
    assert describe(tmp_path / "system-small" / "encoder").dimensions() == describe(tiny_bi_encoder).dimensions()
    dataset = open_dataset(str(data))
    found = evaluate(dataset.qrels("dev"), taught.search(dataset.queries("dev"), 100), ["RR@10"]).mean["RR@10"]
    assert found == pytest.approx(tried["taught"]["report"]["RR@10"]["mean"])
    shutil.rmtree(out)
    with pytest.raises(RankwellError, match="system-small holds a system already"):
        fitted(out, tiny_bi_encoder, data, tries=[DEFAULT])


def test_no_small_bi_encoder_is_taught_where_none_larger_was_fitted(
    small: Path, tiny_bi_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "taught" not in [step.name for step in every_step(FitTask(str(small), tmp_path / "a", tries=(DEFAULT,)))]
    first = FirstStage(Index.build([Document("d", "bee")], tmp_path / "index"))
    monkeypatch.setattr(FitTask, "shipped", str(tiny_bi_encoder))
    for encoder, larger in ((str(tiny_bi_encoder), False), (DEFAULT, True)):
        result = Result(System(first), Run(), {"encoder": {"encoder": encoder}})
        assert is_larger(result) == larger
    assert not is_larger(Result(System(first), Run()))


def test_the_saved_system_has_the_reported_figures(whole: tuple[System, str], small: Path) -> None:
    system, _ = whole
    best = [result for result in system.card["steps"] if result.get("kept")][-1]
    data = open_dataset(small)
    figures = evaluate(data.qrels("dev"), system.search(data.queries("dev"), 100), "RR@10 R@100").mean
    assert figures["RR@10"] == pytest.approx(best["report"]["RR@10"]["mean"], abs=1e-6)
    assert figures["R@100"] == pytest.approx(best["report"]["R@100"]["mean"], abs=1e-6)


def test_the_folder_holds_a_card_and_a_page_that_needs_nothing_else(whole: tuple[System, str]) -> None:
    system, _ = whole
    page = (system.folder / "report.html").read_text()
    assert "<svg" in page
    best = [result for result in system.card["steps"] if result.get("kept")][-1]["report"]["RR@10"]["mean"]
    assert page.index(f"{best:.3f}</b>") < page.index("Step by step")
    assert not re.search(r"(?:src|href)=|url\(|@import", page)
    assert "rankwell fit" in page
    rows = [line.split("\t") for line in (system.folder / "queries.tsv").read_text().splitlines()]
    assert rows[0][:2] == ["query", "bm25"]
    mean = sum(float(row[1]) for row in rows[1:]) / len(rows[1:])
    assert mean == pytest.approx(results(system)["bm25"]["report"]["RR@10"]["mean"], abs=1e-5)
    card = (system.folder / "README.md").read_text()
    assert f"| BM25 | {results(system)['bm25']['report']['RR@10']['mean']:.3f} |" in card


def test_a_step_that_needs_too_long_is_skipped_and_said(
    tmp_path: Path, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [replace(named("rerank"), plan=lambda task, bests, left: Plan(7200.0))]
    monkeypatch.setattr(climb, "all_steps", lambda task: steps)
    system, said = fitted(tmp_path / "system", tiny_bi_encoder)
    assert re.search(r"\n--minutes 1\d\d would add: a trained re-ranker\n", said)
    assert re.search(r"a trained re-ranker: skipped, it needs about 2 h, and [12]\d min are left", said)
    assert results(system)["rerank"]["skipped"].startswith("it needs about 2 h")
    assert "it needs about 2 h" in (system.folder / "report.html").read_text()


def test_when_the_time_is_up_the_best_so_far_is_saved(
    tmp_path: Path, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(task: object, below: object, plan: object) -> Any:
        raise TimeIsUp

    monkeypatch.setattr(climb, "all_steps", lambda task: [Step("endless", "an endless step", endless)])
    system, said = fitted(tmp_path / "system", tiny_bi_encoder)
    assert "an endless step: skipped, the time was up before it was finished" in said
    assert system.describe() == "BM25 (k1 0.9, b 0.4)"
    assert "Nothing was shown to be better than this on 130 queries; try more --minutes." in said
    assert "Nothing was shown to be better than BM25, not fitted" in (system.folder / "report.html").read_text()


def test_a_fit_ends_within_a_tenth_and_ten_seconds_of_its_minutes(
    tmp_path: Path, tiny_bi_encoder: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its steps take, and whatever they were expected to."""

    def endless(task: object, below: object, plan: object) -> Any:
        while True:
            sum(range(1000))

    steps = [named("hybrid"), Step("endless", "an endless step", endless), named("adapter"), named("shipped")]
    monkeypatch.setattr(climb, "all_steps", lambda task: steps)
    begin = working_time()
    system, said = fitted(tmp_path / "system", tiny_bi_encoder, ranker=tiny_checkpoint, minutes=0.1)
    assert working_time() - begin < 1.1 * 6 + 10
    assert "an endless step: skipped, the time was up before it was finished" in said
    assert results(system)["adapter"]["skipped"]
    assert len(system.search("how do bees keep warm", k=3)) == 3


def test_a_step_is_tried_once_on_the_same_list(
    tmp_path: Path, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As word vectors are where no other bi-encoder was kept; those that compare words already are left alone."""
    words, better = Step("words", "word vectors", perfect), Step("better", "a better step", perfect)
    monkeypatch.setattr(climb, "all_steps", lambda task: [better, words, words])
    system = fitted(tmp_path / "system", tiny_bi_encoder)[0]
    assert [result["step"] for result in system.card["steps"]] == ["bm25", "better", "words"]
    assert results(system)["better"]["kept"]
    assert not results(system)["words"]["kept"]
    first = FirstStage(system.index, encoder=tiny_bi_encoder, share=0.7, words=0.3)
    assert comparing_words(FitTask("data", tmp_path / "new"), Bests.begin(Result(System(first), Run())), 60.0) is None


def test_the_report_begins_with_the_gain_over_bm25(
    tmp_path: Path, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(climb, "all_steps", lambda task: [Step("better", "a better step", perfect)])
    system, said = fitted(tmp_path / "system", tiny_bi_encoder)
    page = (system.folder / "report.html").read_text()
    assert f"<h1>Search fitted to {sample.FOLDER.name}</h1>" in page
    assert page.index("over BM25, not fitted [") < page.index("Step by step")
    counts = re.search(r"<p>(\d+) queries better, (\d+) equal, (\d+) worse\.</p>", page)
    assert counts is not None
    assert sum(map(int, counts.groups())) == system.card["queries"]["report"]
    assert "; not fitted: 0.6" in said


def test_the_reranker_reads_the_candidates_of_the_step_below(
    small: Path, tmp_path: Path, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fitted first stage was searched with another share in each fold, so its own search finds other documents."""

    def better(task: FitTask, below: Result, plan: Plan) -> Result:
        relevant = {qid: {**dict.fromkeys(own, 2.0), "d0": 1.0} for qid, own in task.parts.judged.qrels.items()}
        return Result(System(FirstStage(task.index, BM25(k1=1.2, b=0.7))), Run.from_scores(relevant))

    rerank = named("rerank")
    monkeypatch.setattr(climb, "all_steps", lambda task: [Step("better", "a better step", better), rerank])
    harder = shutil.copytree(small, tmp_path / "data")
    queries = (harder / "queries.train.tsv").read_text()
    (harder / "queries.train.tsv").write_text(re.sub(r"(\w+)\t\w+ market", r"\1\t\1 market", queries))
    system, _ = fitted(tmp_path / "system", tiny_bi_encoder, harder)
    assert results(system)["better"]["kept"]
    assert results(system)["rerank"]["judged"]["R@100"]["mean"] == 1.0


def test_models_to_try_are_steps_of_their_kind_and_the_best_encoder_is_the_start(
    small: Path, tmp_path: Path, tiny_bi_encoder: Path, tiny_twin: Path, tiny_checkpoint: Path, tiny_one_head: Path
) -> None:
    """The first has vectors and scores pairs, the second scores pairs alone."""
    tries = [str(tiny_twin), str(tiny_checkpoint)]
    system, _ = fitted(tmp_path / "system", tiny_bi_encoder, small, ranker=tiny_one_head, tries=tries)
    tried = results(system)
    assert all("judged" in result for result in tried.values())  # none failed
    names = ["bm25", "hybrid", f"hybrid {tiny_twin}", "tuned", "adapter", "words", "encoder", "shipped"]
    assert list(tried) == [*names, f"rerank {tiny_twin}", f"rerank {tiny_checkpoint}", "rerank"]
    assert f"--try {tiny_twin} --try {tiny_checkpoint}" in (system.folder / "README.md").read_text()


def test_a_fit_continues_from_the_models_of_a_system(
    small: Path, tmp_path: Path, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.build(open_dataset(small).documents(), tmp_path / "index")
    old = System(FirstStage(index, encoder=tiny_bi_encoder, share=0.7)).save(tmp_path / "old").folder
    assert old is not None
    monkeypatch.setattr(climb, "all_steps", lambda task: [step for step in every_step(task) if step.model])
    system, _ = fitted(tmp_path / "system", tiny_bi_encoder, small, previous=old)
    assert list(results(system)) == ["bm25", "hybrid", f"hybrid {old / 'encoder'}"]
    with pytest.raises(RankwellError, match="not a system"):
        fitted(tmp_path / "other", tiny_bi_encoder, small, previous=small)


def test_the_last_doubling_of_the_queries_tells_what_more_of_them_would_bring(
    small: Path, tmp_path: Path, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankwell.training.fit.steps.LEAST_TO_FIT", 20)
    monkeypatch.setattr(climb, "all_steps", lambda task: [named("hybrid"), named("adapter")])
    trained: list[tuple[str, str, int | None]] = []
    train = FitTask.train

    def watched(task: FitTask, name: str, first: Any, stages: Any, start: str, sample: Any = None, **how: Any) -> Any:
        trained.append((name, how["fold"], sample))
        return train(task, name, first, stages, start, sample, **how)

    monkeypatch.setattr(FitTask, "train", watched)
    system, said = fitted(tmp_path / "system", tiny_bi_encoder, small)
    assert [(name, fold) for name, fold, _ in trained[-2:]] == [("adapter", "-whole"), ("adapter-half", "-1-of-2")]
    assert 35 <= (trained[-1][2] or 0) <= 44
    expected = (
        r"Twice the judged queries would likely bring about [+-]0\.\d+ RR@10 \[[+-]0\.\d+, [+-]0\.\d+\], as the last"
    )
    assert re.search(expected, said)
    assert re.search(expected, (system.folder / "report.html").read_text())


def test_without_time_for_all_vectors_the_best_documents_are_compared_word_by_word(
    tmp_path: Path, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = take(tmp_path / "data", 30, "train")

    def steps(task: FitTask) -> list[Step]:
        """All vectors take too long."""
        long = replace(named("hybrid"), plan=lambda task, bests, left: Plan(1e6))
        return [long, *(step for step in every_step(task) if step.name == "texts")]

    monkeypatch.setattr(climb, "all_steps", steps)
    monkeypatch.setattr(judge, "LEVEL", 1.1)  # whatever is better is kept
    system, said = fitted(tmp_path / "system", tiny_bi_encoder, data)
    assert "this machine has time for: words of the best documents" in said
    record = results(system)["texts"]
    queries = open_dataset(data).queries("train")
    qrels = Qrels({query.qid: open_dataset(data).qrels("train")[query.qid] for query in queries})
    first = System.of_index(system.index).search(queries, 100)
    top = first.head(10)
    words = open_ranker(tiny_bi_encoder, words=True, device="cpu").rerank(top, queries, system.index)
    if record["kept"]:
        assert system.ranker is not None
        assert system.first_stage.encoder is None  # so that no vectors are made
        assert system.reranker.rerank(top, queries, system.index) == words
    best = max(
        evaluate(qrels, before_rest(fuse({"first": top, "model": words}, shares), first), "RR@10").mean["RR@10"]
        for shares in share_grid(["model", "first"])
        if shares.first < 1
    )
    assert record["judged"]["RR@10"]["mean"] <= best + 1e-9
    # With the vectors there, they are stored, and this is not tried.
    monkeypatch.setattr(
        climb, "all_steps", lambda task: [step for step in every_step(task) if step.name in ("hybrid", "texts")]
    )
    system, _ = fitted(tmp_path / "other", tiny_bi_encoder, data)
    assert list(results(system)) == ["bm25", "hybrid"]


def test_titles_are_weighed_where_that_is_better(tmp_path: Path, tiny_bi_encoder: Path, tiny_checkpoint: Path) -> None:
    data = write_titles(tmp_path / "data")
    system, said = fitted(tmp_path / "system", tiny_bi_encoder, data, ranker=tiny_checkpoint)
    assert "✓ titles weighed" in said
    assert system.index.analyzer.title_weight > 1
    assert "title weight 3" in system.describe()
    bm25, weighed = (results(system)[name]["judged"]["RR@10"]["mean"] for name in ("bm25", "analyser"))
    assert bm25 < weighed


def test_no_queries_give_hybrid_search_and_advice(tmp_path: Path, tiny_bi_encoder: Path) -> None:
    data = take(tmp_path / "data", 0)
    system, said = fitted(tmp_path / "system", tiny_bi_encoder, data)
    assert "What would help most: 50 to 100 real queries" in said
    assert "ms a query" not in said  # there are none to time
    assert system.describe() == "BM25 (k1 0.9, b 0.4) and a bi-encoder (weight 0.7)"
    report = (system.folder / "report.html").read_text()
    assert "Nothing was measured" in report
    assert "Step by step" not in report
    assert len(system.search("how do bees keep warm", k=3)) == 3


def test_hostile_documents_and_queries_are_escaped(
    tmp_path: Path, tiny_bi_encoder: Path, tiny_checkpoint: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    attack = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    documents = [f"d{i}\tbank {attack} money {i}" for i in range(12)]
    (data / "collection.tsv").write_text("\n".join(documents) + "\n")
    (data / "queries.dev.tsv").write_text("".join(f"q{i}\tzebra {attack} {i}\n" for i in range(10)))
    (data / "qrels.dev.txt").write_text("".join(f"q{i} 0 d{i} 1\n" for i in range(10)))
    system, _ = fitted(tmp_path / "system", tiny_bi_encoder, data, ranker=tiny_checkpoint)
    page = (system.folder / "report.html").read_text()
    assert "<script" not in page
    assert "<img" not in page


def test_another_fit_does_not_continue_this_one(tmp_path: Path, tiny_bi_encoder: Path) -> None:
    (tmp_path / "system.work").mkdir()
    (tmp_path / "system.work" / "fit.json").write_text(json.dumps({"seed": 7}))
    with pytest.raises(RankwellError, match="holds an unfinished fit with another data"):
        fitted(tmp_path / "system", tiny_bi_encoder)


def test_a_finished_system_is_not_replaced(whole: tuple[System, str], tiny_bi_encoder: Path) -> None:
    with pytest.raises(RankwellError, match="holds a system already"):
        fitted(whole[0].folder, tiny_bi_encoder)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"minutes": 0}, "expected more than 0"),
        ({"measure": "RR@ten"}, "RR@ten"),
        ({"tries": ["no_such_package:model"]}, "no_such_package"),
        ({"device": "cuda:99"}, "on this machine"),
    ],
)
def test_wrong_options_are_refused_before_any_work(tmp_path: Path, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(RankwellError, match=problem):
        fitted(tmp_path / "system", tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("moment", "number"), [("steps/hybrid-*", signal.SIGINT), ("stages/*-listwise-*", signal.SIGKILL)]
)
def test_a_stopped_fit_resumes_to_the_same_system(
    whole: tuple[System, str],
    small: Path,
    tmp_path: Path,
    tiny_bi_encoder: Path,
    tiny_checkpoint: Path,
    moment: str,
    number: signal.Signals,
) -> None:
    program = "import os, sys, pathlib; from rankwell.__main__ import main; from rankwell.models import devices"
    program += (
        "; from rankwell.training.fit.task import FitTask; devices.CPU_INFO = pathlib.Path(os.devnull)"  # as in tests
    )
    program += "; from rankwell.training.fit import steps; steps.DEFAULT = sys.argv.pop(1)"
    program += "; FitTask.shipped = sys.argv.pop(1); sys.exit(main())"
    command = [sys.executable, "-c", program, str(tiny_checkpoint), str(tiny_bi_encoder), "fit", str(small)]
    command += ["--out", str(tmp_path / "system"), "--minutes", "30", "--device", "cpu"]
    settings: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    from torch import get_num_threads

    # As many threads as here, because the last digits of sums depend on them.
    threads = str(get_num_threads())
    process = subprocess.Popen(command, **settings, env={**os.environ, "OMP_NUM_THREADS": threads})
    work = tmp_path / "system.work"
    while process.poll() is None and not list(work.glob(moment)):
        time.sleep(0.01)
    process.send_signal(number)
    _, complaint = process.communicate()
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert complaint == "rankwell: interrupted; rerun the command to resume\n"
    assert work.exists()
    assert not (tmp_path / "system").exists()
    system, _ = fitted(tmp_path / "system", tiny_bi_encoder, small, ranker=tiny_checkpoint)
    assert system.describe() == whole[0].describe()
    queries = open_dataset(small).queries("dev")
    assert system.search(queries, 20) == whole[0].search(queries, 20)
    assert {name: result.get("judged") for name, result in results(system).items()} == {
        name: result.get("judged") for name, result in results(whole[0]).items()
    }
    assert [path.name for path in tmp_path.iterdir()] == ["system"]


def test_a_fit_that_was_killed_while_it_removed_its_work_is_finished(
    whole: tuple[System, str], small: Path, tmp_path: Path, tiny_bi_encoder: Path
) -> None:
    shutil.copytree(whole[0].folder, tmp_path / "system")
    (tmp_path / "system.work" / "parts").mkdir(parents=True)
    assert fitted(tmp_path / "system", tiny_bi_encoder, small)[0].describe() == whole[0].describe()
    assert [path.name for path in tmp_path.iterdir()] == ["system"]


def test_finished_steps_are_kept_although_their_time_is_up(
    small: Path, tmp_path: Path, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(climb, "all_steps", lambda task: [named("hybrid"), named("tuned")])

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("rankwell.training.fit.fit._save", killed)
        with pytest.raises(Killed):
            fitted(tmp_path / "system", tiny_bi_encoder, small)
    system, _ = fitted(tmp_path / "system", tiny_bi_encoder, small, minutes=0.01)
    assert list(results(system)) == ["bm25", "hybrid", "tuned"]
    assert not any("skipped" in result for result in results(system).values())


def test_the_command_repeats_the_fit_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my docs").mkdir()
    monkeypatch.chdir(tmp_path)
    task = FitTask("my docs", Path("out of here/sys"), 1.5, tries=("a hub/name",))
    data, out = tmp_path / "my docs", tmp_path / "out of here" / "sys"
    expected = ["rankwell", "fit", str(data), "--out", str(out), "--minutes", "1.5", "--try", "a hub/name"]
    assert shlex.split(command_of(task)) == expected
