"""Weighing and expanding a collection on a cluster gives what one process gives."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from rankwell.core.errors import RankwellError  # noqa: E402
from rankwell.corpus.datasets import collection_digest  # noqa: E402
from rankwell.corpus.formats import write_documents  # noqa: E402
from rankwell.corpus.formats.expansions import read_expansions  # noqa: E402
from rankwell.corpus.records import Document  # noqa: E402
from rankwell.corpus.store import DocumentStore  # noqa: E402
from rankwell.enrich.expansion import Filtering, expand_collection, writing_work  # noqa: E402
from rankwell.enrich.shared import SharedFolder  # noqa: E402
from rankwell.enrich.term_weights import TermWeigher, WeightOptions  # noqa: E402
from rankwell.enrich.weighing import weigh_collection  # noqa: E402
from rankwell.enrich.weighted_index import weighing_work  # noqa: E402
from rankwell.models.checkpoints.heads import load_token_weights, save_token_weights  # noqa: E402
from rankwell.models.checkpoints.identity import model_digest  # noqa: E402
from rankwell.models.doc2query.checkpoints import WriterConfig, load_writer, save_writer  # noqa: E402
from rankwell.models.doc2query.decoding import Writer, Writing  # noqa: E402
from rankwell.scale.enrich import WeighJob, expand_on, weigh_and_index_on  # noqa: E402
from rankwell.scale.runs import shards_folder  # noqa: E402
from rankwell.scale.workers import Cluster, do  # noqa: E402

from .conftest import make_documents  # noqa: E402


def test_weights_are_those_of_one_process(tiny_checkpoint: Path, tmp_path: Path, cluster: Cluster) -> None:
    model, tokenizer = load_token_weights(tiny_checkpoint, seed=4)
    with torch.no_grad():
        model.head.weight.mul_(4)
        model.head.bias.fill_(0.5)
    checkpoint = tmp_path / "model"
    save_token_weights(checkpoint, model, tokenizer, 24)
    store = DocumentStore.build(make_documents(100), tmp_path / "store")
    weigher = TermWeigher.from_pretrained(checkpoint, device="cpu")
    names = {"model": model_digest(checkpoint), "shard_size": 30}
    alone = weigh_collection(store, weigher, WeightOptions(), tmp_path / "alone", **names)

    job = WeighJob(tmp_path / "store", str(checkpoint), tmp_path / "shared", device="cpu", shard_size=30)
    shared = do(job, cluster)
    assert len(shared) == 4
    assert [path.read_bytes() for path in shared.paths()] == [path.read_bytes() for path in alone.paths()]
    assert b'"vector"' in shared.path(0).read_bytes()

    other = WeighJob(job.store, job.model, job.folder, WeightOptions("root"), "cpu", 30)
    with pytest.raises(RankwellError, match="holds shards of other work"):
        do(other, cluster)


def test_other_work_for_the_same_result_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    model, tokenizer, _ = load_writer(tiny_checkpoint, seed=2)
    save_writer(tmp_path / "writer", model, tokenizer, WriterConfig(max_length=32, max_query=6))
    weights, tokenizer = load_token_weights(tiny_checkpoint, seed=4)
    save_token_weights(tmp_path / "weigher", weights, tokenizer, 24)
    for name in "ab":
        write_documents([Document(f"{name}{n}", "bees make honey") for n in range(5)], tmp_path / f"{name}.jsonl")
    first, second = (str(tmp_path / f"{name}.jsonl") for name in "ab")
    options, at_once = Writing(n=2, max_query=6), pytest.raises(RankwellError, match="with another collection; wait")

    work = writing_work(collection_digest(first), model_digest(tmp_path / "writer"), options, Filtering())
    out = tmp_path / "x.jsonl"
    with SharedFolder.enter(shards_folder(out), work), at_once:
        expand_on(None, second, out, tmp_path / "writer", options, Filtering(), device="cpu")
    expand_on(None, second, out, tmp_path / "writer", options, Filtering(), device="cpu")
    assert [one.docid for one in read_expansions(out)] == [f"b{n}" for n in range(5)]

    work = weighing_work(collection_digest(first), model_digest(tmp_path / "weigher"), WeightOptions(), True)
    out = tmp_path / "index"
    with SharedFolder.enter(shards_folder(out), work), at_once:
        weigh_and_index_on(None, second, out, tmp_path / "weigher", WeightOptions(), device="cpu")
    index = weigh_and_index_on(None, second, out, tmp_path / "weigher", WeightOptions(), device="cpu")
    assert (len(index), "b0" in index) == (5, True)
    assert not list(tmp_path.glob("*.shards"))


def test_queries_are_those_of_one_process(tiny_checkpoint: Path, tmp_path: Path, cluster: Cluster) -> None:
    model, tokenizer, _ = load_writer(tiny_checkpoint, seed=2)
    save_writer(tmp_path / "writer", model, tokenizer, WriterConfig(max_length=32, max_query=6))
    documents, options = make_documents(20), Writing(n=3, max_query=6)
    write_documents(documents, tmp_path / "collection.tsv")
    writer = Writer(model, tokenizer, 32, options, device="cpu")
    alone, shared = tmp_path / "alone.jsonl", tmp_path / "shared.jsonl"
    expand_collection(documents, alone, writer, Filtering(), source="these", model="this")
    names = [str(tmp_path / "collection.tsv"), shared, tmp_path / "writer"]
    expand_on(cluster, *names, options, Filtering(), device="cpu", shard_size=6)  # type: ignore[arg-type]
    assert alone.read_bytes() == shared.read_bytes()
    assert not list(tmp_path.glob("*.shards"))
    with pytest.raises(RankwellError, match="exists already"):
        expand_on(cluster, *names, options, Filtering())  # type: ignore[arg-type]
