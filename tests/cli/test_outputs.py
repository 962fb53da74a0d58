"""Outputs never harm: every verb refuses what it cannot write, and writes through what it must not replace."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Rankwell = Callable[..., Any]
BINARY = Path(sys.executable).with_name("rankwell")

WRITERS = [
    ("index", "c.tsv", "--out"),
    ("weigh", "c.tsv", "--model", "m", "--out"),
    ("search", "index", "q.tsv", "--out"),
    ("rerank", "a.run", "--queries", "q.tsv", "--collection", "c.tsv", "--out"),
    ("rerank", "a.run", "--queries", "q.tsv", "--collection", "c.tsv", "--out", "b.run", "--set", "cache="),
    ("evaluate", "qrels", "a.run", "--out"),
    ("analyse", "qrels", "a.run", "b.run", "--out"),
    ("tune", "index", "q.tsv", "qrels", "--out"),
    ("types", "q.tsv", "--out"),
    ("explain", "--query", "a", "--document", "b", "--out"),
    ("expand", "c.tsv", "--model", "m", "--out"),
    ("expand", "c.tsv", "--model", "m", "--out", "e.jsonl", "--queries"),
    ("export", "m", "--to", "onnx", "--out"),
    ("train", "recipe.yaml", "--out"),
    ("experiment", "suite.yaml", "--out"),
    ("demo", "--out"),
]


@pytest.mark.parametrize("arguments", WRITERS, ids=" ".join)
def test_a_missing_folder_is_an_error_in_every_verb(rankwell: Rankwell, arguments: tuple[str, ...]) -> None:
    problem = "cannot write missing/out.png: there is no folder missing"
    *options, last = arguments
    ends = [f"{last}missing/out.png"] if last.endswith("=") else [last, "missing/out.png"]
    assert rankwell(*options, *ends).complaint == problem
    assert list(Path().iterdir()) == []


def test_a_run_goes_through_a_pipe_or_a_link(rankwell: Rankwell, index: Path) -> None:
    Path("q.tsv").write_text("q1\twhat kind of fish is bogue\n")
    os.mkfifo("pipe")
    Path("elsewhere").mkdir()
    Path("link.run").symlink_to("elsewhere/a.run")
    read: list[str] = []
    thread = threading.Thread(target=lambda: read.append(Path("pipe").read_text()))
    thread.start()
    through_pipe = rankwell("search", index, "q.tsv", "--k", "3", "--out", "pipe")
    thread.join()
    assert (through_pipe.code, through_pipe.out) == (0, "")
    assert through_pipe.err == "pipe: 1 of 1 queries, 3 documents\n"
    assert rankwell("search", index, "q.tsv", "--k", "3", "--out", "link.run").code == 0
    assert read == [Path("elsewhere/a.run").read_text()]
    assert stat.S_ISFIFO(Path("pipe").stat().st_mode)
    assert Path("link.run").is_symlink()


def test_dashes_are_standard_input_and_output(index: Path, tmp_path: Path) -> None:
    command = f"""
        printf 'q1\\twhat kind of fish is bogue\\n' > q.tsv
        {BINARY} search {index} q.tsv --k 3 --out a.run
        cat q.tsv | {BINARY} search {index} - --k 3 --out - > b.run
        {BINARY} search {index} <(cat q.tsv) --k 3 --out /dev/stdout > c.run
        cmp a.run b.run && cmp b.run c.run && ls
    """
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines()[1:] == ["a.run", "b.run", "c.run", "q.tsv"], done.stderr
    assert "-: 1 of 1 queries, 3 documents\n" in done.stderr


@pytest.mark.parametrize(
    ("command", "reader"),
    [
        ("search {index} {queries}", "head -n 1"),
        ("search {index} {queries} --out -", "head -n 1"),
        ("tune {index} {queries} {qrels} --k1 0.9 --b 0.1:0.9:0.1", "true"),
    ],
)
def test_a_reader_that_stops_early_is_no_error(
    index: Path, queries: Path, qrels: Path, command: str, reader: str
) -> None:
    whole = f"{BINARY} {command.format(index=index, queries=queries, qrels=qrels)} | {reader}"
    done = subprocess.run(["bash", "-c", whole], capture_output=True, text=True)
    assert len(done.stdout.splitlines()) == (1 if reader != "true" else 0)
    assert [line for line in done.stderr.splitlines() if not line.startswith("-: ")] == []  # the report on --out -


def test_an_output_of_another_encoding_still_holds_json(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"id": "é", "text": "Bees 🐝 hum — softly"}\n', encoding="utf-8")
    command = f"{BINARY} index c.jsonl --out i && {BINARY} search i bees --json"
    whole = {"PYTHONIOENCODING": "ascii", "COLUMNS": "80"} | os.environ
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=whole, capture_output=True, text=True)
    [line] = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert line.isascii()
    assert "Bees 🐝 hum — softly" in json.dumps(json.loads(line), ensure_ascii=False)


def test_names_with_line_ends_are_one_line_of_an_error(rankwell: Rankwell) -> None:
    Path("my\nnotes").mkdir()
    Path("my\nnotes/bees.txt").write_text("bees")
    Path("my\nnotes/x.pdf").write_text("%PDF")
    done = rankwell("index", "my\nnotes", "--out", "i")
    assert done.err.startswith("rankwell: my\\nnotes: other files are not read (1 .pdf)")
    assert done.err.count("\n") == 1


def test_reports_do_not_mix_with_the_output(rankwell: Rankwell, index: Path, queries: Path, qrels: Path) -> None:
    Path("q.tsv").write_text("q1\twho found the bees\n")
    typed = rankwell("types", "q.tsv", "--out", "-")
    assert (typed.code, typed.out) == (0, "q1\tperson\n")
    assert "1 of 1 queries have a type" in typed.err
    tuned = rankwell("tune", index, queries, qrels, "--k1", "0.9", "--b", "0.4", "--out", "-")
    assert json.loads(tuned.out)["best"] == {"k1": 0.9, "b": 0.4}
    assert "by k1 (down) and b (across)" in tuned.err


def test_work_that_is_resumed_by_its_name_needs_a_file(rankwell: Rankwell) -> None:
    assert "expand needs --out with a file" in rankwell("expand", "c.tsv", "--model", "m", "--out", "-").complaint


def test_ctrl_c_while_the_command_is_imported_prints_nothing() -> None:
    script = """
import builtins, sys
load = builtins.__import__
def interrupted(name, *rest):
    if name == "typer":
        raise KeyboardInterrupt
    return load(name, *rest)
builtins.__import__ = interrupted
from rankwell.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
