"""``rankwell experiment`` as a user meets it; the stages are toys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Call = Callable[..., Any]
VARIANTS = {"half": {"stages.fit.share": 0.5}, "whole": {"stages.fit.share": 1.0}}


@pytest.fixture
def experiment(rankwell: Call, toys: Any) -> Call:
    """Run ``rankwell experiment`` on a suite of these variants."""

    def call(variants: dict[str, object], *options: str) -> Any:
        suite = {"base": "recipe.yaml", "variants": variants}
        Path("suite.yaml").write_text(yaml.safe_dump(suite, sort_keys=False))
        return rankwell("experiment", "suite.yaml", "--out", "out", "--set", "data=data", *options)

    return call


def test_an_experiment_prints_its_table(experiment: Call) -> None:
    done = experiment(VARIANTS, "--set", "evaluate.measures=[P@1]")
    assert done.code == 0
    assert "half, seed 1\n" in done.out
    lines = [line.split()[:3] for line in done.out.splitlines()]
    assert ["half", "1", "0.5000"] in lines
    assert ["whole", "1", "1.0000*"] in lines


def test_a_failure_is_told_and_the_exit_code_says_so(experiment: Call) -> None:
    done = experiment({**VARIANTS, "broken": {"stages.fit.behaviour": "is refused"}})
    assert done.code == 1
    assert "failed: broken, seed 1: the toy cannot be fitted to this" in done.out
    assert Path("out/table.md").is_file()


def test_a_mistake_is_found_before_anything_runs(experiment: Call, toys: Any) -> None:
    done = experiment({**VARIANTS, "x": {"stages.fit.sahre": 1}})
    assert "suite.yaml: variants.x: stages.fit.sahre: no such key; did you mean share?" in done.complaint
    assert toys.calls == []


def test_other_seeds_and_a_look_at_what_is_shared(experiment: Call, toys: Any) -> None:
    done = experiment(VARIANTS, "--seeds", "4,5", "--check")
    assert done.code == 0
    lines = [line.rsplit(": ", 1) for line in done.out.splitlines()]
    assert [state for _, state in lines] == ["to do", "to do", "shared", "to do"] * 2
    assert [name.split(":")[0] for name, _ in lines[::4]] == ["half, seed 4", "half, seed 5"]
    assert toys.calls == []
