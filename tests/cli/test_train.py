"""``rankwell train`` as a user meets it; the stages are toys."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from rankwell.cli.train import train
from rankwell.core.errors import RankwellError

toys = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "training" / "toys.py")))


class User:
    def __init__(self, folder: Path, patch: pytest.MonkeyPatch):
        self.folder = folder
        self.toys = toys.Toys(patch)
        self.app = typer.Typer()
        self.app.command()(train)

    def train(self, *arguments: str) -> Result:
        return CliRunner().invoke(self.app, ["recipe.yaml", "--out", "out", *arguments])


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


def test_training_prints_stages_table_and_model(user: User) -> None:
    done = user.train("--set", "data=data")
    assert done.exit_code == 0
    assert "stage 1 of 2, warm: running\nstage 2 of 2, fit: running\n" in done.output
    assert "first stage" in done.output
    assert "0.7500" in done.output
    told = "model: out/model\ncandidates as above: rankwell search INDEX QUERIES --k1 0.9 --b 0.4 --k 12 --out RUN\n"
    assert done.output.endswith(told)
    again = user.train("--set", "data=data", "--resume")
    assert "stage 2 of 2, fit: done before" in again.output
    assert user.toys.calls == ["01-warm", "02-fit"]


def test_a_ranker_below_its_first_stage_is_called_that(user: User) -> None:
    assert "ranks worse" not in user.train("--set", "data=data", "--set", "stages.fit.share=1").output
    poor = user.train("--set", "data=data", "--set", "stages.fit.share=0", "--resume")
    assert "fit ranks worse than the first stage." in poor.output
    assert "rankwell-mini" in (user.folder / "out" / "table.md").read_text()


def test_settings_change_the_recipe(user: User) -> None:
    done = user.train("--set", "data=data", "--set", "stages.warm=off", "--set", "stages.fit.share=0.25")
    assert "stage 1 of 1, fit" in done.output
    resolved = yaml.safe_load((user.folder / "out" / "recipe.yaml").read_text())
    assert resolved["stages"] == {
        "fit": {"kind": "fit", "share": 0.25, "behaviour": "works", "budget": None, "extra": {}}
    }
    assert resolved["data"]["folder"] == str(user.folder / "data")


def test_check_trains_nothing(user: User) -> None:
    done = user.train("--set", "data=data", "--check")
    assert [line.split("-")[1] for line in done.output.splitlines()] == ["warm", "fit"]
    assert done.output.count(": to do\n") == 2
    assert user.toys.calls == []
    user.train("--set", "data=data")
    assert user.train("--set", "data=data", "--check").output.count(": done\n") == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "recipe.yaml: data.folder: is not set; name the folder"),
        (["--set", "data=nowhere"], "nowhere: no such folder"),
        (
            ["--set", "data=data", "--set", "evaluate.measures=RR@10"],
            "measures: expected a list, such as [RR@10]",
        ),
        (["--set", "modle.template=typed", "--set", "data=data"], "--set modle: no such key; did you mean model?"),
        (["--set", "data=data", "--set", "stages.fit.shaer=1"], "--set stages.fit.shaer: no such key; did you mean"),
    ],
)
def test_mistakes_are_one_line(user: User, arguments: list[str], expected: str) -> None:
    done = user.train(*arguments)
    assert isinstance(done.exception, RankwellError)
    assert expected in str(done.exception)
    assert user.toys.calls == []


def test_a_plugin_adds_a_stage_kind(user: User) -> None:
    plugin = """
from rankwell.training.options import Options
from rankwell.training.stage import STAGES, StageKind, StageResult
STAGES.register("my-own")(StageKind(Options, lambda work, stage, folder: StageResult(figures={"answer": 42})))
"""
    (user.folder / "my_stages.py").write_text(plugin)
    settings = ("--set", "data=data", "--set", "stages.mine={kind: my-own}", "--check")
    assert "my-own" in str(user.train(*settings).exception)
    done = user.train(*settings, "--plugin", "my_stages")
    assert "03-mine-" in done.output, done.exception
    assert str(user.train(*settings, "--plugin", "nowhere").exception) == "--plugin nowhere: no module called nowhere"


def test_help_has_examples() -> None:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(train)
    text = CliRunner().invoke(app, ["--help"]).output
    assert "rankwell train drbert --set data=my-data --out my-model" in " ".join(text.split())
