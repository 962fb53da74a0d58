"""Judgments from clicks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rankwell.core.errors import InputError
from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.formats.clicks import read_clicks

HEADER = "query_id,doc_id,position,impressions,clicks\n"
SHOWN = [("good", 3, 11), ("good", 1, 36), ("bad", 1, 5), ("bad", 2, 2), ("worse", 3, 1)]


def write_clicks(path: Path, pairs: dict[tuple[str, str], tuple[int, bool]], impressions: int) -> None:
    """Users look at position p with the probability 1 / p, and click on what is relevant with .7, else with .1."""
    draw = np.random.default_rng(3)
    rows = [
        f"{qid},{docid},{position},{impressions},{draw.binomial(impressions, (0.7 if relevant else 0.1) / position)}\n"
        for (qid, docid), (position, relevant) in pairs.items()
    ]
    path.write_text(HEADER + "".join(rows))


def found(path: Path) -> set[tuple[str, str]]:
    qrels, _ = read_clicks(path)
    return {(qid, docid) for qid, grades in qrels.items() for docid, grade in grades.items() if grade}


@pytest.mark.parametrize("right", [0.9, 0.1])
def test_relevant_documents_are_found_whether_or_not_they_come_first(tmp_path: Path, right: float) -> None:
    draw, pairs = np.random.default_rng(5), dict[tuple[str, str], tuple[int, bool]]()
    for query in range(200):
        place = 1 if draw.random() < right else int(draw.integers(2, 8))
        pairs |= {(f"q{query}", f"d{position}"): (position, position == place) for position in range(1, 11)}
    write_clicks(tmp_path / "clicks.csv", pairs, 100)
    relevant, taken = {pair for pair, (_, is_relevant) in pairs.items() if is_relevant}, found(tmp_path / "clicks.csv")
    assert len(taken & relevant) > 0.95 * max(len(taken), len(relevant))


def test_a_document_may_be_shown_at_several_positions(tmp_path: Path) -> None:
    rows = [f"q{query},{docid},{position},50,{clicks}\n" for query in range(20) for docid, position, clicks in SHOWN]
    (tmp_path / "clicks.csv").write_text(HEADER + "".join(rows))
    assert found(tmp_path / "clicks.csv") == {(f"q{query}", "good") for query in range(20)}


def test_pairs_that_were_hardly_shown_are_dropped(tmp_path: Path) -> None:
    rows = ["q1,a,1,100,40", "q1,b,2,100,30", "q2,a,1,100,40", "q2,c,2,100,2", "q3,d,1,100,5", "q3,e,2,9,9"]
    (tmp_path / "clicks.csv").write_text(HEADER + "\n".join(rows) + "\n")
    qrels, line = read_clicks(tmp_path / "clicks.csv")
    assert dict(qrels) == {"q1": {"a": 1, "b": 1}, "q2": {"a": 1, "c": 0}, "q3": {"d": 0}}
    assert line == "clicks on 6 pairs of query and document: 5 used, 1 dropped (fewer than 10 impressions)"


@pytest.mark.parametrize("row", [f"q,a,{10**20},10,1", f"q,a,1,{10**19},1", f"q,a,1,{9 * 10**18},{9 * 10**18}"])
def test_numbers_that_no_log_holds_are_refused(tmp_path: Path, row: str) -> None:
    (tmp_path / "clicks.csv").write_text(f"{HEADER}q,a,2,10,1\n{row}\n")
    with pytest.raises(InputError, match=r"line 3: position .* nothing over 1,000,000,000"):
        read_clicks(tmp_path / "clicks.csv")


def test_a_table_without_rows_is_empty(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {name: pyarrow.array([], pyarrow.string()) for name in HEADER.strip().split(",")}
    parquet.write_table(pyarrow.table(columns), tmp_path / "clicks.parquet")
    with pytest.raises(InputError, match="is empty, expected clicks"):
        read_clicks(tmp_path / "clicks.parquet")


@pytest.mark.parametrize("rows", ["q,a,1,20,0\nq,b,2,20,0\n", "q,a,1,0,0\n"])
def test_without_clicks_nothing_is_relevant(tmp_path: Path, rows: str) -> None:
    (tmp_path / "clicks.csv").write_text(HEADER + rows)
    assert found(tmp_path / "clicks.csv") == set()


def test_a_row_may_be_one_impression(tmp_path: Path) -> None:
    counts = {("q", "a", 1): (20, 2), ("q", "b", 2): (20, 18), ("r", "a", 2): (20, 1)}
    (tmp_path / "whole.csv").write_text(
        HEADER + "".join(f"{q},{d},{p},{n},{c}\n" for (q, d, p), (n, c) in counts.items())
    )
    rows = [
        {"qid": q, "docid": d, "rank": p, "clicked": i < c} for (q, d, p), (n, c) in counts.items() for i in range(n)
    ]
    np.random.default_rng(1).shuffle(rows)  # type: ignore[arg-type]
    (tmp_path / "single.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole, single = (read_clicks(tmp_path / name)[0] for name in ("whole.csv", "single.jsonl"))
    assert {qid: dict(grades) for qid, grades in single.items()} == {qid: dict(grades) for qid, grades in whole.items()}
    assert whole["q"] == {"a": 0, "b": 1}


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        ("q1,a,1,100,40\n", 1, "q1,a,1,100,40.* is no header with a query and a document, such as query_id,doc_id"),
        ("query_id,doc_id,impressions,clicks\nq,a,1,1\n", 2, "clicks: no field for the position"),
        (HEADER + "q,a,0,10,1\n", 2, "position 0, 1 clicks on 10 impressions; expected positions from 1"),
        (HEADER + "q,a,1,10,11\n", 2, "no more clicks than impressions"),
        (HEADER + "q,a,first,10,1\n", 2, "the position is 'first', expected a whole number"),
    ],
)
def test_mistakes_in_clicks_are_named(tmp_path: Path, content: str, line: int, problem: str) -> None:
    (tmp_path / "clicks.csv").write_text(content)
    with pytest.raises(InputError, match=problem) as caught:
        read_clicks(tmp_path / "clicks.csv")
    assert caught.value.line == line


def test_a_data_set_takes_clicks_where_it_has_no_judgments(tmp_path: Path) -> None:
    (tmp_path / "collection.tsv").write_text("a\tbees\nb\thoney\n")
    (tmp_path / "queries.train.tsv").write_text("q\tbee\n")
    (tmp_path / "clicks.train.csv").write_text(HEADER + "q,a,1,20,2\nq,b,2,20,18\nr,a,2,20,1\n")
    data = open_dataset(tmp_path)
    assert data.splits == ("train",)
    assert data.qrels("train")["q"] == {"a": 0, "b": 1}
    assert data.clicks is not None
    (tmp_path / "qrels.train.txt").write_text("q 0 a 1\n")
    data = open_dataset(tmp_path)
    assert data.qrels("train")["q"] == {"a": 1}
    assert data.clicks is None
