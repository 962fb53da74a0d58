"""Folders of training examples and triples."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from rankwell.core.errors import InputError
from rankwell.corpus.datasets import Dataset, open_dataset
from rankwell.corpus.records import Document, Query, Run
from rankwell.corpus.sources import collection_digest, resolve_documents


def example(query: str, pos: str, neg: str = "") -> str:
    return json.dumps({"query": query, "pos": pos.split(), "neg": neg.split()}) + "\n"


def judged(data: Dataset, split: str) -> dict[str, dict[str, int]]:
    return {qid: dict(grades) for qid, grades in data.qrels(split).items()}


def ranked(run: Run | None) -> list[tuple[str, list[tuple[str, float]]]]:
    assert run is not None
    return [(qid, list(ranking)) for qid, ranking in run.items()]


def test_equal_texts_are_one_query_and_one_document(tmp_path: Path) -> None:
    (tmp_path / "examples.train.jsonl").write_text(example("q", "a b", "c b c") + example("r", "c", "a") * 2)
    with gzip.open(tmp_path / "examples.dev.jsonl.gz", "wt") as file:
        file.write(example("s", "d") + example("q", "a", "d"))
    data = open_dataset(tmp_path)
    assert data.splits == ("dev", "train")
    assert list(data.documents()) == [
        Document("d1", "d"),
        Document("d2", "a"),
        Document("d3", "b"),
        Document("d4", "c"),
    ]
    assert data.queries("train") == [Query("q2", "q"), Query("q3", "r")]
    assert data.queries("dev") == [Query("q1", "s"), Query("q2", "q")]
    assert judged(data, "train") == {"q2": {"d2": 1, "d3": 1}, "q3": {"d4": 1}}
    # b is relevant, so it is not a negative.
    assert ranked(data.negatives("train")) == [("q2", [("d4", 1.0)]), ("q3", [("d2", 1.0)])]
    assert ranked(data.negatives("dev")) == [("q2", [("d1", 1.0)])]
    assert list(resolve_documents(tmp_path)) == list(data.documents())


def test_negatives_come_in_the_order_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "triples.train.tsv").write_text("q\ta\tc\nq\ta\tb\nr\tb\tc\nq\tb\td\n")
    data = open_dataset(tmp_path)
    assert data.splits == ("train",)
    assert judged(data, "train") == {"q1": {"d1": 1, "d2": 1}, "q2": {"d2": 1}}
    assert ranked(data.negatives()) == [("q1", [("d3", 1.0), ("d4", 0.5)]), ("q2", [("d3", 1.0)])]


def test_every_tenth_query_of_a_file_without_a_split_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "triples.tsv").write_text("".join(f"query {n}\tgood {n}\tbad\n" for n in range(1, 24)))
    data = open_dataset(tmp_path)
    assert data.splits == ("dev", "train")
    assert [query.text for query in data.queries("dev")] == ["query 10", "query 20"]
    assert len(data.queries("train")) == 21
    assert len(list(data.documents())) == 24
    (tmp_path / "triples.tsv").write_text("a\tb\tc\nd\tb\tc\n")
    assert [query.text for query in open_dataset(tmp_path).queries("dev")] == ["d"]
    (tmp_path / "triples.tsv").write_text("a\tb\tc\n")
    with pytest.raises(InputError, match=r"triples\.tsv: has one query, expected two or more"):
        open_dataset(tmp_path).queries("train")


def test_beside_a_collection_triples_contain_ids(tmp_path: Path) -> None:
    (tmp_path / "collection.tsv").write_text("x\tone\ny\ttwo\nz\tthree\n")
    (tmp_path / "queries.tsv").write_text("7\tseven\n8\teight\n9\tnine\n")
    (tmp_path / "qrels.dev.txt").write_text("9 0 z 1\n")
    (tmp_path / "triples.tsv").write_text("7\tx\ty\n8\ty\tx\n7\tz\ty\n")
    data = open_dataset(tmp_path)
    assert data.splits == ("dev", "train")
    assert data.queries("train") == [Query("7", "seven"), Query("8", "eight")]
    assert (judged(data, "train"), judged(data, "dev")) == ({"7": {"x": 1, "z": 1}, "8": {"y": 1}}, {"9": {"z": 1}})
    assert ranked(data.negatives("train")) == [("7", [("y", 1.0)]), ("8", [("x", 1.0)])]
    assert (data.queries("dev"), data.negatives("dev")) == ([Query("9", "nine")], None)
    assert [document.docid for document in data.documents()] == ["x", "y", "z"]
    (tmp_path / "triples.tsv").write_text("7\tx\ty\n8\tsome text\tx\n")
    with pytest.raises(InputError, match=r"triples\.tsv, line 2: the positive's id 'some text' holds whitespace"):
        open_dataset(tmp_path).qrels("train")


def test_a_qrels_file_of_the_split_wins(tmp_path: Path) -> None:
    (tmp_path / "collection.tsv").write_text("x\tone\ny\ttwo\n")
    (tmp_path / "queries.train.tsv").write_text("7\tseven\n")
    (tmp_path / "qrels.train.txt").write_text("7 0 x 2\n")
    (tmp_path / "triples.train.tsv").write_text("7\ty\tx\n")
    assert judged(open_dataset(tmp_path), "train") == {"7": {"x": 2}}


def test_the_digest_names_the_texts(tmp_path: Path) -> None:
    (tmp_path / "examples.jsonl").write_text(example("q", "a", "b"))
    before = open_dataset(tmp_path).digest()
    assert collection_digest(str(tmp_path)) == before
    (tmp_path / "examples.jsonl").write_text(example("q", "a", "c"))
    assert open_dataset(tmp_path).digest() != before


def test_mistakes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text(example("q", "a", "b") + '{"query": "r", "pos": []}\n')
    with pytest.raises(InputError, match=r"examples\.jsonl, line 2: "):
        open_dataset(tmp_path).queries("train")
    (tmp_path / "triples.tsv").write_text("a\tb\tc\n")
    with pytest.raises(InputError, match=r"found examples\.jsonl, triples\.tsv, expected one of them"):
        open_dataset(tmp_path)
    (tmp_path / "triples.tsv").unlink()
    (tmp_path / "collection.tsv").write_text("a\tb\n")
    with pytest.raises(InputError, match="found examples, which contain texts, beside a collection"):
        open_dataset(tmp_path)
