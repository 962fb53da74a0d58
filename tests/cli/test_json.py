"""--json: what a verb finds or makes is one object on standard output, and nothing else is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from rankwell import sample
from rankwell.cli import main

COMMANDS: dict[str, Any] = typer.main.get_command(main.app).commands  # type: ignore[attr-defined]


def test_every_verb_that_ends_has_it() -> None:
    without = {name for name, verb in COMMANDS.items() if all("--json" not in option.opts for option in verb.params)}
    assert without == {"serve", "mcp"}  # which go on until they are stopped


@pytest.fixture
def say(rankwell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command with --json in a folder with a small collection; returns its result."""
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"d{number}\tthe bees keep warm {number}\n" for number in range(4))
    (tmp_path / "collection.tsv").write_text(rows)
    (tmp_path / "queries.tsv").write_text("1\thow do bees keep warm\n2\twho wrote the hive\n")
    (tmp_path / "qrels.txt").write_text("1 0 d1 1\n2 0 d2 1\n")

    def run(*words: object) -> dict[str, Any]:
        done = rankwell(*words, "--json")
        assert done.code == 0, done.err
        result = json.loads(done.out)
        assert isinstance(result, dict)
        return result

    return run


def test_an_index_and_its_changes(say: Any) -> None:
    made = say("index", "collection.tsv", "--out", "i")
    assert (made["out"], made["documents"], made["empty"]) == ("i", 4, 0)
    assert say("delete", "i", "d0", "nowhere") == {"folder": "i", "deleted": 1, "missing": 1, "documents": 3}
    assert say("merge", "i")["documents"] == 3
    checked = say("check", "i")
    assert checked["documents"] == 3
    assert checked["files"] > 3


def test_figures(say: Any, rankwell: Any) -> None:
    say("index", "collection.tsv", "--out", "i")
    tuned = say("tune", "i", "queries.tsv", "qrels.txt", "--k1", "0.9", "--b", "0.4", "--folds", "2")
    assert tuned["best"] == {"k1": 0.9, "b": 0.4}
    for name, b in (("a", "0.4"), ("b", "0.9")):
        rankwell("search", "i", "queries.tsv", "--b", b, "--out", f"{name}.run")
    analysed = say("analyse", "qrels.txt", "a.run", "b.run", "--out", "analysis")
    assert analysed["out"] == "analysis"
    assert analysed["tables"]
    typed = say("types", "queries.tsv")
    assert sum(typed["types"].values()) == typed["queries"] == 2


def test_an_export_and_a_training_that_is_only_checked(say: Any, tiny_checkpoint: Path) -> None:
    made = say("export", tiny_checkpoint, "--to", "sentence-transformers", "--out", "out")
    assert (made["kind"], made["to"]) == ("a re-ranker", "sentence-transformers")
    assert Path("out/model.safetensors").exists()
    settings = ("--set", f"data={sample.FOLDER}", "--set", f"model.start={tiny_checkpoint}")
    assert say("train", "monobert", *settings, "--check", "--out", "m")["stages"]


def test_a_fit(say: Any) -> None:
    fitted = say("fit", "collection.tsv", "--out", "s")
    assert fitted["out"] == "s"
    assert fitted["describe"].startswith("BM25")


def test_the_two_meanings_of_standard_output_do_not_meet(say: Any, rankwell: Any) -> None:
    say("index", "collection.tsv", "--out", "i")
    done = rankwell("types", "queries.tsv", "--out", "-", "--json")
    assert done.code == 2
    assert "--json does not go with --out -, which is standard output, too" in done.err
    assert done.out == ""


def test_an_error_leaves_standard_output_empty(rankwell: Any) -> None:
    done = rankwell("check", "nowhere", "--json")
    assert (done.code, done.out) == (2, "")
    assert "no such folder" in done.err
