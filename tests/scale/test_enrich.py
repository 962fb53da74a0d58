"""Weighing and expanding a collection on a cluster gives what one process gives."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from rankwell.core.jobs import do  # noqa: E402
from rankwell.corpus.formats import write_documents  # noqa: E402
from rankwell.corpus.store import DocumentStore  # noqa: E402
from rankwell.enrich.deepct import WeighJob, WeightedIndexRequest  # noqa: E402
from rankwell.enrich.doc2query import ExpandRequest, Filtering  # noqa: E402
from rankwell.models.checkpoints.heads import load_token_weights, save_token_weights  # noqa: E402
from rankwell.models.doc2query.checkpoints import WriterConfig, load_writer, save_writer  # noqa: E402
from rankwell.models.doc2query.decoding import WritingOptions  # noqa: E402
from rankwell.rank.judge import RankerJudge  # noqa: E402
from rankwell.retrieve.bm25 import BM25  # noqa: E402
from rankwell.scale.workers import Cluster  # noqa: E402

from .conftest import make_documents  # noqa: E402


@pytest.fixture
def weigher(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    model, tokenizer = load_token_weights(tiny_checkpoint, seed=4)
    with torch.no_grad():
        model.head.weight.mul_(4)
        model.head.bias.fill_(0.5)
    save_token_weights(tmp_path / "weigher", model, tokenizer, 24)
    return tmp_path / "weigher"


def test_weights_are_those_of_one_process(weigher: Path, tmp_path: Path, cluster: Cluster) -> None:
    store = DocumentStore.build(make_documents(100), tmp_path / "store")
    jobs = [WeighJob(store.folder, weigher, tmp_path / name, device="cpu", shard_size=30) for name in ("one", "many")]
    alone, shared = do(jobs[0]), do(jobs[1], cluster)
    assert len(shared) == 4
    assert [path.read_bytes() for path in shared.paths()] == [path.read_bytes() for path in alone.paths()]
    assert b'"vector"' in shared.path(0).read_bytes()


def test_an_index_is_weighed_by_workers(weigher: Path, tmp_path: Path, cluster: Cluster) -> None:
    write_documents(make_documents(100), tmp_path / "collection.tsv")
    alone, shared = (
        WeightedIndexRequest(str(tmp_path / "collection.tsv"), tmp_path / name, weigher, device="cpu", shard_size=30)
        for name in ("one", "many")
    )
    first, second = alone.run(), shared.run(cluster)
    assert dict(first.rank("honey bank", BM25(k1=10))) == dict(second.rank("honey bank", BM25(k1=10)))
    assert not list(tmp_path.glob("*.shards"))


@pytest.mark.parametrize("judged", [False, True])
def test_queries_are_those_of_one_process(
    tiny_checkpoint: Path, tmp_path: Path, cluster: Cluster, judged: bool
) -> None:
    model, tokenizer, _ = load_writer(tiny_checkpoint, seed=2)
    save_writer(tmp_path / "writer", model, tokenizer, WriterConfig(max_length=32, max_query=6))
    write_documents(make_documents(20), tmp_path / "collection.tsv")
    judge = RankerJudge.find(tiny_checkpoint) if judged else None
    alone, shared = (
        ExpandRequest(
            str(tmp_path / "collection.tsv"),
            tmp_path / "writer",
            tmp_path / f"{name}.jsonl",
            WritingOptions(n=3, max_query=6),
            Filtering(threshold=0.5 if judged else None),
            judge,
            device="cpu",
            shard_size=6,
        )
        for name in ("one", "many")
    )
    alone.run()
    shared.run(cluster)
    assert alone.out.read_bytes() == shared.out.read_bytes()
    assert not list(tmp_path.glob("*.shards"))
