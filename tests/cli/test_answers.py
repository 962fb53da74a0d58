"""Questions typed by hand, and answers one can read: search, rerank and explain."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwell import sample
from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.formats import read_run
from rankwell.retrieve.index import Index

Rankwell = Callable[..., Any]
QUESTION = "what kind of fish is bogue"


def test_a_question_prints_ranked_texts(rankwell: Rankwell, index: Path) -> None:
    done = rankwell("search", index, QUESTION, "-k", "2")
    assert (done.code, done.err) == (0, "")
    expected = Index.open(index).rank(QUESTION, k=2)
    heads = [line.split() for line in done.out.splitlines() if line[:3].strip().isdigit()]
    assert heads == [[str(rank), f"{score:.3f}", docid] for rank, (docid, score) in enumerate(expected, 1)]
    assert "Bogus fish is a plague of the market." in done.out
    assert all(line == line.rstrip() and len(line) <= 80 for line in done.out.splitlines())
    assert list(Path().iterdir()) == []


def test_ten_answers_unless_told(rankwell: Rankwell, index: Path) -> None:
    found = json.loads(rankwell("search", index, QUESTION, "--json").out)
    assert (found["qid"], len(found["results"])) == ("1", 10)
    first = found["results"][0]
    assert (first["rank"], first["id"]) == (1, Index.open(index).rank(QUESTION).docids[0])
    assert first["text"].startswith("Bogus fish")


def test_json_has_the_words_to_highlight(rankwell: Rankwell, index: Path) -> None:
    found = json.loads(rankwell("search", index, QUESTION, "--k", "2", "--json").out)
    assert found["query"] == QUESTION
    texts = [[row["text"][begin:end] for begin, end in row["matches"]] for row in found["results"]]
    assert {"Bogus", "fish"} <= set(texts[0])
    assert {"Bogue", "fish"} <= set(texts[1])
    assert "of" not in texts[0]


def test_markdown_is_printed_plain(rankwell: Rankwell) -> None:
    Path("notes").mkdir()
    Path("notes/bees.md").write_text("# Bees\n\nThey **shiver** in a [cluster](https://hive.example).\n")
    assert rankwell("index", "notes", "--out", "i").code == 0
    assert "They shiver in a cluster." in rankwell("search", "i", "cluster").out
    (row,) = json.loads(rankwell("search", "i", "cluster", "--json").out)["results"]
    assert [row["text"][begin:end] for begin, end in row["matches"]] == ["cluster"]


def test_a_title_is_printed_above_its_text(rankwell: Rankwell) -> None:
    Path("c.csv").write_text("id,title,text\nx,Bees in winter,They shiver in a cluster.\n")
    assert rankwell("index", "c.csv", "--out", "i").code == 0
    lines = rankwell("search", "i", "winter bees").out.splitlines()
    assert lines[1:] == ["     Bees in winter", "     They shiver in a cluster.", ""]
    (row,) = json.loads(rankwell("search", "i", "winter cluster", "--json").out)["results"]
    assert (row["title"], row["text"]) == ("Bees in winter", "They shiver in a cluster.")
    assert [row["title"][begin:end] for begin, end in row["title_matches"]] == ["winter"]
    assert [row["text"][begin:end] for begin, end in row["matches"]] == ["cluster"]


def test_words_are_coloured_in_a_terminal_only(
    rankwell: Rankwell, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\x1b" not in rankwell("search", index, QUESTION).out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1;32mBogus\x1b[0m" in rankwell("search", index, QUESTION).out


def test_a_filter_that_leaves_nothing_is_named(rankwell: Rankwell) -> None:
    Path("shop.csv").write_text("sku,name,description,kind\nj1,Jacket,Keeps you dry.,Jackets\n")
    assert rankwell("index", "shop.csv", "--out", "shop").code == 0
    done = rankwell("search", "shop", "jacket", "--filter", "kind = 'jackets'")
    assert done.out == "Nothing found: 1 found, none passes the filter (no kind = jackets; kind is Jackets).\n\n"


def test_a_file_and_standard_input_are_answered_query_by_query(
    rankwell: Rankwell, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("q.tsv").write_text(f"a\t{QUESTION}\nb\tthe\n")
    from_file = rankwell("search", index, "q.tsv", "--k", "1")
    assert from_file.out.startswith(f"a  {QUESTION}\n  1  ")
    assert "b  the\nNothing found: the question has only words" in from_file.out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path("q.tsv").read_bytes())))
    assert rankwell("search", index, "-", "--k", "1").out == from_file.out


@pytest.mark.parametrize("format", [(), ("--json",)])
def test_a_reader_that_stops_reading_ends_the_search(index: Path, format: tuple[str, ...]) -> None:
    code = "from rankwell.cli.main import main; main()"
    command = [sys.executable, "-c", code, "search", index, sample.FOLDER / "queries.dev.tsv", *format]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141  # as of a program that SIGPIPE ends


def test_a_question_can_be_written_as_a_run(rankwell: Rankwell, index: Path) -> None:
    assert rankwell("search", index, QUESTION, "--out", "a.run").code == 0
    assert read_run("a.run")["1"] == Index.open(index).rank(QUESTION, k=1000)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("nofile.tsv",), "nofile.tsv: no such file"),
        (("folder/nofile",), "folder/nofile: no such file"),
        ((" ",), "the question is empty"),
        ((QUESTION, "--json", "--out", "a.run"), "--json does not go with --out, which writes a run"),
        ((QUESTION, "--k", "0"), "k must lie between 1"),
    ],
)
def test_what_is_no_question(rankwell: Rankwell, index: Path, arguments: tuple[str, ...], problem: str) -> None:
    assert problem in rankwell("search", index, *arguments).complaint


def test_an_index_without_texts_has_ids_and_scores(rankwell: Rankwell) -> None:
    Path("c.tsv").write_text("a\tbees\n")
    rankwell("index", "c.tsv", "--out", "bare", "--no-store")
    assert rankwell("search", "bare", "bees").out.split()[::2] == ["1", "a"]


# With a model


def test_a_question_is_re_ranked(rankwell: Rankwell, index: Path, tiny_checkpoint: Path) -> None:
    common = ("--collection", index, "--model", tiny_checkpoint)
    found = json.loads(rankwell("rerank", QUESTION, *common, "--depth", "5", "-k", "3", "--json").out)
    candidates = Index.open(index).rank(QUESTION, k=5).docids
    assert len(found["results"]) == 3
    assert {row["id"] for row in found["results"]} < set(candidates)
    rankwell("search", index, QUESTION, "--k", "5", "--out", "first.run")
    rankwell("rerank", "first.run", "--queries", QUESTION, *common, "--out", "b.run")
    assert read_run("b.run")["1"].docids[:3] == tuple(row["id"] for row in found["results"])


def test_a_small_collection_needs_no_index(rankwell: Rankwell, tiny_checkpoint: Path) -> None:
    Path("c.tsv").write_text("a\tbees\nb\twasps\n")
    found = json.loads(rankwell("rerank", "honey", "--collection", "c.tsv", "--model", tiny_checkpoint, "--json").out)
    assert {row["id"] for row in found["results"]} == {"a", "b"}
    Path("c.tsv").write_text("".join(f"d{n}\tbees\n" for n in range(1001)))
    done = rankwell("rerank", "honey", "--collection", "c.tsv", "--model", tiny_checkpoint)
    assert "c.tsv has more than 1,000 documents; index it first" in done.complaint


def test_a_deeper_re_ranking_is_estimated(rankwell: Rankwell, index: Path, tiny_checkpoint: Path) -> None:
    Path("q.tsv").write_text(f"a\t{QUESTION}\n")
    docids = [document.docid for document in open_dataset(sample.FOLDER).documents()][:110]
    Path("first.run").write_text("".join(f"a Q0 {docid} 1 {-n} x\n" for n, docid in enumerate(docids)))
    common = ("rerank", "first.run", "--queries", "q.tsv", "--collection", index, "--model", tiny_checkpoint)
    done = rankwell(*common, "--out", "a.run")
    assert done.out.startswith("a.run: 100 pairs, ")
    assert "; --depth 110 would take about " in done.out
    assert "would take" not in rankwell(*common, "--depth", "1000", "--out", "a.run").out


def test_a_run_needs_its_queries(rankwell: Rankwell, index: Path) -> None:
    done = rankwell("rerank", "first.run", "--collection", index)
    assert done.complaint == "re-ranking the run first.run needs --queries"


def test_documents_to_explain_are_named_by_id_or_file(rankwell: Rankwell, index: Path, tiny_checkpoint: Path) -> None:
    docid = Index.open(index).rank(QUESTION).docids[0]
    text = Index.open(index).text(docid)
    Path("d.txt").write_text(f"{text}\n")
    typed = ("--query", QUESTION)
    explained = [
        rankwell("explain", "--model", tiny_checkpoint, "--json", *arguments).out
        for arguments in (
            (*typed, "--document", text),
            (*typed, "--document", "d.txt"),
            (*typed, "--id", docid, "--index", index),
            (*typed, "--id", docid, "--collection", index),
        )
    ]
    assert json.loads(explained[0])["document"] == text
    assert len(set(explained)) == 1
    for arguments, problem in (
        ((*typed, "--id", "nowhere", "--index", index), f"no document 'nowhere' in {index}"),
        ((*typed, "--id", docid), "--id needs --collection"),
        (typed, "give the document as --document TEXT, or as --id ID with --collection"),
    ):
        assert rankwell("explain", "--model", tiny_checkpoint, *arguments).complaint == problem


def test_a_long_question_is_told_to_be_truncated(rankwell: Rankwell, tiny_checkpoint: Path) -> None:
    Path("c.tsv").write_text(f"a\t{'honey ' * 100}\nb\tbees\n")
    common = ("rerank", "bees " * 100, "--collection", "c.tsv", "--model", tiny_checkpoint, "--json")
    short = ("--set", "max_length=104")
    done = rankwell(*common, *short)
    assert done.code == 0
    assert re.search(r"warning: truncated: \d+ query tokens \(1 of 2 pairs\); .*--set max_query=100 keeps", done.err)
    assert "truncated" not in rankwell(*common, *short, "--set", "max_query=100").err
