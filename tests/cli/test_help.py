"""The help: verbs are found by their files, and every option says what it does in a sentence."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer

from rankwell import cli
from rankwell.cli import main

COMMANDS: dict[str, Any] = typer.main.get_command(main.app).commands  # type: ignore[attr-defined]


def test_a_verb_is_a_file_with_a_function_of_its_name(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(COMMANDS) == [*main.ORDER, "weigh", "expand", "types"]
    (tmp_path / "greet.py").write_text("def greet(name: str) -> None:\n    print(name)\n")
    (tmp_path / "helpers.py").write_text("WORDS = ()\n")
    monkeypatch.setattr(cli, "__path__", [*cli.__path__, str(tmp_path)])
    verbs = [verb.__name__ for verb in main.find_verbs()]
    assert verbs == [*main.ORDER, "greet", "weigh", "expand", "types"]


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_option_is_explained_by_a_sentence(verb: str) -> None:
    for parameter in COMMANDS[verb].params:
        if parameter.name != "help":
            text = parameter.help or ""
            assert text.endswith((".", ")")), f"{verb} {parameter.name}: {text}"
            assert not text.startswith(("Of ", "Before ", "Where ")), f"{verb} {parameter.name}: {text}"


@pytest.mark.parametrize("verb", [None, *COMMANDS])
def test_the_help_fits_a_terminal_and_has_an_example(verb: str | None, rankwell: Any) -> None:
    text = rankwell(*([verb] if verb else []), "--help").out
    assert text.startswith(f"Usage: rankwell {verb or '[OPTIONS]'}")
    begin = text.index("\nOptions:\n")
    assert all(len(line) <= 80 for line in text[begin:].splitlines())
    if verb is None:
        assert all(re.search(rf"\n  {name} ", text) for name in COMMANDS)
        assert re.findall(r"^(\w+):$", text, re.MULTILINE)[1:] == ["Search", "Fit", "Serve", "Papers"]
        assert "..." not in text[begin:]
        return
    assert f"rankwell {verb}" in text.split("Example", 1)[1]
    for parameter in COMMANDS[verb].params:
        assert all(name in text for name in parameter.opts if name.startswith("-"))


def test_a_command_without_its_arguments_prints_its_help(rankwell: Any) -> None:
    for words in ((), ("index",), ("search",), ("evaluate",), ("tune",), ("rerank",)):
        done = rankwell(*words)
        assert (done.code, done.err) == (2, "")
        assert done.out.startswith(" ".join(["Usage: rankwell", *words]))
