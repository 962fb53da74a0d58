"""Columns and claims: a suite from the start of all rows to the verdict, and what two processes share."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from tests.paper_tables import read_values

from rankwell import sample
from rankwell.corpus.formats import read_run
from rankwell.training.experiments.claims import Claim, Effect, claims_table, effect_of, student_t_quantile
from rankwell.training.experiments.experiment import read_suite, run_experiment
from rankwell.training.recipe_reader import Override


def test_an_effect_counts_seeds_and_queries_as_two_samples() -> None:
    # Gaps 1 2 3 and 3 4 5: mean squares 6 of the seeds, 2 of the queries, 0 of the rest.
    ours = {1: np.array([1.0, 2, 3]), 2: np.array([3.0, 4, 5])}
    effect = Effect.of(ours, {seed: np.zeros(3) for seed in ours})
    assert (effect.mean, effect.error**2, effect.freedom) == pytest.approx((3.0, 4 / 3, 1.684211), abs=1e-6)
    assert student_t_quantile(0.05, 2) == pytest.approx(4.303, abs=1e-3)
    # A first stage, which has no seed, is compared with each seed of the other.
    assert effect_of({"lists": ours, "first stage": {0: np.zeros(3)}}, "lists", "first stage") == effect


def test_one_training_beside_three_is_one_training() -> None:
    rows = {"lists": {seed: np.array([1.0, 2, 3]) + seed for seed in (1, 2, 3)}, "BERT": {2: np.zeros(3)}}
    effect = effect_of(rows, "lists", "BERT")
    assert effect is not None
    assert (effect.seeds, effect.mean, effect.verdict(None)) == (1, 4.0, "seen once")
    assert effect_of({**rows, "BERT": {7: np.zeros(3)}}, "lists", "BERT") is None


def test_verdicts_of_a_table_are_corrected_together_without_those_seen_once() -> None:
    gaps, queries = np.array([-0.1, 0.0, 0.1]), np.array([0.9, 1.0, 1.1, 1.0])
    rows = {
        "BERT": dict.fromkeys((1, 2, 3), np.zeros(4)),
        "lists": {seed: queries * 0.4 + gap for seed, gap in zip((1, 2, 3), gaps, strict=True)},
        "once": {1: np.ones(4)},
    }
    claims = [Claim(claim=row, row=row, against="BERT") for row in ("lists", "once")]
    alone = claims_table(claims, [""], {("", "dev"): rows})
    assert [row[5].text for row in alone.rows] == ["found", "seen once"]
    effect = Effect.of(rows["lists"], rows["BERT"])
    assert 0.01 < effect.p < 0.05
    beside = claims_table(claims, [""], {("", "dev"): rows}, [effect] * 4)
    assert [row[5].text for row in beside.rows] == ["open", "seen once"]


def test_an_effect_of_one_seed_is_that_of_a_paired_test() -> None:
    effect = Effect.of({1: np.array([1.0, 2, 3])}, {1: np.zeros(3)})
    assert (effect.mean, effect.error, effect.freedom) == pytest.approx((2.0, (1 / 3) ** 0.5, 2))
    assert effect.verdict(None) == "seen once"


@pytest.mark.parametrize(
    ("mean", "error", "published", "verdict"),
    [
        (0.03, 0.001, 0.03, "found"),
        (0.03, 0.001, None, "found"),
        (0.02, 0.001, 0.03, "found, smaller"),
        (-0.02, 0.001, 0.03, "opposite"),
        (-0.02, 0.001, None, "opposite"),
        (0.0, 0.001, 0.03, "smaller than published"),
        (0.0, 0.1, 0.03, "open"),
        (0.0, 0.1, None, "open"),
    ],
)
def test_a_verdict_says_sign_and_size(mean: float, error: float, published: float | None, verdict: str) -> None:
    assert Effect(mean, error, 50).verdict(published) == verdict


TRAINING = {"epochs": 1, "max_steps": 2, "batch": 4, "best": "last"}
RECIPE = {
    "name": "tiny",
    "data": {"train_queries": 12, "dev_queries": 10},
    "first_stage": {"depth": 10},
    "model": {"max_length": 48, "max_query": 16, "adapt": True},
    "evaluate": {"measures": ["RR@10"]},
    "stages": {"pointwise": TRAINING, "listwise": {**TRAINING, "negatives": 2}},
}
SUITE = {
    "base": "tiny.yaml",
    "start": {"base": "general.yaml"},
    "seeds": [1, 2],
    "variants": {"BERT": {"stages.listwise": False}, "lists": {}},
    "columns": {
        "as published": {},
        "at equal training": {"set": {"stages.pointwise.max_steps": 1}, "variants": {"BERT": {}, "more": {}}},
    },
    "claims": [
        {"claim": "lists", "row": "lists", "against": "BERT", "published": 0.03},
        {"claim": "re-ranking", "row": "BERT", "against": "first stage"},
    ],
}


@pytest.fixture
def suite(tmp_path: Path, tiny_checkpoint: Path) -> Path:
    """A suite of real stages for a tiny model."""
    recipe = {**RECIPE, "model": {**RECIPE["model"], "start": str(tiny_checkpoint)}}  # type: ignore[dict-item]
    pretrain = {"epochs": 1, "max_steps": 2, "batch": 4, "max_length": 48}
    general = {"name": "general", "model": recipe["model"], "stages": {"pretrain": pretrain}}
    for name, tree in (("tiny", recipe), ("general", general), ("suite", SUITE)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    return tmp_path / "suite.yaml"


def settings() -> list[Override]:
    return [Override("data", str(sample.FOLDER)), Override("start.data", str(sample.FOLDER))]


def test_a_suite_makes_its_start_its_columns_and_its_verdicts(suite: Path, tmp_path: Path) -> None:
    experiment, out = read_suite(suite, settings()), tmp_path / "out"
    outcome = run_experiment(experiment, out, device="cpu")
    assert outcome.failures == {}
    assert list(outcome.compared) == ["dev, as published", "dev, at equal training"]
    assert list(outcome.compared["dev, at equal training"].seeds) == ["first stage", "BERT", "lists", "more"]
    assert len(list(out.glob("stages/01-pretrain-*"))) == 1
    recipe = yaml.safe_load((out / "runs" / "lists-as-published" / "seed-1" / "recipe.yaml").read_text())
    assert "01-pretrain-" in recipe["model"]["start"]
    with (out / "claims.csv").open(encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0][3:] == ["as published", "detectable", "verdict", "at equal training", "detectable", "verdict"]
    assert [row[0] for row in rows[1:]] == ["lists", "re-ranking"]
    assert {row[column] for row in rows[1:] for column in (5, 8)} <= {
        *("found", "found, smaller", "opposite", "smaller than published", "open")
    }
    # The kept values give the same table.
    files = {column: f"values.dev-{column.replace(' ', '-')}.RR-10.csv.gz" for column in experiment.columns}
    again = {(column, "dev"): read_values(out / name) for column, name in files.items()}
    table = claims_table(experiment.suite.claims, list(experiment.columns), again)
    assert [cell.text for row in table.rows for cell in row] == [
        cell.text for row in (outcome.claims.rows if outcome.claims else ()) for cell in row
    ]
    run = read_run(out / "rankings" / "lists-as-published.seed-2.dev.run.gz")
    assert len(run) == 10
    assert "## The paper's claims" in (out / "table.md").read_text(encoding="utf-8")


def test_a_start_that_is_given_is_not_made(suite: Path, tiny_checkpoint: Path) -> None:
    assert read_suite(suite, [*settings(), Override("model.start", str(tiny_checkpoint))]).start is None
    assert read_suite(suite, settings()[:1]).start is None


def test_two_processes_share_an_experiment(suite: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rankwell", "experiment", str(suite), "--device", "cpu", "--out", "out"]
    for setting in settings():
        command += ["--set", f"{setting.path}={setting.value}"]
    running = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in "ab"]
    said = [process.communicate(timeout=1200) for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    assert len(list((tmp_path / "out" / "stages").glob("*-listwise-*"))) == 4


def test_claims_are_of_rows_that_are_there(suite: Path) -> None:
    tree = {**SUITE, "claims": [Claim(claim="x", row="lsits", against="BERT").model_dump()]}
    suite.write_text(yaml.safe_dump(tree), encoding="utf-8")
    with pytest.raises(Exception, match="claims: nothing is called 'lsits'"):
        read_suite(suite, settings())
