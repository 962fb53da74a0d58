"""Expanding a collection: filters, shards, the index's documents, and both kinds of enrichment together."""

from __future__ import annotations

import fcntl
import gzip
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwell.core.errors import InputError, RankwellError
from rankwell.corpus.formats import read_qrels, read_queries
from rankwell.corpus.formats.expansions import Expansion, read_expansions, write_expansions
from rankwell.corpus.records import Document, TermWeights
from rankwell.corpus.store import DocumentStore
from rankwell.enrich.expansion import (
    Filtering,
    combine_weights,
    count_expansions,
    expand_collection,
    expand_store,
    expanded_documents,
    filter_queries,
)
from rankwell.enrich.generated import generated_queries, write_generated
from rankwell.enrich.shared import SharedFolder
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.retrieve.index import Index

ANY = Filtering()
DOCUMENTS = [Document(f"d{number}", f"bees make honey number {number}") for number in range(10)]


class Echo:
    """Writes queries as a real writer does, from pieces and keys, without a model; dies after ``limit`` passages."""

    def __init__(self, folder: Path, limit: int | None = None):
        from rankwell.models.doc2query.decoding import Writing

        self.tokenizer = Tokenizer.open(folder)
        self.max_length, self.options = 32, Writing(n=3)
        self.seen: list[str] = []
        self._limit = limit

    def write(self, passages: Pieces, keys: Sequence[str]) -> list[list[str]]:
        self.seen += keys
        if self._limit is not None and len(self.seen) > self._limit:
            raise KeyboardInterrupt
        lengths = passages.lengths().tolist()
        rows = zip(keys, lengths, strict=True)
        return [[f"honey {key}", f"{key} honey?", f"of {length} wings"] for key, length in rows]


@pytest.fixture
def store(tmp_path: Path) -> DocumentStore:
    return DocumentStore.build(DOCUMENTS, tmp_path / "store")


def test_empty_queries_and_near_duplicates_are_dropped() -> None:
    queries = [["how do bees make honey", "making honey: how do bees do?", "the of", "", "bees"], ["bees"], []]
    kept = filter_queries(queries, ["", "", ""], Filtering())
    # "how do bees make honey" and the second have the same stems: how do bee make honei.
    assert kept == [("how do bees make honey", "bees"), ("bees",), ()]
    everything = filter_queries(queries, ["", "", ""], Filtering(duplicates=False))
    assert everything[0] == ("how do bees make honey", "making honey: how do bees do?", "bees")


def test_a_judge_drops_what_is_off_the_topic() -> None:
    asked: list[tuple[str, str]] = []

    def judge(pairs: Sequence[tuple[str, str]]) -> Any:
        asked.extend(pairs)
        return np.array([0.9 if query.split()[0] in text else 0.4 for query, text in pairs], np.float32)

    queries = [["honey price", "whale weight", "honey price?"], ["whale weight"]]
    kept = filter_queries(queries, ["honey of bees", "the whale"], Filtering(threshold=0.5), judge=judge)
    assert kept == [("honey price",), ("whale weight",)]
    # Duplicates are not judged.
    assert asked == [("honey price", "honey of bees"), ("whale weight", "honey of bees"), ("whale weight", "the whale")]
    with pytest.raises(RankwellError, match="needs a ranker"):
        filter_queries(queries, ["", ""], Filtering(threshold=0.5))
    with pytest.raises(RankwellError, match="probability"):
        Filtering(threshold=2.0)


def test_a_killed_expansion_goes_on_and_ends_in_the_same_file(
    store: DocumentStore, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    def expand(writer: Any, folder: Path) -> Any:
        return expand_store(store, writer, Filtering(), folder, model="m", shard_size=3)

    whole = expand(Echo(tiny_tokenizer), tmp_path / "whole")
    whole.join(tmp_path / "whole.jsonl.gz")
    with pytest.raises(KeyboardInterrupt):
        expand(Echo(tiny_tokenizer, limit=7), tmp_path / "killed")
    again = Echo(tiny_tokenizer)
    expand(again, tmp_path / "killed").join(tmp_path / "killed.jsonl.gz")
    # Six passages, two shards, were done before.
    assert again.seen == ["d6", "d7", "d8", "d9"]
    assert (tmp_path / "killed.jsonl.gz").read_bytes() == (tmp_path / "whole.jsonl.gz").read_bytes()
    found = list(read_expansions(tmp_path / "whole.jsonl.gz"))
    assert [one.docid for one in found] == [document.docid for document in DOCUMENTS]
    assert found[3].queries == ("honey d3", "of 8 wings")
    with pytest.raises(RankwellError, match="shards of other work"):
        expand_store(store, Echo(tiny_tokenizer), Filtering(duplicates=False), tmp_path / "whole", model="m")


def test_a_collection_becomes_a_file(tiny_tokenizer: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.jsonl.gz"
    expand_collection(iter(DOCUMENTS), out, Echo(tiny_tokenizer), Filtering(), source="s", model="m")  # type: ignore[arg-type]
    lines = gzip.decompress(out.read_bytes()).decode().splitlines()
    assert json.loads(lines[0]) == {"docid": "d0", "queries": ["honey d0", "of 8 wings"]}
    assert len(lines) == len(DOCUMENTS)
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl.gz"]
    with pytest.raises(RankwellError, match="exists already"):
        expand_collection(iter(DOCUMENTS), out, Echo(tiny_tokenizer), Filtering(), source="s", model="m")  # type: ignore[arg-type]


class Guarded(Echo):
    """Sees, while it writes, whether another process could take the folder away."""

    def __init__(self, model: Path, folder: Path):
        super().__init__(model)
        self.folder, self.free = folder, False

    def write(self, passages: Pieces, keys: Sequence[str]) -> list[list[str]]:
        with (self.folder / "users").open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.free = True
            except BlockingIOError:
                pass
        return super().write(passages, keys)


def test_a_folder_deleted_while_a_process_waits_for_it_is_made_anew(tiny_tokenizer: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "x.jsonl.parts", tmp_path / "x.jsonl"
    writer = Guarded(tiny_tokenizer, folder)
    with ThreadPoolExecutor() as threads:
        folder.mkdir()
        with (folder / "users").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as by a process that is done and clears up
            waiting = threads.submit(
                expand_collection, iter(DOCUMENTS), out, writer, Filtering(), source="s", model="m"
            )
            time.sleep(0.3)
            shutil.rmtree(folder)
        waiting.result(timeout=60)
    assert not writer.free
    assert [one.docid for one in read_expansions(out)] == [document.docid for document in DOCUMENTS]
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]


def test_work_of_others_is_neither_joined_nor_gone_on_with(tiny_tokenizer: Path, tmp_path: Path) -> None:
    out, others = tmp_path / "x.jsonl", [Document(f"o{number}", "whales sing") for number in range(len(DOCUMENTS))]

    def expand(documents: Sequence[Document], source: str, writer: Any, filtering: Filtering = ANY) -> None:
        expand_collection(documents, out, writer, filtering, source=source, model="m", shard_size=3)

    refused = [("collection", "other", ANY), ("setting of duplicates", "these", Filtering(duplicates=False))]

    class Meanwhile(Echo):
        def write(self, passages: Pieces, keys: Sequence[str]) -> list[list[str]]:
            while refused:
                name, source, filtering = refused.pop()
                with pytest.raises(RankwellError, match=rf"parts, with another {name}; wait until it is done"):
                    expand(others, source, Echo(tiny_tokenizer), filtering)
            return super().write(passages, keys)

    with pytest.raises(KeyboardInterrupt):
        expand(DOCUMENTS, "these", Meanwhile(tiny_tokenizer, limit=7))
    assert not refused
    # The first was killed: the folder is free, and what it left is for its own collection alone.
    expand(others, "other", Echo(tiny_tokenizer))
    assert [one.docid for one in read_expansions(out)] == [document.docid for document in others]


def test_a_folder_replaced_while_it_is_opened_is_not_taken_for_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, opening = tmp_path / "shared", Path.open
    with SharedFolder.enter(folder, {"model": "old"}):
        pass
    with ExitStack() as others:

        def replace_first(path: Path, *arguments: Any, **options: Any) -> Any:
            if path.name == "members" and folder.exists() and not (tmp_path / "removed").exists():
                folder.rename(tmp_path / "removed")
                others.enter_context(SharedFolder.enter(folder, {"model": "new"}))
            return opening(path, *arguments, **options)

        monkeypatch.setattr(Path, "open", replace_first)
        with pytest.raises(RankwellError, match="with another model"), SharedFolder.enter(folder, {"model": "old"}):
            pass


def test_the_texts_are_made_once_by_processes_that_come_together(tmp_path: Path) -> None:
    made: list[str] = []

    def documents() -> Iterator[Document]:
        for document in DOCUMENTS:
            time.sleep(0.02)
            made.append(document.docid)
            yield document

    def open_texts(_: int) -> int:
        with SharedFolder.enter(tmp_path / "shared") as shared:
            return len(shared.store(documents(), "s"))

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(open_texts, range(3))) == [len(DOCUMENTS)] * 3
    assert made == [document.docid for document in DOCUMENTS]


def test_the_last_of_several_removes_what_they_shared(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    with SharedFolder.enter(folder) as first, SharedFolder.enter(folder) as second:
        assert not first.alone(wait=False)
        assert second.alone(wait=False)
        second.remove()
        assert not folder.exists()
        assert not second.alone(wait=True)  # it may be another's by now
    assert list(tmp_path.iterdir()) == []


def test_files_of_expansions_come_back_and_wrong_ones_are_told(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    written = [Expansion("d1", ("how many bees?", "ünïcode")), Expansion("d2", ())]
    write_expansions(written, path)
    assert list(read_expansions(path)) == written
    for line, problem in (
        ('{"docid": "d", "queries": "how"}', "expected a list of strings, found a string"),
        ('{"docid": "d", "queries": ["a", 3]}', "it holds a number"),
        ('{"docid": "d"}', "no key 'queries'"),
    ):
        path.write_text(line + "\n")
        with pytest.raises(InputError, match=problem):
            list(read_expansions(path))


def test_the_index_finds_a_passage_by_its_expansion(tmp_path: Path) -> None:
    expansions = [Expansion(document.docid, ("apiary",) if document.docid == "d4" else ()) for document in DOCUMENTS]
    index = Index.build(expanded_documents(DOCUMENTS, expansions), tmp_path / "index", store=False)
    assert index.rank("apiary").docids == ("d4",)
    assert len(index.rank("honey", k=20).docids) == 10


def test_expansions_must_be_those_of_the_documents() -> None:
    good = [Expansion(document.docid, ()) for document in DOCUMENTS]
    for wrong, problem in (
        (good[:5], "end before document 'd5'"),
        ([*good, Expansion("d10", ())], "go on after the last document, with 'd10'"),
        (good[::-1], "expansions of 'd9' where 'd0' comes"),
    ):
        with pytest.raises(RankwellError, match=problem):
            list(expanded_documents(DOCUMENTS, wrong))
    with pytest.raises(RankwellError, match="must be in one order"):
        list(combine_weights([TermWeights("d0", {})], good[1:2]))


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


def test_what_is_new_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    write_expansions([Expansion("d0", ("bees sting", "honey")), Expansion("d1", ())], path)
    counts = count_expansions(DOCUMENTS[:2], path)
    assert (counts.documents, counts.queries, counts.terms, counts.new) == (2, 2, 3, 1)
    assert counts.as_dict() == {"queries a passage": 1.0, "share of new terms": pytest.approx(1 / 3)}


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
