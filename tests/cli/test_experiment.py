"""``rankwell experiment`` as a user meets it; the stages are toys."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from rankwell.cli.experiment import experiment
from rankwell.core.errors import RankwellError
from rankwell.models.checkpoints.folders import load_checkpoint, save_checkpoint

toys = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "training" / "toys.py")))
VARIANTS = {"half": {"stages.fit.share": 0.5}, "whole": {"stages.fit.share": 1.0}}


class User:
    def __init__(self, folder: Path, patch: pytest.MonkeyPatch):
        self.folder = folder
        self.toys = toys.Toys(patch)
        self.app = typer.Typer()
        self.app.command()(experiment)

    def experiment(self, variants: dict[str, object], *arguments: str) -> Result:
        suite = {"base": "recipe.yaml", "variants": variants}
        (self.folder / "suite.yaml").write_text(yaml.safe_dump(suite, sort_keys=False))
        return CliRunner().invoke(self.app, ["suite.yaml", "--out", "out", *arguments])


@pytest.fixture
def user(tmp_path: Path, tiny_tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> User:
    monkeypatch.chdir(tmp_path)
    user = User(tmp_path, monkeypatch)
    start = toys.write_start(tmp_path / "start", tiny_tokenizer)
    tree = toys.recipe_tree(Path("unknown"), start)
    del tree["data"]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    toys.write_data(tmp_path / "data")
    return user


def test_an_experiment_prints_its_table(user: User) -> None:
    done = user.experiment(VARIANTS, "--set", "data=data", "--set", "evaluate.measures=[P@1]")
    assert done.exit_code == 0
    assert "half, seed 1\n" in done.output
    lines = [line.split()[:3] for line in done.output.splitlines()]
    assert ["half", "1", "0.5000"] in lines
    assert ["whole", "1", "1.0000*"] in lines


def test_a_failure_is_told_and_the_exit_code_says_so(user: User) -> None:
    broken = {**VARIANTS, "broken": {"stages.fit.behaviour": "is refused"}}
    done = user.experiment(broken, "--set", "data=data")
    assert done.exit_code == 1
    assert "failed: broken, seed 1: the toy cannot be fitted to this" in done.output
    assert (user.folder / "out" / "table.md").is_file()


def test_a_mistake_is_found_before_anything_runs(user: User) -> None:
    done = user.experiment({**VARIANTS, "x": {"stages.fit.sahre": 1}}, "--set", "data=data")
    assert isinstance(done.exception, RankwellError)
    assert "suite.yaml: variants.x: stages.fit.sahre: no such key; did you mean share?" in str(done.exception)
    assert user.toys.calls == []


def test_other_seeds_and_a_look_at_what_is_shared(user: User) -> None:
    done = user.experiment(VARIANTS, "--set", "data=data", "--seeds", "4,5", "--check")
    assert done.exit_code == 0
    lines = [line.rsplit(": ", 1) for line in done.output.splitlines()]
    assert [state for _, state in lines] == ["to do", "to do", "shared", "to do"] * 2
    assert [name.split(":")[0] for name, _ in lines[::4]] == ["half, seed 4", "half, seed 5"]
    assert user.toys.calls == []


def test_rare_words_compare_two_models(rankwell: Callable[..., Any], tiny_checkpoint: Path, tmp_path: Path) -> None:
    for rule in ("full", "strm"):
        model, tokenizer, config = load_checkpoint(tiny_checkpoint, attention=rule)
        save_checkpoint(tmp_path / rule, model, tokenizer, config)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "collection.tsv").write_text("d1\tthe bogue is a fish\nd2\ta bogus fish\n")
    (tmp_path / "data" / "queries.dev.tsv").write_text("q1\tbogue fish\n")
    (tmp_path / "data" / "qrels.dev.txt").write_text("q1 0 d1 1\n")
    models = ("--model", "full", "--model", "strm")
    found = rankwell("experiment", "rare-words", *models, "--data", "data", "--out", "out", "--device", "cpu")
    assert (found.code, found.err) == (0, "")
    assert "| full |" in found.out
    assert "| bogue fish | bogue | bogus |" in (tmp_path / "out" / "table.md").read_text(encoding="utf-8")


def test_options_of_rare_words_are_not_for_suites(rankwell: Callable[..., Any]) -> None:
    found = rankwell("experiment", "table1", "--model", "x", "--out", "out")
    assert found.code == 2
    assert "--model, --data, --cases and --max-cases are options of rare-words" in found.err
