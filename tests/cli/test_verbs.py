"""The verbs of retrieval, from files to files."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from rankwell import sample
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.formats import read_run
from rankwell.models.checkpoints import names
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index

Rankwell = Callable[..., Any]
BINARY = [str(Path(sys.executable).with_name("rankwell"))]


def test_from_a_collection_to_figures(rankwell: Rankwell, queries: Path, qrels: Path) -> None:
    made = rankwell("index", sample.FOLDER / "collection.tsv", "--out", "index")
    assert (made.code, made.err) == (0, "")
    assert re.fullmatch(r"index: 369 documents, [\d,]+ terms, [\d.]+ MB, [\d.]+ s\n", made.out)
    searched = rankwell("search", "index", queries, "--k", "100", "--out", "bm25.run")
    assert (searched.code, searched.err) == (0, "")
    assert searched.out.startswith("bm25.run: 188 of 189 queries")
    measured = rankwell("evaluate", qrels, "bm25.run", "--measures", "RR(rel=2)@10", "--json")
    assert measured.code == 0
    assert 0.55 < json.loads(measured.out)["mean"]["RR(rel=2)@10"] < 0.75


def test_the_run_is_what_the_library_finds(rankwell: Rankwell, index: Path, queries: Path) -> None:
    options = ["--k", "20", "--k1", "1.2", "--b", "0.75", "--set", "k2=3", "--set", "threads=2", "--set", "tag=mine"]
    rankwell("search", index, queries, *options, "--out", "bm25.run")
    run = read_run("bm25.run")
    assert run.name == "mine"
    opened = Index.open(index)
    first = Path(queries).read_text(encoding="utf-8").splitlines()[0].split("\t")
    assert run[first[0]] == opened.rank(first[1], BM25(k1=1.2, b=0.75, k2=3), k=20)
    assert max(map(len, run.values())) == 20


def test_a_run_can_be_compressed_and_in_msmarco_format(rankwell: Rankwell, index: Path, queries: Path) -> None:
    rankwell("search", index, queries, "--k", "5", "--out", "bm25.run")
    rankwell("search", index, queries, "--k", "5", "--out", "bm25.tsv.gz", "--set", "format=msmarco")
    first = gzip.decompress(Path("bm25.tsv.gz").read_bytes()).decode().splitlines()[0]
    assert first.split("\t")[2] == "1"
    assert [ranking.docids for ranking in read_run("bm25.tsv.gz").values()] == [
        ranking.docids for ranking in read_run("bm25.run").values()
    ]


def test_the_same_search_writes_the_same_bytes(rankwell: Rankwell, index: Path, queries: Path) -> None:
    for name, threads in (("a.run.gz", "1"), ("b.run.gz", "4")):
        rankwell("search", index, queries, "--out", name, "--set", f"threads={threads}")
    assert Path("a.run.gz").read_bytes() == Path("b.run.gz").read_bytes()


def test_index_takes_a_folder_and_gzip_and_jsonl(rankwell: Rankwell) -> None:
    collection = sample.FOLDER / "collection.tsv"
    with gzip.open("zipped.tsv.gz", "wb") as file:
        file.write(collection.read_bytes())
    pairs = [line.split("\t") for line in collection.read_text(encoding="utf-8").splitlines()]
    Path("c.jsonl").write_text("".join(json.dumps({"_id": docid, "text": text}) + "\n" for docid, text in pairs))
    for i, source in enumerate((sample.FOLDER, "zipped.tsv.gz", "c.jsonl", collection)):
        assert rankwell("index", source, "--out", f"index{i}").code == 0
    assert len({Index.open(f"index{i}").manifest["data_hash"] for i in range(4)}) == 1


def test_index_options_reach_the_index(rankwell: Rankwell) -> None:
    Path("c.tsv").write_text("a\tThe cats\n")
    Path("stop.txt").write_text("cats\n")
    options = ["--language", "none", "--set", "stop_words=stop.txt", "--no-store"]
    assert rankwell("index", "c.tsv", "--out", "index", *options).code == 0
    index = Index.open("index")
    assert index.analyzer == Analyzer.of("none", stop_words=frozenset({"cats"}))
    assert (len(index.rank("cats")), index.rank("the").docids) == (0, ("a",))
    assert index.manifest["config"]["store"] is False


def test_index_keeps_its_language_and_says_what_the_texts_look_like(rankwell: Rankwell) -> None:
    Path("a.tsv").write_text("a\tDie Häuser sind alt und der Weg zu ihnen ist weit\n")
    Path("b.tsv").write_text("b\tDas Haus ist neu und nicht weit von hier\n")
    assert "the texts look German; --language de" in rankwell("index", "a.tsv", "--out", "english").err
    assert "look" not in rankwell("index", "a.tsv", "--out", "index", "--language", "de").err
    assert rankwell("index", "b.tsv", "--out", "index", "--append").code == 0
    assert set(Index.open("index").rank("hauses").docids) == {"a", "b"}


def test_index_appends_and_overwrites(rankwell: Rankwell) -> None:
    Path("one.tsv").write_text("a\tbees\n")
    Path("two.tsv").write_text("b\tbees\n")
    assert rankwell("index", "one.tsv", "--out", "index").code == 0
    assert rankwell("index", "two.tsv", "--out", "index", "--append").out.startswith("index: 2 documents, 1 terms")
    assert Index.open("index").rank("bees").docids == ("b", "a")
    assert rankwell("index", "two.tsv", "--out", "index", "--overwrite").out.startswith("index: 1 documents")


def test_tune_prints_the_grid_and_writes_it(rankwell: Rankwell, index: Path, queries: Path, qrels: Path) -> None:
    options = ["--measure", "RR(rel=2)@10", "--k1", "0.5,0.9", "--b", "0.2:0.6:0.2", "--folds", "3", "--out", "t.json"]
    tuned = rankwell("tune", index, queries, qrels, *options)
    assert (tuned.code, tuned.err) == (0, "")
    assert "RR(rel=2)@10 by k1 (down) and b (across)" in tuned.out
    written = json.loads(Path("t.json").read_text())
    assert len(written["grid"]) == 6
    best = max(written["grid"], key=lambda point: point["mean"])
    assert written["best"] == {"k1": best["k1"], "b": best["b"]}
    assert f"--k1 {best['k1']:g} --b {best['b']:g}, {best['mean']:.4f}" in tuned.out


def test_index_and_tune_weigh_titles(rankwell: Rankwell) -> None:
    documents = [
        {"id": str(n), "title": f"set_{word}", "text": f"{other} {other}Value"}
        for n, (word, other) in enumerate((("bees", "wasps"), ("wasps", "bees"), ("tea", "milk"), ("milk", "tea")))
    ]
    Path("c.jsonl").write_text("\n".join(map(json.dumps, documents)))
    Path("q.tsv").write_text("a\tset bees\nb\tset wasps\nc\tset tea\nd\tset milk\n")
    Path("qrels.txt").write_text("a 0 0 1\nb 0 1 1\nc 0 2 1\nd 0 3 1\n")
    assert rankwell("index", "c.jsonl", "--out", "index", "--weight", "title=2").code == 0
    assert Index.open("index").analyzer.title_weight == 2
    tuned = rankwell("tune", "index", "q.tsv", "qrels.txt", "--folds", "2", "--weight", "1,5", "--out", "t.json")
    assert "best on all 4 queries: --weight title=5, " in tuned.out
    index = json.loads(Path("t.json").read_text())["index"]
    assert index["best"] == {"title_weight": 5}
    assert {point["title_weight"] for point in index["grid"]} == {1, 2, 5}
    plain = rankwell("tune", "index", "q.tsv", "qrels.txt", "--folds", "2", "--weight", "3")
    assert "--weight title=3" in plain.out
    assert "title=5" not in plain.out
    for wrong, problem in (
        ("title", "expected NAME=VALUE with one of the names title"),
        ("text=2", "expected NAME=VALUE with one of the names title"),
        ("title=0", "input should be greater than 0"),
        ("title=x", "input should be a valid number, unable to parse string as a number"),
    ):
        refused = rankwell("index", "c.jsonl", "--out", "other", "--weight", wrong)
        assert (refused.code, refused.err) == (2, f"rankwell: --weight {wrong}: {problem}\n")


def test_the_demo_goes_all_the_way(rankwell: Rankwell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "SHIPPED", Path("nowhere"))  # with a model: test_default_model.py
    shown = rankwell("demo", "--out", "demo")
    assert (shown.code, shown.err) == (0, "")
    for step in ("1. Index", "2. Search", "3. Search by meaning", "left out", "4. Evaluate", "5. Your own documents"):
        assert step in shown.out
    assert "369 passages" in shown.out
    assert {"index", "bm25.run"} <= {path.name for path in Path("demo").iterdir()}
    assert rankwell("demo", "--out", "demo").code == 0  # again, over the first


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("query", "foo"), "no such command 'query' (see rankwell --help)"),
        (("indx", "foo"), "no such command 'indx'. Did you mean 'index'? (see rankwell --help)"),
        (("search", "index"), "missing argument 'QUERIES' (see rankwell search --help)"),
        (
            ("search", "index", "q", "--top", "5"),
            "no such option: --top (Possible options: --out, --set) (see rankwell search --help)",
        ),
    ],
)
def test_a_command_line_that_cannot_be_read_is_one_line(
    rankwell: Rankwell, arguments: tuple[str, ...], line: str
) -> None:
    assert rankwell(*arguments).complaint == line


# In a process of its own


@pytest.mark.parametrize("command", [BINARY, [sys.executable, "-m", "rankwell"]], ids=["installed", "a module"])
def test_the_command_works_and_a_bad_file_is_one_line(command: list[str], tmp_path: Path) -> None:
    done = subprocess.run([*command, "index", "none.tsv", "--out", "x"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "rankwell: none.tsv: no such file\n")
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True)
    assert (shown.returncode, shown.stdout) == (0, f"rankwell {version('rankwell')}\n")


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("raise ZeroDivisionError('at work')", "ZeroDivisionError: at work"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("PARTS = 7", "AttributeError: 'int' object has no attribute 'items'"),
        ("PARTS = {'command': {'translate': 'no.such.module'}}", "ModuleNotFoundError: No module named 'no'"),
        ("PARTS = {'command': {'search': 'broken_plugin'}}", "ValueError: rankwell has a command of this name"),
        ("", "AttributeError: module 'broken_plugin' has no attribute 'PARTS'"),
    ],
)
def test_a_broken_plugin_is_named_and_left_out(tmp_path: Path, module: str, reason: str) -> None:
    (tmp_path / "broken_plugin.py").write_text(module)
    installed = tmp_path / "someones_package-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: someones-package\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[rankwell.plugins]\nmine = broken_plugin\n")
    path = {"PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))}
    done = subprocess.run(
        [*BINARY, "search", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **path},
    )
    assert "Usage: rankwell search" in done.stdout
    what = (
        "the command (translate|search)" if "command" in module else "the plugin mine of the package someones-package"
    )
    assert re.fullmatch(rf"rankwell: warning: {what} is left out \({re.escape(reason)}.*\)\n", done.stderr)
