"""Weighing and expanding a collection on a cluster gives what one process gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from rankwell.core.shards import do
from rankwell.corpus.formats import write_documents
from rankwell.corpus.store import DocumentStore
from rankwell.papers.deepct.weighing import WeighJob
from rankwell.papers.doc2query.decoding import WritingOptions
from rankwell.papers.doc2query.expansion import ExpandJob
from rankwell.papers.shared.passages import write_collection
from rankwell_ray.workers import Cluster

from .conftest import make_documents


def test_weights_are_those_of_one_process(tiny_weigher: Path, tmp_path: Path, cluster: Cluster) -> None:
    store = DocumentStore.build(make_documents(100), tmp_path / "store")
    job = WeighJob(tiny_weigher, device="cpu", shard_size=30, store=store.folder)
    alone, shared = do(replace(job, folder=tmp_path / "one")), do(replace(job, folder=tmp_path / "many"), cluster)
    assert len(shared) == 4
    assert [path.read_bytes() for path in shared.paths()] == [path.read_bytes() for path in alone.paths()]
    assert b'"vector"' in shared.path(0).read_bytes()


def test_a_file_is_weighed_by_workers(tiny_weigher: Path, tmp_path: Path, cluster: Cluster) -> None:
    write_documents(make_documents(100), tmp_path / "collection.tsv")
    job = WeighJob(tiny_weigher, device="cpu", shard_size=30)
    for name, workers in (("one", None), ("many", cluster)):
        assert write_collection(job, str(tmp_path / "collection.tsv"), tmp_path / name, workers=workers) == 100
    assert (tmp_path / "one").read_bytes() == (tmp_path / "many").read_bytes()
    assert not list(tmp_path.glob("*.shards"))


@pytest.mark.parametrize("judged", [False, True])
def test_queries_are_those_of_one_process(
    tiny_writer: Path, tiny_checkpoint: Path, tmp_path: Path, cluster: Cluster, judged: bool
) -> None:
    write_documents(make_documents(20), tmp_path / "collection.tsv")
    judge = tiny_checkpoint if judged else None
    job = ExpandJob(tiny_writer, WritingOptions(n=3, max_query=6), "cpu", 6, judge=judge)
    for name, workers in (("one", None), ("many", cluster)):
        write_collection(job, str(tmp_path / "collection.tsv"), tmp_path / name, workers=workers)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "many").read_bytes()
    assert not list(tmp_path.glob("*.shards"))
