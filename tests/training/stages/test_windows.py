"""The stages for long documents, from a recipe to runs and tests; and what they ask of the data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.training import toys

from rankwell.core.errors import RankwellError
from rankwell.corpus.formats import read_run
from rankwell.corpus.records import Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.models.checkpoints.config import read_ranker_config
from rankwell.rank.fusion import Shares, fuse
from rankwell.rank.ranker import Ranker
from rankwell.rank.window_scores import WindowScores
from rankwell.training.data.prepare import prepare
from rankwell.training.experiments.experiment import read_suite, run_experiment
from rankwell.training.recipe import Recipe
from rankwell.training.recipe_reader import Override, build_recipe
from rankwell.training.run import Trained, run_recipe

WINDOWS = {"size": 2, "stride": 1, "aggregate": "max", "keep": 2}
SHARES = {"encoder": None, "normalise": "min-max"}
GRID = {**SHARES, "beta": "0.0:1:0.5", "aggregate": ["max", "mean"], "weights": 2, "step": 0.5, "folds": 4}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("documents")


@pytest.fixture(scope="module")
def data(place: Path) -> Path:
    return toys.write_data(place / "data")


def recipe_of(data: Path, start: Path, changes: dict[str, Any] | None = None, **stages: Any) -> Recipe:
    tree = toys.recipe_tree(data, start, **(stages or {"windows": WINDOWS, "tune": GRID}))
    return build_recipe(tree, "r.yaml", [Override(path, value) for path, value in (changes or {}).items()])


@pytest.fixture(scope="module")
def done(data: Path, place: Path, tiny_checkpoint: Path) -> Trained:
    return run_recipe(recipe_of(data, tiny_checkpoint), place / "out", device="cpu")


def stage_folder(out: Path, name: str) -> Path:
    (found,) = (out / "stages").glob(f"*-{name}-*")
    return found


def test_windows_are_kept_and_rank_as_the_ranker_does(done: Trained, place: Path) -> None:
    folder, dev = stage_folder(place / "out", "windows"), done.work.data.dev
    (kept,) = folder.glob("windows-*.npz")
    scores = WindowScores.read(kept)
    assert scores.counts.tolist() == [2] * sum(map(len, dev.run.values()))
    # The checkpoint it leaves reads in the same windows without being told.
    ranker = Ranker.from_pretrained(folder / "model", engine={"device": "cpu"})
    expected = ranker.rerank(dev.run, dev.queries, done.work.data.index, activation="probability")
    (run,) = folder.glob("dev-*.run.gz")
    found = read_run(run)
    assert {qid: found[qid].docids for qid in found} == {qid: expected[qid].docids for qid in expected}
    assert found["dev3"].scores == pytest.approx(expected["dev3"].scores, abs=1e-6)


def test_interpolation_leaves_its_choice_and_tests(done: Trained, place: Path) -> None:
    folder, dev = stage_folder(place / "out", "tune"), done.work.data.dev
    tuning = json.loads((folder / "tuning.json").read_text())
    # max, mean, top2 by (.5 .5) and (1 0), each with three β.
    assert len(tuning["grid"]) == 4 * 3
    assert len(tuning["folds"]) == 4
    means = [one["mean"] for one in tuning["grid"]]
    best = tuning["grid"][int(np.argmax(means))]
    assert tuning["best"] == {name: best[name] for name in ("model", "similarity", "first", "aggregate", "normalise")}
    own = read_ranker_config(folder / "model")
    assert own is not None
    assert own.windows is not None
    assert (own.windows.size, own.windows.aggregate) == (2, best["aggregate"])
    assert own.figures["tuned"].endswith(f"(min-max), {best['aggregate']}")
    table = (folder / "table.md").read_text()
    assert all(name in table for name in ("together", "first stage", "ranker alone"))
    figures = json.loads((folder / "stage.json").read_text())["produced"]["figures"]
    assert figures["RR@10, first stage"] == pytest.approx(evaluate(dev.qrels, dev.run, "RR@10").mean["RR@10"])
    held_out = evaluate(dev.qrels, read_run(folder / "held-out.run.gz"), "RR@10").mean["RR@10"]
    assert figures["RR@10, together"] == pytest.approx(held_out) == pytest.approx(tuning["cross_validated"])
    assert 0 <= figures["p, together against first stage, RR@10"] <= 1
    # The row of the recipe's table is the honest figure, not the best one.
    assert done.table.rows[-1][1].value == pytest.approx(held_out)


def test_a_fixed_share_is_the_usual_fusion_and_shares_the_windows(
    data: Path, place: Path, tiny_checkpoint: Path, done: Trained
) -> None:
    fixed = {**GRID, "beta": 0.3, "aggregate": ["top2"], "weights": 0}
    recipe = recipe_of(data, tiny_checkpoint, windows=WINDOWS, tune=fixed)
    again = run_recipe(recipe, place / "fixed", pool=place / "out", device="cpu")
    assert again.last is not None
    assert len(list((place / "out" / "stages").glob("*-windows-*"))) == 1, "windows are scored once"
    dev = done.work.data.dev
    (kept,) = stage_folder(place / "out", "windows").glob("windows-*.npz")
    expected = fuse({"first": dev.run, "model": WindowScores.read(kept).run("top2")}, Shares(model=0.7, first=0.3))
    assert {qid: again.last.run[qid].docids for qid in dev.run} == {qid: expected[qid].docids for qid in dev.run}
    (again_folder,) = (path for path in (place / "out" / "stages").glob("*-tune-*") if path == again.last.folder)
    assert json.loads((again_folder / "tuning.json").read_text())["best"]["first"] == 0.3


def test_other_splits_are_ranked_under_the_best_setting_of_dev(data: Path, place: Path, tiny_checkpoint: Path) -> None:
    stages = {"windows": WINDOWS, "tune": {**GRID, "weights": 0}}
    (place / "base.yaml").write_text(yaml.safe_dump(toys.recipe_tree(data, tiny_checkpoint, **stages), sort_keys=False))
    suite = {
        "base": "base.yaml",
        "axis": "stages.tune.beta",
        "variants": {str(beta): {"stages.tune.beta": beta} for beta in (0.0, 1.0)},
        "evaluate_on": {"test": {"split": "test"}},
    }
    (place / "suite.yaml").write_text(yaml.safe_dump(suite))
    outcome = run_experiment(read_suite(place / "suite.yaml"), place / "suite", device="cpu")
    assert outcome.failures == {}
    means = outcome.compared["test"].comparison.mean
    # With all of BM25 and nothing of the windows, the first stage's figures come out.
    assert means["1.0"]["RR@10"] == pytest.approx(means["first stage"]["RR@10"])
    assert means["0.0"]["RR@10"] != pytest.approx(means["first stage"]["RR@10"])
    assert (place / "suite" / "axis.png").stat().st_size > 1000


def test_a_stage_that_ranks_whole_documents_can_be_interpolated(
    data: Path, tmp_path: Path, tiny_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys.Toys(monkeypatch)
    start = toys.write_start(tmp_path / "start", tiny_tokenizer)
    # The toy puts the relevant document of half the queries first and that of the others last.
    tree = toys.recipe_tree(data, start, fit={"share": 0.5}, tune={"encoder": None, "step": 0.25})
    recipe = build_recipe(tree, "r.yaml")
    trained = run_recipe(recipe, tmp_path / "out", device="cpu")
    record = json.loads((stage_folder(tmp_path / "out", "tune") / "tuning.json").read_text())
    assert [one["first"] for one in record["grid"]] == [0.0, 0.25, 0.5, 0.75, 1.0], "one aggregate is enough"
    dev = trained.work.data.dev
    by_beta = {one["first"]: one["mean"] for one in record["grid"]}
    assert by_beta[1.0] == pytest.approx(evaluate(dev.qrels, dev.run, "RR@10").mean["RR@10"])
    (kept,) = stage_folder(tmp_path / "out", "fit").glob("dev-*.run.gz")
    assert by_beta[0.0] == pytest.approx(evaluate(dev.qrels, read_run(kept), "RR@10").mean["RR@10"])


def test_documents_that_are_cut_are_read_so_by_the_model_it_leaves(
    data: Path, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    recipe = recipe_of(data, tiny_checkpoint, windows={"size": 0, "aggregate": "max"})
    run_recipe(recipe, tmp_path / "out", device="cpu")
    folder = stage_folder(tmp_path / "out", "windows")
    assert Ranker.from_pretrained(folder / "model", engine={"device": "cpu"}).windows is None
    (kept,) = folder.glob("windows-*.npz")
    assert set(WindowScores.read(kept).counts.tolist()) == {1}


@pytest.mark.parametrize(
    ("stages", "problem"),
    [
        ({"tune": GRID}, "needs a stage before it that ranks documents"),
        ({"windows": WINDOWS, "tune": {"encoder": None, "folds": 40}}, "folds is 40, but dev has 24 queries"),
        ({"windows": WINDOWS, "tune": {"encoder": None, "beta": "0.5,1.5"}}, "a weight of 1.5 for the first stage"),
        ({"windows": WINDOWS, "tune": {"encoder": None, "aggregate": ["best"]}}, "no aggregation is called 'best'"),
        (
            {"windows": WINDOWS, "tune": {"encoder": None, "aggregate": [], "weights": 0}},
            "neither an aggregate nor weights",
        ),
        ({"windows": {**WINDOWS, "stride": 3}}, "the stride must be from 1 to the size"),
        ({"windows": {**WINDOWS, "aggregate": "top5"}}, "top5 needs more windows than keep, which is 2"),
    ],
)
def test_what_is_wrong_is_found_before_any_work(
    data: Path, tmp_path: Path, tiny_checkpoint: Path, stages: dict[str, Any], problem: str
) -> None:
    with pytest.raises(RankwellError, match=problem):
        run_recipe(recipe_of(data, tiny_checkpoint, **stages), tmp_path / "out", device="cpu")
    assert not (tmp_path / "out" / "stages").exists()


def test_a_share_of_the_training_queries_is_part_of_a_larger_one(
    data: Path, place: Path, tiny_checkpoint: Path
) -> None:
    drawn = {}
    for share in (0.25, 0.5, 1.0):
        recipe = recipe_of(data, tiny_checkpoint, {"data.train_share": share})
        split = prepare(recipe, place / "shares").train
        drawn[share] = [query.qid for query in split.queries]
        assert set(split.qrels) == set(split.run) == set(drawn[share])
    assert [len(drawn[share]) for share in drawn] == [6, 12, 24]
    assert set(drawn[0.25]) < set(drawn[0.5]) < set(drawn[1.0])
    assert drawn[0.5] != drawn[1.0][:12], "not simply the first"
    assert drawn[0.5] == [qid for qid in drawn[1.0] if qid in drawn[0.5]]


def test_the_first_stage_takes_k2(data: Path, tmp_path: Path, tiny_checkpoint: Path) -> None:
    (tmp_path / "data").mkdir()
    for file in data.iterdir():
        (tmp_path / "data" / file.name).write_bytes(file.read_bytes())
    # "bee" four times: with k2 = 1 it counts (1 + 1) · 4 / (1 + 4) = 1.6 times as much as once, and not 4 times.
    (tmp_path / "data" / "queries.dev.tsv").write_text("dev0\tbee bee bee bee\ndev1\tbee\n")
    (tmp_path / "data" / "qrels.dev.txt").write_text("dev0 0 d0 1\ndev1 0 d0 1\n")

    def scores(**options: Any) -> Run:
        changes = {f"first_stage.{name}": value for name, value in options.items()}
        return prepare(recipe_of(tmp_path / "data", tiny_checkpoint, changes), tmp_path / "pool").dev.run

    for run, factor in ((scores(), 4.0), (scores(k2=1), 1.6)):
        assert run["dev0"].docids == run["dev1"].docids
        assert run["dev0"].scores == pytest.approx(factor * run["dev1"].scores, rel=1e-6)


def test_two_stages_of_a_kind_are_measured_with_their_own_options(
    data: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    fixed = {**GRID, "kind": "tune", "aggregate": ["max"], "weights": 0}
    stages = {"windows": WINDOWS, "model-only": {**fixed, "beta": 0}, "first-only": {**fixed, "beta": 1}}
    model_only, first_only = run_recipe(
        recipe_of(data, tiny_checkpoint, **stages), tmp_path / "out", device="cpu"
    ).work.done[1:]
    windows, dev = model_only.work.done[0].run, model_only.work.data.dev
    assert windows is not None
    assert model_only.run is not None
    assert first_only.run is not None
    assert {qid: ranking.docids for qid, ranking in model_only.run.items()} == {
        qid: ranking.docids for qid, ranking in windows.items()
    }
    assert {qid: ranking.docids for qid, ranking in first_only.run.items()} == {
        qid: ranking.docids for qid, ranking in dev.run.items()
    }
    assert model_only.run != first_only.run
