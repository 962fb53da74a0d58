"""Weighing and expanding a collection on a cluster gives what one process gives."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from rankwell.core.shards import do
from rankwell.corpus.formats import write_documents
from rankwell.corpus.store import DocumentStore
from rankwell.papers.deepct.weighing import WeighJob, WeightOptions, weigh_collection
from rankwell.papers.doc2query.decoding import WritingOptions
from rankwell.papers.doc2query.expansion import expand_collection
from rankwell.papers.doc2query.judge import RankerJudge
from rankwell.scale.workers import Cluster

from .conftest import make_documents


def test_weights_are_those_of_one_process(tiny_weigher: Path, tmp_path: Path, cluster: Cluster) -> None:
    store = DocumentStore.build(make_documents(100), tmp_path / "store")
    jobs = [
        WeighJob(store.folder, tiny_weigher, tmp_path / name, device="cpu", shard_size=30) for name in ("one", "many")
    ]
    alone, shared = do(jobs[0]), do(jobs[1], cluster)
    assert len(shared) == 4
    assert [path.read_bytes() for path in shared.paths()] == [path.read_bytes() for path in alone.paths()]
    assert b'"vector"' in shared.path(0).read_bytes()


def test_a_file_is_weighed_by_workers(tiny_weigher: Path, tmp_path: Path, cluster: Cluster) -> None:
    write_documents(make_documents(100), tmp_path / "collection.tsv")
    weigh = partial(weigh_collection, str(tmp_path / "collection.tsv"), tiny_weigher, device="cpu", shard_size=30)
    assert weigh(tmp_path / "one", WeightOptions()) == 100
    assert weigh(tmp_path / "many", WeightOptions(), workers=cluster) == 100
    assert (tmp_path / "one").read_bytes() == (tmp_path / "many").read_bytes()
    assert not list(tmp_path.glob("*.shards"))


@pytest.mark.parametrize("judged", [False, True])
def test_queries_are_those_of_one_process(
    tiny_writer: Path, tiny_checkpoint: Path, tmp_path: Path, cluster: Cluster, judged: bool
) -> None:
    write_documents(make_documents(20), tmp_path / "collection.tsv")
    judge = RankerJudge.find(tiny_checkpoint) if judged else None
    for name, workers in (("one", None), ("many", cluster)):
        expand_collection(
            str(tmp_path / "collection.tsv"),
            tiny_writer,
            tmp_path / name,
            WritingOptions(n=3, max_query=6),
            judge,
            device="cpu",
            shard_size=6,
            workers=workers,
        )
    assert (tmp_path / "one").read_bytes() == (tmp_path / "many").read_bytes()
    assert not list(tmp_path.glob("*.shards"))
