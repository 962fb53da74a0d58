"""``rankwell train`` as a user meets it; the stages are toys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Call = Callable[..., Any]


@pytest.fixture
def train(rankwell: Call, toys: Any) -> Call:
    """Run ``rankwell train recipe.yaml --out out``."""
    return lambda *options: rankwell("train", "recipe.yaml", "--out", "out", *options)


def test_training_prints_stages_table_and_model(train: Call, toys: Any) -> None:
    done = train("--set", "data=data")
    assert done.code == 0
    assert "stage 1 of 2, warm: running\nstage 2 of 2, fit: running\n" in done.out
    assert "first stage" in done.out
    assert "0.7500" in done.out
    assert done.out.endswith("model: out/model\n")
    again = train("--set", "data=data", "--resume")
    assert "stage 2 of 2, fit: done before" in again.out
    assert toys.calls == ["01-warm", "02-fit"]


def test_a_ranker_below_its_first_stage_is_called_that(train: Call) -> None:
    assert "ranks worse" not in train("--set", "data=data", "--set", "stages.fit.share=1").out
    poor = train("--set", "data=data", "--set", "stages.fit.share=0", "--resume")
    assert "fit ranks worse than the first stage." in poor.out
    assert "rankwell-mini" in Path("out/table.md").read_text()


def test_settings_change_the_recipe(train: Call) -> None:
    done = train("--set", "data=data", "--set", "stages.warm=off", "--set", "stages.fit.share=0.25")
    assert "stage 1 of 1, fit" in done.out
    resolved = yaml.safe_load(Path("out/recipe.yaml").read_text())
    assert resolved["stages"] == {
        "fit": {"kind": "fit", "share": 0.25, "behaviour": "works", "budget": None, "extra": {}}
    }
    assert resolved["data"]["folder"] == str(Path("data").absolute())


def test_check_trains_nothing(train: Call, toys: Any) -> None:
    done = train("--set", "data=data", "--check")
    assert [line.split("-")[1] for line in done.out.splitlines()] == ["warm", "fit"]
    assert done.out.count(": to do\n") == 2
    assert toys.calls == []
    train("--set", "data=data")
    assert train("--set", "data=data", "--check").out.count(": done\n") == 2


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
def test_mistakes_are_one_line(train: Call, toys: Any, arguments: list[str], expected: str) -> None:
    assert expected in train(*arguments).complaint
    assert toys.calls == []


def test_a_plugin_adds_a_stage_kind(train: Call) -> None:
    plugin = """
from rankwell.training.options import Options
from rankwell.training.stage import STAGES, StageKind, StageResult
STAGES.register("my-own")(StageKind(Options, lambda work, stage, folder: StageResult(figures={"answer": 42})))
"""
    Path("my_stages.py").write_text(plugin)
    settings = ("--set", "data=data", "--set", "stages.mine={kind: my-own}", "--check")
    assert "my-own" in train(*settings).complaint
    done = train(*settings, "--plugin", "my_stages")
    assert "03-mine-" in done.out, done.err
    assert train(*settings, "--plugin", "nowhere").complaint == "--plugin nowhere: no module called nowhere"
    told = train(*settings, "--plugin", "my/losses.py").complaint
    assert told == "--plugin my/losses.py: a file, expected the name of a module: my.losses"
