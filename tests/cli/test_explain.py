"""``rankwell explain`` as a user calls it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]
PAIR = ("--query", "what fish is bogue", "--document", "bogus fish of the sea")


@pytest.fixture
def explain(rankwell: Call, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run ``rankwell explain`` on a pair."""
    monkeypatch.setenv("COLUMNS", "100")  # no line is cut short where the terminal is narrow
    return lambda *options: rankwell("explain", "--model", tiny_checkpoint, *PAIR, *options)


def test_the_terminal_shows_score_tokens_split_words_matches_and_attention(explain: Call) -> None:
    text = explain("--attention", "strm", "--compare-attention", "full").out
    assert text.startswith("strm    score ")
    assert "\nfull    score " in text
    assert "what fish is bog·##ue" in text
    assert "bogus = bog ##us: visible to other words only as ##us" in text
    assert "fish = fish" in text
    assert "(layer 2, mean of 4 heads)" in text
    assert len([line for line in text.splitlines() if "→" in line and "█" in line]) == 10


def test_json_goes_to_the_terminal(explain: Call) -> None:
    printed = json.loads(explain("--json", "--layer", "1", "--head", "2", "--compare-attention", "strm").out)
    assert (printed["layer"], printed["head"], printed["rule"]) == (1, 2, "full")
    assert printed["compared"]["rule"] == "strm"


def test_a_picture_of_attention_under_two_rules(explain: Call) -> None:
    assert explain("--attention", "strm", "--compare-attention", "full", "--out", "two.png").code == 0
    assert Path("two.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--layer", "9"), "no layer 9: this model has layers 1 to 2"),
        (("--head", "0"), "no head 0: this model has heads 1 to 4, and mean"),
        (("--head", "best"), "--head best: expected a number from 1, or mean"),
        (("--out", "map.bmp"), "map.bmp: expected a name that ends in .png, .svg, .pdf"),
        (("--compare-attention", "full"), "--compare-attention full: the model already uses this rule"),
        (("--type", "numeric"), "the template mono has no place for a type"),
        (("--model", "nowhere"), "nowhere: "),
    ],
)
def test_mistakes_are_one_line(explain: Call, arguments: tuple[str, ...], message: str) -> None:
    assert explain(*arguments).complaint.startswith(message)
