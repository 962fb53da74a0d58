"""doc2query: filters, expansion of a collection in shards, and queries added to term weights."""

from __future__ import annotations

import fcntl
import gzip
import json
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.expansions import write_expansions
from tests.papers.conftest import interrupted_after

from rankwell.core.errors import InputError, RankwellError
from rankwell.corpus.formats import read_qrels, read_queries, write_documents
from rankwell.corpus.formats.texts import Expansion, read_expansions
from rankwell.corpus.records import Document, TermWeights
from rankwell.inputs.pieces import Pieces
from rankwell.papers.doc2query.decoding import Writer, WritingOptions
from rankwell.papers.doc2query.expansion import (
    ExpandJob,
    count_expansions,
    filter_queries,
    generated_queries,
    write_generated,
)
from rankwell.papers.shared.passages import write_collection
from rankwell.retrieve.builder import combine_weights

WRITING = WritingOptions(n=3, max_query=6)
DOCUMENTS = [Document(f"d{number}", f"bees make honey number {number}") for number in range(10)]


@pytest.fixture
def collection(tmp_path: Path) -> str:
    write_documents(DOCUMENTS, tmp_path / "data" / "collection.tsv")
    return str(tmp_path / "data" / "collection.tsv")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the passages that queries were written for, in order."""
    ids: list[str] = []
    write = Writer.write

    def noted(self: Writer, passages: Pieces, keys: Sequence[str]) -> list[list[str]]:
        ids.extend(keys)
        return write(self, passages, keys)

    monkeypatch.setattr(Writer, "write", noted)
    return ids


def test_empty_queries_and_near_duplicates_are_dropped() -> None:
    queries = [["how do bees make honey", "making honey: how do bees do?", "the of", "", "bees"], ["bees"], []]
    kept = filter_queries(queries, ["", "", ""])
    # "how do bees make honey" and the second have the same stems: how do bee make honei.
    assert kept == [("how do bees make honey", "bees"), ("bees",), ()]


def test_a_judge_drops_what_is_off_the_topic() -> None:
    asked: list[tuple[str, str]] = []

    def judge(pairs: Sequence[tuple[str, str]]) -> Any:
        asked.extend(pairs)
        return np.array([0.9 if query.split()[0] in text else 0.4 for query, text in pairs], np.float32)

    queries = [["honey price", "whale weight", "honey price?"], ["whale weight"]]
    kept = filter_queries(queries, ["honey of bees", "the whale"], judge=judge)
    assert kept == [("honey price",), ("whale weight",)]
    # Duplicates are not judged.
    assert asked == [("honey price", "honey of bees"), ("whale weight", "honey of bees"), ("whale weight", "the whale")]
    assert filter_queries(queries, ["honey", "whale"], judge=judge, threshold=0.4)[0] == ("honey price", "whale weight")


def request(collection: str, model: Path, out: Path, **options: Any) -> Callable[..., int]:
    options = {"device": "cpu", "shard_size": 3, **options}
    return partial(write_collection, ExpandJob(model, WRITING, **options), collection, out)


def test_an_interrupted_expansion_resumes_and_ends_in_the_same_file(
    collection: str, tiny_writer: Path, tmp_path: Path, written: list[str]
) -> None:
    outs = [tmp_path / "resumed.jsonl.gz", tmp_path / "whole.jsonl.gz"]
    resumed, whole = (request(collection, tiny_writer, out) for out in outs)
    assert whole() == len(DOCUMENTS)
    assert written == [document.docid for document in DOCUMENTS]
    with pytest.raises(KeyboardInterrupt), interrupted_after(2):
        resumed()
    written.clear()
    resumed()
    # Six passages, two shards, were done before.
    assert written == ["d6", "d7", "d8", "d9"]
    assert outs[0].read_bytes() == outs[1].read_bytes()
    lines = gzip.decompress(outs[1].read_bytes()).decode().splitlines()
    assert [json.loads(line)["docid"] for line in lines] == [document.docid for document in DOCUMENTS]
    queries = sum(len(json.loads(line)["queries"]) for line in lines)
    assert count_expansions(DOCUMENTS, outs[1])["queries a passage"] == queries / len(DOCUMENTS) > 1
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(["data", *(out.name for out in outs)])
    with pytest.raises(RankwellError, match="exists already"):
        whole()


def test_a_judge_is_its_whole_folder(tiny_writer: Path, tiny_checkpoint: Path, collection: str, tmp_path: Path) -> None:
    folder = tmp_path / "judge"
    shutil.copytree(tiny_checkpoint, folder)
    judged = request(collection, tiny_writer, tmp_path / "x.jsonl", judge=folder, threshold=0.0)
    with pytest.raises(KeyboardInterrupt), interrupted_after(2):
        judged()
    (shards,) = (tmp_path / "x.jsonl.shards").glob("queries-*")
    (folder / "rankwell.json").write_text('{"template": {"max_length": 48, "max_query": 16}}')
    with pytest.raises(KeyboardInterrupt), interrupted_after(0):
        judged()
    # The queries that the old judge accepted are not mixed with those of the new one.
    assert len(list((tmp_path / "x.jsonl.shards").glob("queries-*"))) == 2
    assert len(list(shards.glob("shard-*"))) == 2


def test_a_folder_deleted_while_a_process_waits_for_it_is_made_anew(
    collection: str, tiny_writer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out, deletable = tmp_path / "x.jsonl.shards", tmp_path / "x.jsonl", []
    write = Writer.write

    def guarded(self: Writer, passages: Pieces, keys: Sequence[str]) -> list[list[str]]:
        with (folder / "users").open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                deletable.append(keys)
            except BlockingIOError:
                pass
        return write(self, passages, keys)

    monkeypatch.setattr(Writer, "write", guarded)
    waits, flock = threading.Event(), fcntl.flock

    def noted(file: Any, operation: int) -> None:
        if operation == fcntl.LOCK_SH and Path(file.name).name == "users":
            waits.set()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", noted)
    with ThreadPoolExecutor() as threads:
        folder.mkdir()
        with (folder / "users").open("ab") as lock:
            flock(lock, fcntl.LOCK_EX)  # as by a process that is done and removes the folder
            waiting = threads.submit(request(collection, tiny_writer, out))
            assert waits.wait(timeout=600)
            shutil.rmtree(folder)
        waiting.result(timeout=600)
    assert not deletable
    assert [one.docid for one in read_expansions(out)] == [document.docid for document in DOCUMENTS]
    assert not folder.exists()


def test_work_of_others_is_neither_joined_nor_resumed(
    collection: str, tiny_writer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [Document(f"o{number}", "whales sing") for number in range(len(DOCUMENTS))]
    write_documents(others, tmp_path / "others.tsv")
    other = str(tmp_path / "others.tsv")
    out = tmp_path / "x.jsonl"
    refused = [
        ("collection", request(other, tiny_writer, out)),
        ("setting of threshold", request(collection, tiny_writer, out, threshold=0.25)),
    ]
    write = Writer.write

    def meanwhile(self: Writer, passages: Pieces, keys: Sequence[str]) -> list[list[str]]:
        while refused:
            name, different = refused.pop()
            with pytest.raises(RankwellError, match=rf"shards with another {name}; wait until it is done"):
                different()
        return write(self, passages, keys)

    monkeypatch.setattr(Writer, "write", meanwhile)
    with pytest.raises(KeyboardInterrupt), interrupted_after(2):
        request(collection, tiny_writer, out)()
    assert not refused
    # The first was killed: the folder is free, and what it left is for its own collection alone.
    request(other, tiny_writer, out)()
    assert [one.docid for one in read_expansions(out)] == [document.docid for document in others]


def test_files_of_expansions_come_back_and_wrong_ones_are_told(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    written = [Expansion("d1", ("how many bees?", "ünïcode")), Expansion("d2", ())]
    write_expansions(written, path)
    assert list(read_expansions(path)) == written
    for line, problem in (
        ('{"docid": "d", "queries": "how"}', "expected a list of strings, found a string"),
        ('{"docid": "d", "queries": ["a", 3]}', "found a number in it"),
        ('{"docid": "d"}', "no key 'queries'"),
    ):
        path.write_text(line + "\n")
        with pytest.raises(InputError, match=problem):
            list(read_expansions(path))


def test_weights_and_expansions_add_up_by_stem() -> None:
    weights = [TermWeights("d", {"bees": 40.0, "honey": 10.0})]
    expansions = [Expansion("d", ("a bee's honey", "honeys of bees", "apiaries", "apiary bee"))]
    (both,) = combine_weights(weights, expansions, scale=100)
    # bee in 3 of 4 queries, honey in 2, apiary in 2 under the word that came first.
    assert both.weights == {"bees": 40 + 75, "honey": 10 + 50, "apiaries": 50}
    (root,) = combine_weights(weights, expansions, scale=100, root=True)
    assert root.weights == {"bees": 40 + 87, "honey": 10 + 71, "apiaries": 71}
    (none,) = combine_weights(weights, [Expansion("d", ())])
    assert none.weights == weights[0].weights
    with pytest.raises(RankwellError, match="expansions of 'e' where 'd' is expected"):
        list(combine_weights(weights, [Expansion("e", ())]))


def test_what_is_new_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    write_expansions([Expansion("d0", ("bees sting", "honey")), Expansion("d1", ())], path)
    counts = count_expansions(DOCUMENTS[:2], path)
    assert counts == {"queries a passage": 1.0, "share of new terms": pytest.approx(1 / 3)}


def test_written_queries_are_training_data(tmp_path: Path) -> None:
    shared = [Expansion("d1", ("a", "b")), Expansion("d2", ("b",)), Expansion("d3", ())]
    queries, qrels = generated_queries(shared)
    assert [(query.qid, query.text) for query in queries] == [("g1", "a"), ("g2", "b")]
    assert {qid: dict(grades) for qid, grades in qrels.items()} == {"g1": {"d1": 1}, "g2": {"d1": 1, "d2": 1}}
    many = [Expansion(f"d{number}", (f"query {number}", f"more {number}", "same")) for number in range(40)]
    counts = write_generated(many, tmp_path, dev=10)
    learned, held = (read_queries(tmp_path / f"queries.{split}.tsv") for split in ("generated", "generated.dev"))
    assert counts == {"generated": len(learned), "generated.dev": len(held)}
    passages, others = (
        {docid for grades in read_qrels(tmp_path / f"qrels.{split}.txt").values() for docid in grades}
        for split in ("generated", "generated.dev")
    )
    assert not passages & others
    assert len(passages | others) == 40
    assert "same" not in {query.text for query in held}
    assert 4 <= len(held) <= 12
    with pytest.raises(RankwellError, match="too few"):
        write_generated(shared, tmp_path)
