"""``rankwell experiment`` as a user meets it; the stages are toys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankwell.models.checkpoints.folders import load_checkpoint, save_checkpoint

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


def test_rare_words_compare_two_models(rankwell: Call, tiny_checkpoint: Path, tmp_path: Path) -> None:
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


def test_options_of_rare_words_are_not_for_suites(rankwell: Call) -> None:
    done = rankwell("experiment", "table1", "--model", "x", "--out", "out")
    assert "--model, --data, --cases and --max-cases are options of rare-words" in done.complaint
