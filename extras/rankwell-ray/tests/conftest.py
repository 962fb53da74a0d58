"""One small local cluster for all tests, and what they share with those of rankwell."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.conftest import (  # noqa: F401
    _any_processor,
    data_folder,
    rankwell,
    tiny_bi_encoder,
    tiny_checkpoint,
    tiny_tokenizer,
    tiny_weigher,
    tiny_writer,
)

from rankwell.corpus.formats import write_documents, write_queries, write_run
from rankwell.corpus.records import Document, Query
from rankwell.retrieve.index import Index
from rankwell_ray.workers import Cluster

WORDS = (
    "bank money rate loan bee honey hive winter warm river fish whale bird city london paris music song film".split()
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As each worker has: the same sums in another order are not the same to the bit."""
    if find_spec("torch") is None:
        yield
        return
    import torch

    own = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(own)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two workers on this machine, each on a quarter of a core."""
    ray = pytest.importorskip("ray")
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    environment = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=128 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": environment, "worker_process_setup_hook": "small_groups.use"},
    )
    yield Cluster(workers=2, cpus=0.25)
    ray.shutdown()


def make_documents(count: int, seed: int = 1) -> list[Document]:
    """Short documents; many score alike, so that ties are tried."""
    chosen = random.Random(seed)
    return [Document(f"d{n:05d}", " ".join(chosen.choices(WORDS, k=chosen.randint(3, 12)))) for n in range(count)]


def make_queries(count: int, seed: int = 2) -> list[Query]:
    chosen = random.Random(seed)
    return [Query(f"q{n}", " ".join(chosen.sample(WORDS, 3))) for n in range(count)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection, queries, an index and the run of its search."""
    folder = tmp_path_factory.mktemp("data")
    documents, queries = make_documents(300), make_queries(24)
    write_documents(documents, folder / "collection.tsv")
    write_queries(queries, folder / "queries.tsv")
    write_run(Index.build(documents, folder / "index").search(queries, k=20), folder / "bm25.run")
    return folder


def lock_holder(lock: Path, byte: int) -> int | None:
    """The process that holds the lock of one byte of a file."""
    import fcntl
    import struct

    if not lock.exists():
        return None
    with lock.open("rb") as file:
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, byte, 1, 0)
        kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else int(pid)
