"""Bad input: exit code 2, one line that says which file and line, and nothing half-written."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwell.core.errors import excerpt

Rankwell = Callable[..., Any]


def leavings() -> set[str]:
    """The files in the working folder."""
    return {str(path) for path in Path().rglob("*") if path.is_file()}


BROKEN_GZIP = gzip.compress(b"".join(b"d%d\tsome words and number %d\n" % (i, i * i) for i in range(2000)))[:-5000]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "c.tsv: is empty, expected a collection"),
        (b"a\tx\nb\n", "c.tsv, line 2: found 1 column, expected 2 (document id, text): 'b'"),
        (b"a\tx\nb\t\xff\xfe\n", "c.tsv, line 2: not UTF-8 text (byte 0xff"),
        (b"\x7fELF\x02\x01\x01\0\0\0\xd0junk", "c.tsv, line 1: "),
        (b'{"_id": "a", "text": "x"}\n{"_id"\n', "c.tsv, line 2: not JSON"),
        (
            b"a\tx\n\nb\ty\na\tz\n",
            "c.tsv, line 4: document id 'a' occurs twice in the collection; ids must be unique (first on line 1)",
        ),
        (BROKEN_GZIP, "broken gzip file"),
        (b"\x1f\x8bnot really gzip", "c.tsv, line 1: broken gzip file"),
    ],
    ids=range(8),
)
def test_a_bad_collection(rankwell: Rankwell, content: bytes, expected: str) -> None:
    Path("c.tsv").write_bytes(content)
    assert expected in rankwell("index", "c.tsv", "--out", "index").complaint
    assert leavings() == {"c.tsv"}


def test_a_collection_that_fails_late_leaves_nothing_of_itself(rankwell: Rankwell) -> None:
    Path("c.tsv.gz").write_bytes(BROKEN_GZIP)
    line = rankwell("index", "c.tsv.gz", "--out", "index").complaint
    assert line.startswith("c.tsv.gz, line ")
    assert leavings() == {"c.tsv.gz"}
    Path("c.tsv").write_text("a\tx\n")
    assert rankwell("index", "c.tsv", "--out", "index").code == 0


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "q.tsv: is empty, expected queries"),
        (b"q1\tx\nq1\ty\n", "q.tsv, line 2: query id 'q1' was already on line 1"),
        (gzip.compress(b"q1\tx\n" * 100)[:-9], "broken gzip file"),
    ],
    ids=range(3),
)
def test_bad_queries(rankwell: Rankwell, index: Path, content: bytes, expected: str) -> None:
    Path("q.tsv").write_bytes(content)
    assert expected in rankwell("search", index, "q.tsv", "--out", "bm25.run").complaint
    assert leavings() == {"q.tsv"}


@pytest.mark.parametrize("line", ["q1 Q0 d1 1 12.5 bm25", "q1\tQ0\td1\t1\t12.5\tbm25"])
def test_a_run_is_neither_queries_nor_a_collection(rankwell: Rankwell, index: Path, line: str) -> None:
    Path("bm25.run").write_text(f"\n{line}\n")
    problem = "a line of a run (six columns, Q0 the second), expected"
    for command, kind in ((("search", index, "bm25.run"), "queries"), (("index", "bm25.run"), "a collection")):
        told = rankwell(*command, "--out", "out").complaint
        assert told == f"bm25.run, line 2: {problem} {kind}: {excerpt(line)}"
    assert leavings() == {"bm25.run"}
    Path("bm25.run").write_text("what is Q0 in a run file\n")
    assert rankwell("search", index, "bm25.run", "--out", "out").code == 0


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (['{"id": "a", "vector": {}}', '{"id": "b", "vector": {"x": "1"}}'], "w.jsonl, line 2: the weight of 'x'"),
        (['{"id": "b", "vector": {}}'], "weights of 'b' where 'a' is expected"),
        (['{"id": "a", "vector": {}}'], "the weights end before document 'b'"),
    ],
)
def test_bad_weights(rankwell: Rankwell, lines: list[str], expected: str) -> None:
    Path("c.tsv").write_text("a\tx\nb\ty\n")
    Path("w.jsonl").write_text("\n".join(lines))
    assert expected in rankwell("index", "c.tsv", "--out", "index", "--weights", "w.jsonl").complaint
    assert leavings() == {"c.tsv", "w.jsonl"}


def test_missing_files(rankwell: Rankwell, index: Path, queries: Path, qrels: Path) -> None:
    Path("c.tsv").write_text("a\tx\n")
    Path("folder").mkdir()
    for arguments, expected in (
        (["index", "none.tsv", "--out", "x"], "none.tsv: no such file"),
        (["index", "folder", "--out", "x"], "folder: "),
        (["index", "c.tsv", "--out", "x", "--weights", "none.jsonl"], "none.jsonl: no such file"),
        (["index", "c.tsv", "--out", "x", "--set", "stop_words=none.txt"], "none.txt: no such file"),
        (["search", index, "none.tsv", "--out", "x.run"], "none.tsv: no such file"),
        (["search", index, "folder", "--out", "x.run"], "folder: is a folder, expected a file"),
        (["search", "none", queries, "--out", "x.run"], "none: no such folder; make an index with"),
        (["search", "folder", queries, "--out", "x.run"], "folder: not an index (it has no index.json); make"),
        (["search", queries, queries, "--out", "x.run"], "queries.dev.tsv: is a file, expected a folder; make"),
        (["search", "how warm", index], f"{index} comes first: rankwell search {index} 'how warm'"),
        (["search", index, "how", "warm"], "got unexpected extra argument (warm); put a question in quotes"),
        (["index", index, "--out", "x"], ": an index, expected a collection or a data set"),
        (["tune", index, queries, "none.txt"], "none.txt: no such file"),
        (["tune", "none", queries, qrels], "none: no such folder"),
        (["evaluate", "none.txt", "none.run"], "none.txt: no such file"),
        (["evaluate", qrels, "none.run"], "none.run: no such file"),
    ):
        assert expected in rankwell(*arguments).complaint
        assert leavings() == {"c.tsv"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--k", "0"], "k must lie between 1 and 1,000,000, not 0"),
        (["--k1", "-1"], "k1 must be a number of at least 0, not -1.0"),
        (["--set", "k2=inf"], "k2 must be a number of at least 0, not inf"),
        (["--set", "threads=-1"], "threads must be at least 1, not -1"),
        (["--set", "tag=two words"], "cannot write bm25.run: the run name is 'two words'"),
    ],
)
def test_bad_search_options(rankwell: Rankwell, index: Path, queries: Path, options: list[str], expected: str) -> None:
    assert expected in rankwell("search", index, queries, "--out", "bm25.run", *options).complaint
    assert leavings() == set()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--k1", "x"], "'x' is neither FIRST:LAST:STEP nor a list"),
        (["--b", "0:2:1"], "b must lie between 0 and 1, not 2.0"),
        (["--folds", "1"], "1 folds for 189 queries"),
        (["--measure", "RRR@10"], "RRR"),
        (["--threads", "-2"], "threads must be at least 1"),
    ],
)
def test_bad_tune_options(
    rankwell: Rankwell, index: Path, queries: Path, qrels: Path, options: list[str], expected: str
) -> None:
    small = ["--k1", "0.9", "--b", "0.4"]
    assert expected in rankwell("tune", index, queries, qrels, *small, *options).complaint


@pytest.mark.parametrize("options", [["--k", "ten"], ["--format", "xml"], ["--unknown"]])
def test_an_option_that_is_not_understood_is_named(
    rankwell: Rankwell, index: Path, queries: Path, options: list[str]
) -> None:
    assert options[0] in rankwell("search", index, queries, "--out", "bm25.run", *options).complaint
    assert leavings() == set()


def test_an_index_in_the_way(rankwell: Rankwell) -> None:
    Path("c.tsv").write_text("a\tx\n")
    rankwell("index", "c.tsv", "--out", "index")
    before = {path: path.read_bytes() for path in Path("index").rglob("*") if path.is_file()}
    for options, expected in (
        ([], "index holds an index already; add to it with --append or --update, or replace it with --overwrite"),
        (["--append"], "c.tsv, line 1: document 'a' is in the index already"),
        (["--append", "--language", "none"], "was built with another analyser"),
        (["--append", "--overwrite"], "append, update and overwrite cannot be combined"),
    ):
        assert expected in rankwell("index", "c.tsv", "--out", "index", *options).complaint
    assert {path: path.read_bytes() for path in Path("index").rglob("*") if path.is_file()} == before


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_an_index_where_no_folder_can_be_made(rankwell: Rankwell) -> None:
    Path("c.tsv").write_text("a\tx\n")
    line = rankwell("index", "c.tsv", "--out", "/proc/rankwell").complaint
    assert line == "cannot write /proc/rankwell: no such file or directory"


def test_a_broken_index(rankwell: Rankwell, queries: Path) -> None:
    Path("c.tsv").write_text("a\tbees\n")
    rankwell("index", "c.tsv", "--out", "index")
    path = Path("index/segment-0001/posting_begins.npy")
    path.write_bytes(path.read_bytes()[:-1])
    line = rankwell("search", "index", queries, "--out", "bm25.run").complaint
    assert line.startswith("index/segment-0001/posting_begins.npy: ")
    description = json.loads(Path("index/index.json").read_text())
    Path("index/index.json").write_text(json.dumps({**description, "version": 99}))
    line = rankwell("search", "index", queries, "--out", "bm25.run").complaint
    assert line == "index/index.json: an index of version 99; this rankwell reads version 1: upgrade rankwell"
    assert not Path("bm25.run").exists()


def test_queries_that_find_nothing_are_an_error_and_the_old_run_stays(rankwell: Rankwell, index: Path) -> None:
    Path("q.tsv").write_text("q1\tthe of and\n")
    Path("bm25.run").write_text("old")
    assert rankwell("search", index, "q.tsv", "--out", "bm25.run").complaint.startswith("cannot write bm25.run")
    assert Path("bm25.run").read_text() == "old"


def test_an_output_that_cannot_be_written(rankwell: Rankwell, index: Path, queries: Path) -> None:
    Path("folder").mkdir()
    Path("file").write_text("keep")
    for target, reason in (("folder", "is a directory"), ("file/bm25.run", "file exists|not a directory")):
        line = rankwell("search", index, queries, "--out", target).complaint
        assert line.startswith(f"cannot write {target}: ")
        assert any(word in line for word in reason.split("|"))
    assert leavings() == {"file"}


@pytest.mark.parametrize("name", ["index.json", "segment-0001/segment.json", "segment-0001/documents/store.json"])
def test_an_index_file_that_is_nested_deeply(rankwell: Rankwell, queries: Path, name: str) -> None:
    Path("c.tsv").write_text("a\tbees\n")
    rankwell("index", "c.tsv", "--out", "index")
    Path("index", name).write_text('{"version": ' + "[" * 100_000)
    assert rankwell("search", "index", queries, "--out", "bm25.run").complaint.startswith("index")
