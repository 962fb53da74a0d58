"""The lines of the page that stop a change in CI, run as they are there, on the sample."""

from __future__ import annotations

import csv
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwell import sample
from rankwell.corpus.formats import read_documents, read_qrels, read_queries

PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")
Call = Callable[..., Any]


def write_csv(path: str, *rows: Any) -> None:
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def write_documents(words: int | None) -> None:
    """The sample's documents, or their first words."""
    documents = read_documents(sample.FOLDER / "collection.tsv")
    rows = [(document.docid, " ".join(document.text.split()[:words])) for document in documents]
    write_csv("documents.csv", ("id", "text"), *rows)


@pytest.fixture
def repository(tmp_path: Path, rankwell: Call) -> Path:
    """What the page asks for beside its lines: documents, and judgments with the words of the queries."""
    texts = {query.qid: query.text for query in read_queries(sample.FOLDER / "queries.dev.tsv")}
    qrels = read_qrels(sample.FOLDER / "qrels.dev.txt")
    rows = [(texts[qid], docid, grade) for qid, own in qrels.items() for docid, grade in own.items()]
    write_csv("golden.csv", ("query", "document", "grade"), *rows)
    write_documents(None)
    return tmp_path


def run_job(rankwell: Call) -> Any:
    """What the job's own lines end with: the first that fails, or the last."""
    shutil.rmtree("index", ignore_errors=True)
    [job] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    lines = re.findall(r"- run: rankwell (.+)", job)
    assert len(lines) == 2
    assert len(job.splitlines()) <= 10
    for line in lines:
        done = rankwell(*shlex.split(line))
        if done.code:
            break
    return done


def test_the_lines_pass_a_good_search_and_fail_one_that_was_made_worse(rankwell: Call, repository: Path) -> None:
    [keep] = re.findall(r"\$ rankwell (search index golden.csv .+)", PAGE)
    assert rankwell("index", "documents.csv", "--out", "index").code == 0
    assert rankwell(*shlex.split(keep)).code == 0
    good = run_job(rankwell)
    assert good.code == 0, good.err
    assert "below the floor" not in good.err

    write_documents(8)
    worse = run_job(rankwell)
    assert worse.code == 1
    shown = next(line for line in PAGE.splitlines() if line.strip().startswith("index: RR@10"))
    told = [line for line in worse.err.splitlines() if "below the floor" in line]
    assert [line.split()[1] for line in told] == ["RR@10", "R@100"]
    assert told[0].startswith(shown.strip().rstrip("…"))
    named = told[0].partition("what lost most against last.run: ")[2].split(", ")
    assert len(named) == 5
    assert all(float(query.split()[1]) <= -0.5 for query in named)


def test_judgments_with_words_are_queries_to_search_and_others_are_not(rankwell: Call, repository: Path) -> None:
    assert rankwell("index", "documents.csv", "--out", "index").code == 0
    assert rankwell("search", "index", "golden.csv", "--out", "some.run").code == 0
    qids = {line.split()[0] for line in Path("some.run").read_text().splitlines()}
    texts = [query.text for query in read_queries(sample.FOLDER / "queries.dev.tsv")]
    assert "what_good_is_cullet_from_broken_bottles" in qids
    assert qids <= {"_".join(text.split()) for text in texts}
    write_csv("three.csv", ("query", "colour", "grade"), ("a question", "red", 1))
    assert "three.csv" in rankwell("search", "index", "three.csv", "--out", "other.run").complaint
