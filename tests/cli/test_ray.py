"""``--ray`` where rankwell-ray is missing, and the options that do not go with it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]
COMMANDS = {
    "index": ["collection.tsv", "--out", "out"],
    "search": ["my-index", "queries.tsv", "--out", "out.run"],
    "rerank": ["bm25.run", "--queries", "queries.tsv", "--collection", "my-index", "--out", "out.run"],
}


@pytest.mark.parametrize("verb", COMMANDS)
def test_without_rankwell_ray_the_line_that_installs_it_is_named(
    rankwell: Call, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setitem(sys.modules, "rankwell_ray", None)
    done = rankwell(verb, *COMMANDS[verb], "--ray", "local")
    assert done.complaint == "--ray needs the package rankwell-ray: pip install rankwell-ray"
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("verb", "options", "problem"),
    [
        ("rerank", ["--ray", "local,all"], "--ray local,all: expected a number of workers after the comma"),
        ("rerank", ["--ray", "local", "--set", "cache=scores.db"], "--set cache does not go with --ray"),
        ("search", ["--ray", "local", "--device", "cuda:1"], "with --ray each worker gets its own GPU"),
        ("index", ["--ray", "local", "--append"], "--append does not go with --ray"),
        ("index", ["--ray", "local", "--overwrite"], "--overwrite does not go with --ray"),
    ],
)
def test_options_that_do_not_go_together(rankwell: Call, verb: str, options: list[str], problem: str) -> None:
    assert problem in rankwell(verb, *COMMANDS[verb], *options).complaint
