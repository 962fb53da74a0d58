"""What people type who do not know rankwell yet works, or is answered by a line that says what does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rankwell
from rankwell import Index, RankwellError, Run, System, evaluate, open_dataset, sample


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index.build(["Bees make honey.", "Tea is hot."], tmp_path / "index")


def test_the_version() -> None:
    assert rankwell.__version__.count(".") == 2


def test_classes_called_with_a_name(index: Index) -> None:
    with pytest.raises(RankwellError, match=r"Index\.open\('my-index'\) opens an index"):
        Index("my-index")  # type: ignore[arg-type]
    with pytest.raises(RankwellError, match=r"BiEncoder\.from_pretrained\('name'\) opens a model"):
        rankwell.BiEncoder("name")  # type: ignore[arg-type]
    assert System(index).search("honey")[0].docid == "0"


def test_methods_that_others_have(index: Index) -> None:
    run = Run.from_scores({"q": {"a": 1.5, "b": 2.0}})
    assert run.to_dict() == {"q": {"b": 2.0, "a": 1.5}}
    with pytest.raises(AttributeError, match=r"Run has no 'to_pandas': pandas\.DataFrame\(run\.to_dict\(\)\)"):
        run.to_pandas()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"Index has no 'get': read\(\[docid\]\)"):
        index.get("0")  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"Index has no 'nonsense'$"):
        index.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_an_analyser_of_another_language() -> None:
    with pytest.raises(ValueError, match=r"Analyzer\.of\('de'\) has the stemmer and the stop words"):
        rankwell.Analyzer(language="de")


def test_measures_by_the_names_of_other_programs() -> None:
    data = open_dataset(sample.FOLDER)
    run = Run.from_scores({query.qid: {"P001": 1.0} for query in data.queries("dev")})
    found = evaluate(data.qrels("dev"), run, ["ndcg@10", "mrr@10", "ndcg_cut_10"])
    assert "nDCG@10" in str(found)


def test_commands(rankwell: Callable[..., Any]) -> None:
    Path("docs.jsonl").write_text('{"id": "a", "text": "bees"}\n')
    line = rankwell("index", "docs.jsonl", "my-index").complaint
    assert line.startswith("missing option '--out' / '-o', for example rankwell index docs.jsonl --out my-index")
    assert rankwell("index", "docs.jsonl", "-o", "my-index").code == 0
    assert "--collection docs.jsonl names the documents" in rankwell("rerank", "bees", "docs.jsonl").complaint
    assert "Did you mean 'evaluate'?" in rankwell("eval").err
    assert "Possible options: --k" in rankwell("search", "my-index", "bees", "--top-k", "3").complaint
    assert rankwell("search", "my-index", "bees", "-k", "3").code == 0
    assert rankwell("-V").out.startswith("rankwell ")
    assert rankwell("fit", "docs.jsonl").complaint.startswith("missing option '--out' / '-o', for example rankwell fit")
    assert "make an index with `rankwell index`" in rankwell("search", "docs.jsonl", "bees").complaint


def test_a_hybrid_search_without_a_share() -> None:
    from rankwell.cli.main import _with_share

    assert _with_share(["search", "x", "q", "--hybrid"]) == ["search", "x", "q", "--hybrid", "0.7"]
    assert _with_share(["search", "--hybrid", "x", "q"]) == ["search", "--hybrid", "0.7", "x", "q"]
    assert _with_share(["search", "x", "q", "--hybrid", ".5"]) == ["search", "x", "q", "--hybrid", ".5"]
    assert _with_share(["tune", "x", "--hybrid"]) == ["tune", "x", "--hybrid"]
    assert _with_share(["search", "x", "--hybrid=0.2", "q"]) == ["search", "x", "--hybrid=0.2", "q"]


def test_files_of_other_programs(rankwell: Callable[..., Any]) -> None:
    Path("old.csv").write_bytes("id,text\n1,Stra\u00dfe\n".encode("latin1"))
    assert "`iconv -f latin1 -t utf-8 old.csv > converted` converts it" in rankwell("index", "old.csv", "-o", "i").err
    Path("wide.csv").write_bytes("id,text\n1,Stra\u00dfe\n".encode("utf-16"))
    assert "`iconv -f utf-16 -t utf-8 wide.csv" in rankwell("index", "wide.csv", "-o", "i").err
    Path("two\nlines.csv").write_bytes("id,text\n1,Stra\u00dfe\n".encode("latin1"))
    assert "two lines.csv > converted`" in rankwell("index", "two\nlines.csv", "-o", "i").err
    Path("own.csv").write_text("Nr;Titel;Beschreibung\n1;Kaffee;ist hei\u00df\n2;Tee;auch\n")
    line = rankwell("index", "own.csv", "-o", "i").complaint
    assert "looks like a header" in line
    assert "name its columns (Nr, Titel, Beschreibung) with --id, --title and --text" in line
    assert rankwell("index", "own.csv", "-o", "i", "--id", "Nr", "--text", "Beschreibung").out.startswith("i: 2 doc")
    Path("pipe.csv").write_text("id|text\n1|coffee is hot\n2|tea\n")
    assert rankwell("index", "pipe.csv", "-o", "p").out.startswith("p: 2 documents")


def test_doubts_come_below_the_figures(tmp_path: Path) -> None:
    (tmp_path / "qrels.txt").write_text("q 0 a 1\n")
    (tmp_path / "my.run").write_text("q Q0 a 1 1.0 x\nq Q0 b 2 1.0 x\n")
    command = [sys.executable, "-m", "rankwell", "evaluate", "qrels.txt", "my.run"]
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("measure")
    assert lines[-1].startswith("warning: my.run: 1 query with fewer than 10 results")
