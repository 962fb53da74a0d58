"""``rankwell explain`` as a user calls it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

pytest.importorskip("torch")

from rankwell.cli.explain import explain
from rankwell.core.errors import RankwellError

PAIR = ("--query", "what fish is bogue", "--document", "bogus fish of the sea")


@pytest.fixture
def run(tiny_checkpoint: Path) -> Callable[..., Result]:
    app = typer.Typer()
    app.command()(explain)
    # The command line cuts no lines short where the terminal is narrow.
    runner = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"})

    def call(*arguments: str | Path) -> Result:
        return runner.invoke(app, ["--model", str(tiny_checkpoint), *PAIR, *map(str, arguments)])

    return call


def test_the_terminal_shows_score_tokens_split_words_matches_and_attention(run: Callable[..., Result]) -> None:
    result = run("--attention", "strm", "--compare-attention", "full")
    assert result.exit_code == 0, result.exception
    text = result.stdout
    assert text.startswith("strm    score ")
    assert "\nfull    score " in text
    assert "what fish is bog·##ue" in text
    assert "bogus = bog ##us: visible to other words only as ##us" in text
    assert "fish = fish" in text
    assert "(layer 2, mean of 4 heads)" in text
    assert len([line for line in text.splitlines() if "→" in line and "█" in line]) == 10


def test_json_goes_to_the_terminal_or_to_a_file(run: Callable[..., Result], tmp_path: Path) -> None:
    printed = json.loads(run("--json", "--layer", "1", "--head", "2", "--compare-attention", "strm").stdout)
    assert (printed["layer"], printed["head"], printed["rule"]) == (1, 2, "full")
    assert printed["compared"]["rule"] == "strm"
    run("--layer", "1", "--head", "2", "--out", tmp_path / "x.json")
    del printed["compared"]
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == printed


def test_pictures_of_attention_and_of_the_rule(run: Callable[..., Result], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert run("--attention", "strm", "--compare-attention", "full", "--out", tmp_path / "two.png").exit_code == 0
    result = run("--attention", "strm", "--picture", "rule", "--out", tmp_path / "rule.png")
    (row,) = [line for line in result.stdout.splitlines() if "##us" in line and "●" in line]
    assert row.split() == ["9", "##us", *"● ● ● ● · ● ● ● ● ● ● ● ● ●".split()]  # the query's bog is closed
    for name in ("two.png", "rule.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_markers_can_be_tried_on_a_model_without_them(run: Callable[..., Result]) -> None:
    result = run("--markers")
    assert "[e2] fish [/e2]" in result.stdout
    assert "no markers; untrained ones are used" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--layer", "9"), "no layer 9: this model has layers 1 to 2"),
        (("--head", "0"), "no head 0: this model has heads 1 to 4, and mean"),
        (("--head", "best"), "--head best: expected a number from 1, or mean"),
        (("--out", "map.bmp"), "map.bmp: expected a name that ends in .json, .png, .svg, .pdf"),
        (("--compare-attention", "full"), "--compare-attention full: the model already uses this rule"),
        (("--type", "numeric"), "the template mono has no place for a type"),
        (("--model", "nowhere"), "nowhere: "),
    ],
)
def test_mistakes_are_one_line(run: Callable[..., Result], arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, RankwellError)
    assert str(result.exception).startswith(message)
    assert "\n" not in str(result.exception)
    assert result.stdout == ""
