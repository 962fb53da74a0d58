"""An index built by shards and searched by actors finds what one process finds, to the last bit."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from rankwell.core.errors import RankwellError
from rankwell.core.shards import do
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.formats import read_queries, write_documents
from rankwell.corpus.formats.fields import Columns
from rankwell.corpus.records import Document, Query, Run
from rankwell.corpus.sources import resolve_documents
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.description import stored_columns
from rankwell.retrieve.index import Index
from rankwell_ray.build import IndexJob, build_index
from rankwell_ray.search import Shard, ShardedIndex, search_in_shards
from rankwell_ray.workers import Cluster

from .conftest import lock_holder, make_documents, make_queries


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("collection") / "collection.tsv"
    write_documents(make_documents(1000), path)
    return path


@pytest.fixture(scope="module")
def queries() -> list[Query]:
    # Beside ordinary ones: a term that only one shard has, one that none has, one of stop words.
    return [*make_queries(60), Query("rare", "zebra bank"), Query("none", "xylophone"), Query("stop", "the of")]


@pytest.fixture(scope="module")
def whole(collection: Path, queries: list[Query], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What an index of one segment finds."""
    index = Index.build(resolve_documents(str(collection)), tmp_path_factory.mktemp("whole") / "index")
    assert len(index.segments) == 1
    return index.search(queries, k=100)


def same(one: Run, other: Run) -> bool:
    return list(one) == list(other) and all(one[qid] == other[qid] for qid in one)


def test_an_index_of_shards_finds_the_same(collection: Path, queries: list[Query], whole: Run, tmp_path: Path) -> None:
    index = build_index(IndexJob(str(collection), tmp_path / "index", documents=300))
    assert [len(segment) for segment in index.segments] == [300, 300, 300, 100]
    assert same(index.search(queries, k=100), whole)
    assert index.texts(["d00000", "d00999"]) == [make_documents(1000)[0].text, make_documents(1000)[-1].text]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index"]


def test_shards_have_named_fields_titles_and_passages(tmp_path: Path) -> None:
    (tmp_path / "shop.csv").write_text("sku,name,blurb\na,Warm socks,one two three four\nb,Blue hat,five six\n")
    columns = Columns("sku", "blurb", "name")
    index = build_index(IndexJob(str(tmp_path / "shop.csv"), tmp_path / "index", 1, columns=columns, passages=2))
    found = index.read(["a#1", "a#2", "b#1"])
    assert [(document.title, document.text) for document in found] == [
        ("Warm socks", "one two"),
        ("Warm socks", "three four"),
        ("Blue hat", "five six"),
    ]
    assert stored_columns(tmp_path / "index") == columns


@pytest.mark.parametrize("k", [1, 3, 40, 2000])
def test_ties_across_segments_have_one_order_wherever_the_list_ends(
    collection: Path, cut: Path, queries: list[Query], tmp_path: Path, k: int
) -> None:
    whole = Index.build(resolve_documents(str(collection)), tmp_path / "whole").search(queries, k=k)
    scores = [ranking.scores for ranking in whole.values()]
    assert k == 1 or any((own[1:] == own[:-1]).any() for own in scores)
    assert same(Index.open(cut).search(queries, k=k), whole)


def test_built_on_a_cluster_it_is_the_same_index(collection: Path, tmp_path: Path, cluster: Cluster) -> None:
    for name, where in (("one", None), ("two", cluster)):
        build_index(IndexJob(str(collection), tmp_path / name, documents=300), where)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.npy"))
    assert len(files) > 40
    assert all((tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes() for file in files)


def test_a_build_goes_on_with_the_segments_it_has(
    collection: Path, whole: Run, tmp_path: Path, queries: list[Query]
) -> None:
    job = IndexJob(str(collection), tmp_path / "index", documents=300)
    shards = do(job)
    # As if killed while the third was made, and between the second and its description.
    shards.path(1).unlink()
    shards.path(2).unlink()
    (segments,) = {path.parent for path in tmp_path.rglob("segment-0003")}
    (segments / "segment-0003" / "segment.json").unlink()
    (segments / "segment-0003").rename(segments / ".partial-00000000-segment-0003")

    def written(folder: Path) -> dict[str, int]:
        names = ("segment-0001", "segment-0002", "segment-0004")
        return {name: (folder / name / "postings.npy").stat().st_mtime_ns for name in names}

    before = written(segments)
    index = build_index(job)
    assert written(job.out) == before
    assert same(index.search(queries, k=100), whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index"]
    assert not list(job.out.glob(".partial*"))


@pytest.fixture
def red_and_blue(tmp_path: Path) -> tuple[IndexJob, IndexJob]:
    """Two jobs that make the same index of different documents."""
    write_documents([Document("r1", "red apples"), Document("r2", "red pears")], tmp_path / "red.tsv")
    write_documents([Document("b1", "blue whales")], tmp_path / "blue.tsv")
    red, blue = (IndexJob(str(tmp_path / f"{name}.tsv"), tmp_path / "index", 1) for name in ("red", "blue"))
    return red, blue


def test_a_build_takes_over_nothing_from_another_that_was_killed(red_and_blue: tuple[IndexJob, IndexJob]) -> None:
    red, blue = red_and_blue
    do(red)
    index = build_index(blue)
    assert (index.rank("whales").docids, index.rank("apples").docids) == (("b1",), ())
    assert [path.name for path in index.folder.glob("segment-*")] == ["segment-0001"]


def test_builds_killed_while_they_finish_leave_nothing_to_each_other(
    red_and_blue: tuple[IndexJob, IndexJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    red, blue = red_and_blue

    def killed(*_: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("rankwell_ray.build.write_description", killed)
        for job in (red, blue):
            with pytest.raises(KeyboardInterrupt):
                build_index(job)
    index = build_index(red)
    assert index.rank("red").docids == ("r2", "r1")
    assert len(index.rank("whales")) == 0


def test_an_index_made_meanwhile_is_not_replaced(red_and_blue: tuple[IndexJob, IndexJob]) -> None:
    red, blue = red_and_blue
    shards = do(red)
    Index.build(resolve_documents(blue.collection), blue.out)
    with pytest.raises(RankwellError, match="holds an index already"):
        red.finish(shards)
    assert Index.open(blue.out).rank("whales").docids == ("b1",)


def test_a_document_that_comes_twice_is_found_across_shards(tmp_path: Path) -> None:
    path = tmp_path / "collection.tsv"
    write_documents([*make_documents(30), Document("d00004", "bank")], path)
    with pytest.raises(RankwellError, match="'d00004' occurs twice"):
        build_index(IndexJob(str(path), tmp_path / "index", documents=10))


def test_an_index_is_not_replaced(collection: Path, tmp_path: Path) -> None:
    job = IndexJob(str(collection), tmp_path / "index", documents=600)
    build_index(job)
    with pytest.raises(RankwellError, match="holds an index already"):
        build_index(job)


@pytest.fixture(scope="module")
def cut(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cut") / "index"
    build_index(IndexJob(str(collection), folder, documents=200))
    return folder


@pytest.fixture(scope="module")
def sharded(cut: Path, cluster: Cluster) -> Iterator[ShardedIndex]:
    with ShardedIndex.on(cluster, cut, shards=2) as index:
        yield index


def test_actors_find_the_same(sharded: ShardedIndex, queries: list[Query], whole: Run) -> None:
    assert len(sharded.actors) == 2
    assert same(sharded.search(queries, k=100), whole)
    assert same(sharded.search(queries, k=100, threads=2), whole)


def test_shards_of_an_index_that_was_changed_find_the_same(
    collection: Path, queries: list[Query], tmp_path: Path
) -> None:
    documents = [replace(d, metadata={"n": n}) for n, d in enumerate(resolve_documents(str(collection)))]
    index = Index.build(documents[:200], tmp_path / "index")
    index.add(documents[200:])
    index.delete([document.docid for document in documents[::9]])
    place = index.folder, index.manifest["data_hash"]

    class InProcess(ShardedIndex):
        def _answers(self, actors: Any, method: str, arguments: tuple[Any, ...]) -> list[Any]:
            return [getattr(actor, method)(*arguments) for actor in actors]

    sharded = InProcess.open(index.folder)
    assert isinstance(sharded, InProcess)
    sharded.actors = [Shard(*place, [segment.folder.name]) for segment in index.segments]
    assert len(sharded.actors) == 2
    for filter in (None, "n < 100", "n >= 150 and not n > 250"):
        assert same(sharded.search(queries, k=50, filter=filter), index.search(queries, k=50, filter=filter))
    with pytest.raises(RankwellError, match="was changed while it was being opened; try again"):
        Shard(index.folder, "another", [])


@pytest.mark.parametrize(("k", "bm25"), [(1, BM25()), (7, BM25(1.5, 0.9)), (1000, BM25(k2=2.0))])
def test_with_any_parameters(sharded: ShardedIndex, cut: Path, queries: list[Query], k: int, bm25: BM25) -> None:
    assert same(sharded.search(queries, bm25, k=k), Index.open(cut).search(queries, bm25, k=k))


class Killed(Index):
    """An index whose process is killed at the second shard of queries."""

    asked = 0

    def search(self, *args: Any, **options: Any) -> Run:
        self.asked += 1
        if self.asked == 2:
            raise KeyboardInterrupt
        return super().search(*args, **options)


def test_a_search_goes_on_with_its_own_queries_only(
    cut: Path, queries: list[Query], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankwell_ray.search.QUERIES_A_SHARD", 40)
    with pytest.raises(KeyboardInterrupt):
        search_in_shards(Killed.open(cut), queries, tmp_path / "shards", k=10)
    with pytest.raises(RankwellError, match=r"holds shards of other work \(queries was"):
        search_in_shards(Index.open(cut), queries[::-1], tmp_path / "shards", k=10)
    index = Index.open(cut)
    assert same(search_in_shards(index, queries, tmp_path / "shards", k=10), index.search(queries, k=10))


def test_queries_in_a_row_may_find_nothing(cut: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankwell_ray.search.QUERIES_A_SHARD", 2)
    index, texts = Index.open(cut), ("xylophone", "the of", "bank", "river", "xylophone")
    queries = [Query(str(number), text) for number, text in enumerate(texts)]
    run = search_in_shards(index, queries, tmp_path / "shards", k=10)
    assert list(run) == ["2", "3"]
    assert same(run, index.search(queries, k=10))


def test_a_search_goes_on_in_its_own_index_only(queries: list[Query], tmp_path: Path) -> None:
    documents = make_documents(20)
    stemmed = Index.build(documents, tmp_path / "stemmed")
    plain = Index.build(documents, tmp_path / "plain", analyzer=Analyzer(stemmer=None))
    search_in_shards(stemmed, queries, tmp_path / "shards", k=10)
    with pytest.raises(RankwellError, match=r"holds shards of other work \(index was"):
        search_in_shards(plain, queries, tmp_path / "shards", k=10)


def test_an_actor_killed_while_it_searches_is_restarted_and_asked_again(
    sharded: ShardedIndex, queries: list[Query], whole: Run
) -> None:
    import ray

    pid = ray.get(sharded.actors[1].pid.remote())
    os.kill(pid, signal.SIGSTOP)  # it hangs with the question, so that it surely dies before it answers
    found: list[Run] = []
    thread = Thread(target=lambda: found.append(sharded.search(queries, k=100)))
    thread.start()
    time.sleep(0.5)
    assert thread.is_alive()
    os.kill(pid, signal.SIGKILL)
    thread.join(60)
    assert same(found[0], whole)
    assert ray.get(sharded.actors[1].pid.remote()) != pid


def test_an_actor_that_is_not_restarted_is_an_error_in_one_line(cut: Path, cluster: Cluster) -> None:
    import ray

    with ShardedIndex.on(cluster, cut, shards=2) as index:
        ray.kill(index.actors[1])
        with pytest.raises(RankwellError, match=r"a worker that searches .* was lost and could not be restarted"):
            index.rank("bank")


def test_more_actors_than_there_is_room_for(cut: Path, cluster: Cluster) -> None:
    large = replace(cluster, cpus=0.5)
    with (
        pytest.raises(RankwellError, match=r"5 shards need 2.5 cores; the cluster has 2"),
        ShardedIndex.on(large, cut, shards=5),
    ):
        pass
    with ShardedIndex.on(large, cut) as index:  # as many as there is room for
        assert len(index.actors) == 4


@pytest.mark.data
def test_all_dev_queries_of_a_real_collection(data_folder: Path, tmp_path: Path, cluster: Cluster) -> None:
    folder = data_folder / "insuranceqa"
    documents = resolve_documents(str(folder))
    queries = read_queries(folder / "queries.valid.tsv")
    whole = Index.build(documents, tmp_path / "whole").search(queries, k=100)
    build_index(IndexJob(str(folder), tmp_path / "cut", documents=5000), cluster)
    with ShardedIndex.on(cluster, tmp_path / "cut", shards=2) as index:
        assert same(index.search(queries, k=100), whole)


@pytest.mark.data
def test_a_sample_of_the_dev_queries_of_wiki(data_folder: Path, tmp_path: Path, cluster: Cluster) -> None:
    folder = data_folder / "wiki"
    write_documents(islice(resolve_documents(str(folder)), 20_000), tmp_path / "collection.tsv")
    queries = [query for path in sorted(folder.glob("queries*.dev.tsv")) for query in read_queries(path)[::15]]
    assert len(queries) > 300
    documents = resolve_documents(str(tmp_path / "collection.tsv"))
    whole = Index.build(documents, tmp_path / "whole").search(queries, k=1000)
    build_index(IndexJob(str(tmp_path / "collection.tsv"), tmp_path / "cut", documents=5000), cluster)
    with ShardedIndex.on(cluster, tmp_path / "cut", shards=2) as index:
        assert same(index.search(queries, k=1000), whole)


def test_the_lock_of_a_shard_names_its_process(tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / "lock").open("ab") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 3)
        child = os.fork()
        if child == 0:
            os._exit(
                int(lock_holder(tmp_path / "lock", 3) != os.getppid() or lock_holder(tmp_path / "lock", 2) is not None)
            )
        assert os.waitpid(child, 0)[1] == 0
