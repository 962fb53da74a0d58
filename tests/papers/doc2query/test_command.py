"""``rankwell expand``, end to end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.formats.texts import read_expansions

Call = Callable[..., Any]
TEXTS = {f"d{number}": f"{word} and honey" for number, word in enumerate("bees bank river stone tea iron".split())}


@pytest.fixture
def expand(rankwell: Call, tiny_writer: Path) -> Call:
    """Run ``rankwell expand COLLECTION`` beside a folder ``data``, and give the lines it prints."""
    Path("data").mkdir()
    Path("data/collection.tsv").write_text("".join(f"{docid}\t{text}\n" for docid, text in TEXTS.items()))

    def call(collection: str, *options: str | Path) -> list[str]:
        done = rankwell("expand", collection, "--model", tiny_writer, "--device", "cpu", *options)
        assert done.code == 0, done.err
        return list(done.out.splitlines())

    return call


def queries_in(name: str) -> dict[str, tuple[str, ...]]:
    return {expansion.docid: expansion.queries for expansion in read_expansions(name)}


def test_a_file_of_queries(expand: Call, rankwell: Call, tiny_writer: Path) -> None:
    printed = expand("data/collection.tsv", "--n", "3", "--out", "e.jsonl.gz")
    written = queries_in("e.jsonl.gz")
    assert list(written) == list(TEXTS)
    assert all(1 <= len(queries) <= 3 for queries in written.values())
    (line,) = printed
    assert line.startswith("e.jsonl.gz: ")
    assert sorted(path.name for path in Path().iterdir()) == ["data", "e.jsonl.gz"]
    again = rankwell("expand", "data/collection.tsv", "--model", tiny_writer, "--out", "e.jsonl.gz")
    assert "exists already" in again.complaint


def test_fields_of_the_collection_can_be_named(expand: Call) -> None:
    rows = [{"nr": docid, "wording": text} for docid, text in TEXTS.items()]
    Path("odd.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    expand("data/collection.tsv", "--n", "2", "--out", "a.jsonl")
    expand("odd.jsonl", "--n", "2", "--out", "b.jsonl", "--id", "nr", "--text", "wording")
    assert Path("a.jsonl").read_bytes() == Path("b.jsonl").read_bytes()


def test_queries_become_a_split_to_train_on(expand: Call) -> None:
    printed = expand("data", "--out", "e.jsonl", "--queries", "data")
    data = open_dataset("data")
    assert data.splits == ("generated", "generated.dev")
    assert f"data: {len(data.queries('generated')):,} queries in the split generated" in printed
    (first, *_) = data.queries("generated")
    (docid,) = data.qrels("generated")[first.qid]
    assert first.text in queries_in("e.jsonl")[docid]


def test_a_judge_drops_queries(expand: Call, tiny_checkpoint: Path) -> None:
    for name, threshold in (("all", "0"), ("none", "1")):
        expand("data/collection.tsv", "--judge", tiny_checkpoint, "--out", name, "--threshold", threshold)
    count = [sum(map(len, queries_in(name).values())) for name in ("all", "none")]
    assert count[0] > 10
    assert count[1] == 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--model", "RANKER"), "not a query writer"),
        (("--out", "."), "is a directory"),
        (("--n", "0"), "n is 0"),
    ],
)
@pytest.mark.usefixtures("expand")
def test_what_is_wrong_is_one_line(
    rankwell: Call, tiny_writer: Path, tiny_checkpoint: Path, options: tuple[str, ...], problem: str
) -> None:
    named = [str(tiny_checkpoint) if part == "RANKER" else part for part in options]
    done = rankwell("expand", "data/collection.tsv", "--model", tiny_writer, "--out", "e.jsonl", *named)
    assert problem in done.complaint
    assert not Path("e.jsonl").exists()
