"""Own data on the command line: any format, columns named or recognised, passages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Rankwell = Callable[..., Any]


def test_a_header_is_said_in_one_line(rankwell: Rankwell) -> None:
    Path("docs.csv").write_text("id,title,text\nd1,Bees,honey\nd2,Tea,hot\n")
    done = rankwell("index", "docs.csv", "--out", "index")
    assert done.code == 0
    assert done.err == "rankwell: docs.csv: the first line is a header; id: 'id', text: 'text', title: 'title'\n"
    assert done.out.startswith("index: 2 documents")


def test_fields_are_named_by_options(rankwell: Rankwell) -> None:
    rows = [{"sku": "d1", "name": "Bees", "details": "honey"}, {"sku": "d2", "name": "Tea", "details": "hot"}]
    Path("docs.json").write_text(json.dumps(rows))
    done = rankwell("index", "docs.json", "--id", "sku", "--text", "details", "--title", "name", "--out", "index")
    assert (done.code, done.err) == (0, "")
    Path("q.csv").write_text("number,wish\n7,bees\n")
    done = rankwell("search", "index", "q.csv", "--id", "number", "--text", "wish", "--out", "bm25.run")
    assert done.code == 0
    assert Path("bm25.run").read_text().startswith("7 Q0 d1 1 ")


def test_a_folder_of_notes_in_passages(rankwell: Rankwell) -> None:
    Path("notes").mkdir()
    Path("notes/bees.md").write_text("# Bees\n\nMake honey all day.\n\nKeep warm in winter.\n")
    Path("notes/tea.txt").write_text("Hot.")
    done = rankwell("index", "notes", "--passages", "5", "--out", "index")
    assert done.out.startswith("index: 3 documents"), done
    rankwell("search", "index", "warm winter", "--out", "bm25.run")
    assert Path("bm25.run").read_text().split()[2] == "bees.md#2"


def test_documents_with_the_id_of_the_query_are_left_out_as_in_beir(rankwell: Rankwell) -> None:
    Path("docs.tsv").write_text("1\tbees honey honey\n2\tbees\n3\ttea\n")
    Path("q.tsv").write_text("1\tbees honey\n")
    Path("qrels.txt").write_text("1 0 2 1\n")
    rankwell("index", "docs.tsv", "--out", "index")
    rankwell("search", "index", "q.tsv", "--k", "1", "--out", "all.run")
    rankwell("search", "index", "q.tsv", "--k", "1", "--set", "ignore_identical_ids=true", "--out", "others.run")
    docids = [Path(name).read_text().split()[2] for name in ("all.run", "others.run")]
    assert docids == ["1", "2"]
    rankwell("search", "index", "q.tsv", "--out", "all.run")
    for options, value in (([], 0.5), (["--ignore-identical-ids"], 1.0)):
        done = rankwell("evaluate", "qrels.txt", "all.run", "--measures", "RR", "--json", *options)
        assert json.loads(done.out)["mean"]["RR"] == value
