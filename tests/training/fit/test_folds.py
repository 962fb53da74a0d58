"""Few queries, which train and choose in turn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.training import toys

pytest.importorskip("torch")
from tests.training.fit.fitting import fitted, named, perfect, results, take

from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.records import Qrels, Query, Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.rank.dense import search_both
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.fusion import Shares, fuse
from rankwell.rank.system import System
from rankwell.retrieve.bm25 import BM25, DEFAULT_BM25
from rankwell.training import run as recipes
from rankwell.training.fit import climb, judge, steps
from rankwell.training.fit.judge import compare_with
from rankwell.training.fit.results import Bests, Plan, Result, Step
from rankwell.training.fit.steps import all_steps as every_step
from rankwell.training.fit.task import FitTask


@pytest.fixture
def task(tmp_path: Path) -> FitTask:
    return FitTask(str(toys.write_data(tmp_path / "data", queries=110)), tmp_path / "system", device="cpu")


def below(task: FitTask, encoder: Path, **known: Any) -> Result:
    """Hybrid search, which found nothing yet."""
    first = FirstStage(task.index, encoder=str(encoder), share=0.7)
    return Result(System(first), System(first).search(task.parts.judged.queries, 100), count=110, **known)


def test_each_query_is_ranked_by_the_model_that_did_not_see_it_and_all_train_the_last(
    task: FitTask, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings: dict[str, Any] = {}
    train = FitTask.train

    def watched(task: FitTask, name: str, *rest: Any, fold: str = "", **how: Any) -> Any:
        trainings[name + fold] = trained = train(task, name, *rest, fold=fold, **how)
        return trained

    monkeypatch.setattr(FitTask, "train", watched)
    lower = below(task, tiny_bi_encoder, folds=["of another number of folds"] * 5)
    result = named("adapter").make(task, lower, Plan(start=str(tiny_bi_encoder), folds=3))
    assert list(trainings) == [*(f"adapter-{number}-of-3" for number in (1, 2, 3)), "adapter-whole"]
    seen = {name: {query.qid for query in own.work.prepared.train.queries} for name, own in trainings.items()}
    assert seen["adapter-whole"] == set(task.parts.judged.qrels)
    encoders = {name: str(FirstStage.open(own.work.first_stage).encoder) for name, own in trainings.items()}
    assert list(result.folds) == [encoders[name] for name in list(trainings)[:3]]
    assert str(result.system.first_stage.encoder) == encoders["adapter-whole"]
    assert (result.count, len(result.run)) == (110, 110)
    for name, encoder in list(encoders.items())[:3]:
        queries = [query for query in task.parts.judged.queries if query.qid not in seen[name]]
        assert 36 <= len(queries) <= 38
        found = search_both(task.index, FirstStage(task.index, encoder=encoder, share=1.0).dense, queries, DEFAULT_BM25)
        possible = [fuse(found, Shares.hybrid(share / 10), depth=100) for share in range(1, 11)]
        for query in queries:
            assert any(list(result.run[query.qid]) == list(run[query.qid]) for run in possible)


@pytest.mark.parametrize("engine", [False, True])
def test_what_stands_on_a_bi_encoder_of_folds_asks_that_of_each_query(
    task: FitTask, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch, engine: bool
) -> None:
    lower = below(task, tiny_bi_encoder, folds=["first", "second"], stages={"encoder": {}}, engine=engine)
    if engine:
        answered: list[Any] = []
        monkeypatch.setattr(Result, "answer", lambda own, *_: answered.append(own.system.first_stage.encoder) or Run())
    asked: dict[str, str] = {}

    def rank(first: FirstStage, queries: Sequence[Query]) -> Run:
        asked.update({query.qid: str(first.encoder) for query in queries})
        return Run({query.qid: lower.run[query.qid] for query in queries})

    assert dict(steps._by_fold(task, lower, task.parts.judged, rank)) == dict(lower.run)
    expected = {
        qid: encoder
        for (*_, choose), encoder in zip(task.parts.folds(2), lower.folds, strict=True)
        for qid in choose.qrels
    }
    assert asked == expected
    trained: list[tuple[Any, ...]] = []

    def train(task: FitTask, name: str, first: FirstStage, *_: Any, fold: str, candidates: Any, **how: Any) -> Any:
        """The candidates of all but the last are those that were found out of fold."""
        trained.append((name + fold, first.encoder, how["measured"]))
        run = candidates["dev_run"]
        assert all(run[qid] is lower.run[qid] for qid in run)
        return SimpleNamespace(work=SimpleNamespace(done=[SimpleNamespace(run=run, folder=tiny_bi_encoder)]))

    monkeypatch.setattr(FitTask, "train", train)
    ranked: list[Any] = []

    def reranked(task: FitTask, below: Result, ranker: Path, runs: dict[str, Run], count: int) -> Result:
        ranked[:] = [dict(runs["model"]), count]
        return lower

    monkeypatch.setattr(steps, "_reranked", reranked)
    named("rerank").make(task, lower, Plan(start="model", folds=2))
    assert trained == [
        ("rerank-1-of-2", "first", None),
        ("rerank-2-of-2", "second", None),
        ("rerank-whole", str(tiny_bi_encoder), 1),
    ]
    assert ranked == [dict(lower.run), 110]
    if engine:  # negatives are those of the first stage that saw the same queries
        assert answered == [encoder for _, encoder, _ in trained]


def test_a_killed_fit_trains_the_folds_that_are_missing(
    tmp_path: Path, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    trained: list[str] = []
    run_stage, most = recipes.run_stage, [2]

    def watched(pool: Path, planned: Any, work: Any) -> Any:
        if len(trained) == most[0]:
            raise Killed
        result = run_stage(pool, planned, work)
        trained.append(work.recipe.name)
        return result

    monkeypatch.setattr(recipes, "run_stage", watched)
    monkeypatch.setattr(climb, "all_steps", lambda task: [named("hybrid"), named("adapter")])
    monkeypatch.setattr(judge, "LEVEL", 1.1)  # whatever is better is kept
    data = toys.write_data(tmp_path / "data", queries=110)
    with pytest.raises(Killed):
        fitted(tmp_path / "system", tiny_bi_encoder, data)
    most[0] = 1000
    system, said = fitted(tmp_path / "system", tiny_bi_encoder, data)
    assert trained == [*(f"adapter-{number}-of-5" for number in range(1, 6)), "adapter-whole"]
    assert "an adapter on its vectors, trained on 5 folds and on all queries" in said
    assert results(system)["adapter"]["queries"] == 110
    whole, _ = fitted(tmp_path / "whole", tiny_bi_encoder, data)
    assert results(system)["adapter"]["judged"] == results(whole)["adapter"]["judged"]


def test_few_queries_tune_settings_but_train_nothing(
    tmp_path: Path, tiny_bi_encoder: Path, tiny_checkpoint: Path
) -> None:
    data = take(tmp_path / "data", 30, "train")
    system, said = fitted(tmp_path / "system", tiny_bi_encoder, data, ranker=tiny_checkpoint)
    assert "only large differences can be told from chance" in said
    tried = results(system)
    assert tried["rerank"]["skipped"] == "training needs 150 judged queries, and there are 30"
    assert "judged" in tried["hybrid"]
    assert tried["bm25"]["report"] == tried["bm25"]["judged"]
    assert "on 30 queries" in said
    assert "30 queries, the same that steps were chosen on" in (system.folder / "report.html").read_text()


def test_the_figures_of_few_queries_are_those_of_the_saved_system_too(
    tmp_path: Path, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cross-validation, which decides, ranks each query by other settings than those that are saved."""
    monkeypatch.setattr(judge, "LEVEL", 1.1)  # whatever is better is kept
    monkeypatch.setattr(climb, "all_steps", lambda task: [better])

    def half(task: FitTask, below: Result, plan: Plan) -> Result:
        """What searches better than was measured."""
        found = perfect(task, below, plan)
        first = below.run.head(1)
        return replace(found, run=Run({qid: found.run[qid] if n % 2 else first[qid] for n, qid in enumerate(first)}))

    better = Step("better", "a better step", half)
    data = take(tmp_path / "data", 30, "train")
    system, said = fitted(tmp_path / "system", tiny_bi_encoder, data)
    step = results(system)["better"]
    assert step["kept"]
    queries, qrels = open_dataset(data).queries("train"), open_dataset(data).qrels("train")
    judged = Qrels({query.qid: qrels[query.qid] for query in queries})
    mean = evaluate(judged, system.search(queries, 100), ["RR@10"]).mean["RR@10"]
    assert step["report"]["RR@10"]["mean"] == pytest.approx(mean)
    assert step["judged"]["RR@10"]["mean"] != pytest.approx(mean)
    chosen = f"on 30 queries that its settings were chosen on ({step['judged']['RR@10']['mean']:.3f} cross-validated)"
    assert f"RR@10 {mean:.3f} [" in said
    assert chosen in said
    page = (system.folder / "report.html").read_text()
    assert f'RR@10 <b class="good">{mean:.3f}</b>' in page
    rows = [line.split("\t") for line in (system.folder / "queries.tsv").read_text().splitlines()]
    assert sum(float(row[-1]) for row in rows[1:]) / 30 == pytest.approx(mean, abs=1e-5)


def test_few_queries_move_the_weight_a_little_and_it_is_kept_if_it_is_better(
    tmp_path: Path, tiny_bi_encoder: Path
) -> None:
    task = FitTask(str(take(tmp_path / "data", 30, "train")), tmp_path / "few", device="cpu")
    part, first = task.parts.judged, FirstStage(task.index, encoder=tiny_bi_encoder, share=0.7)
    below = Result(System(first), System(first).search(part.queries, 100), count=30)
    step = next(step for step in every_step(task) if step.name == "tuned")
    assert (step.cautious, named("tuned").cautious) == (True, False)  # with many, it has to be shown to be better
    tuned = replace(step.make(task, below, Plan()), step=step, count=30)
    runs = search_both(task.index, first.dense, part.queries, first.bm25)
    figures = [
        evaluate(part.qrels, fuse(runs, Shares.hybrid(share / 10), depth=100), "RR@10").mean["RR@10"]
        for share in range(1, 11)
    ]
    best, weight = (1 + figures.index(max(figures))) / 10, tuned.system.first_stage.share
    assert best < 0.6  # the tiny model knows nothing
    assert best < weight < 0.7
    ours = evaluate(part.qrels, tuned.run, [task.measure])
    contrast, replaces = compare_with(part, tuned, ours, below, judge.LEVEL)
    assert replaces == (contrast.difference > 0)


def test_where_nothing_can_be_gained_a_fit_of_eight_steps_keeps_none_in_39_of_40_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = FitTask(str(take(tmp_path / "data", 40, "train")), tmp_path / "work", device="cpu")
    part, random = task.parts.judged, np.random.default_rng(7)
    steps = [Step(f"step {n}", f"step {n}", perfect) for n in range(8)]

    def drawn() -> Result:
        """A system like all others, which finds the relevant documents at ranks of their own."""
        scores = {qid: dict(zip(own, random.permutation(len(own)) * 1.0, strict=True)) for qid, own in pools.items()}
        first = FirstStage(task.index, BM25(k1=1 + float(random.random())))  # no two have the same settings
        return Result(System(first), Run.from_scores(scores), count=40)

    def tried(task: FitTask, clock: climb.Clock, step: Step, bests: Bests, say: climb.Say, level: float) -> Result:
        """What is drawn instead of made."""
        return judge.judge(task, replace(drawn(), step=step, key=step.name), bests, level)

    pools = {
        qid: [*[d for d, grade in own.items() if grade > 0][:1], *(f"other {n}" for n in range(9))]
        for qid, own in part.qrels.items()
    }
    monkeypatch.setattr(climb, "all_steps", lambda task: steps)
    monkeypatch.setattr(climb, "_try", tried)
    monkeypatch.setattr(climb, "_read", lambda *_: replace(drawn(), step=climb.BASE, becomes=climb.BASE.replaces))
    kept = 0
    for _ in range(50):
        climbed = climb.climb(task, climb.Clock(60), lambda line: None)
        kept += any(result.kept for result in climbed.results[1:])
        assert sum(result.level for result in climbed.results if not result.kept) <= judge.LEVEL + 1e-9
    assert kept <= 3  # 1.25 are expected, and 9 if each step had the whole level


def test_a_step_that_is_worse_is_never_kept(tmp_path: Path) -> None:
    """Not shown to be worse, what is there without fitting stays; what is fitted with caution does not."""
    task = FitTask(str(take(tmp_path / "data", 30, "train")), tmp_path / "few", device="cpu")
    part, system = task.parts.judged, System(FirstStage(task.index, encoder="rankwell-mini", share=0.6))
    relevant = {qid: {d: 1.0 for d, grade in own.items() if grade > 0} for qid, own in part.qrels.items()}
    below = Result(System(FirstStage(task.index)), Run.from_scores(relevant), count=30)
    worse = Run.from_scores({**relevant, part.queries[0].qid: {"no such document": 1.0}})
    for step, stays in ((named("hybrid"), True), (replace(named("tuned"), cautious=True), False)):
        judged = judge.judge(task, Result(system, worse, count=30, step=step), Bests.begin(below), judge.LEVEL)
        assert judged.contrast is not None
        assert (judged.contrast.difference < 0, judged.contrast.p > 0.05) == (True, True)
        assert (judged.kept, "best" in judged.becomes) == (False, stays)
        assert ("not shown to be worse" in climb.line_of(judged, task)) == stays
        bests = Bests.begin(replace(below, becomes=("best",))).after(judged)
        assert (bests.best is judged, bests.base is judged) == (stays, stays)


def test_settings_that_are_those_of_the_unfitted_system_are_not_kept(
    tmp_path: Path, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although cross-validation chose others for some queries, which ranked better."""

    def same(task: FitTask, below: Result, plan: Plan) -> Result:
        return replace(perfect(task, below, plan), system=System(replace(below.system.first_stage)))

    two = [Step("same", "tuned settings", same), Step("better", "a better step", perfect)]
    monkeypatch.setattr(climb, "all_steps", lambda task: [named("hybrid"), *two])
    data = take(tmp_path / "data", 30, "train")
    system, said = fitted(tmp_path / "system", tiny_bi_encoder, data)
    tried = results(system)
    below = "hybrid" if tried["hybrid"]["system"] == tried["same"]["system"] else "bm25"
    assert (tried["same"]["kept"], "against the step below" in tried["same"]) == (False, False)
    assert tried["same"]["judged"] == tried[below]["judged"]
    assert re.search(r"· tuned settings +RR@10 0\.\d+ \[.*\]  the same settings as before", said)
    assert tried["better"]["kept"]
