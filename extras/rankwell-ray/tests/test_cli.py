"""``--ray`` on the verbs: the same files as without it, made by workers, and gone on with after a kill."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from rankwell.core.errors import RankwellError
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.devices import Computing
from rankwell.rank.requests import RerankRequest
from rankwell.retrieve.index import Index
from rankwell_ray.rerank import RerankJob
from rankwell_ray.search import ShardedIndex

from .conftest import lock_holder, make_documents
from .small_groups import PAIRS

Call = Callable[..., Any]
MAIN = "from rankwell.cli.main import main; main()"


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankwell.rank.pairs.PAIRS_AT_A_TIME", PAIRS)


@pytest.fixture
def rerank(rankwell: Call, data: Path, tiny_checkpoint: Path, small_groups: None) -> Call:
    def call(out: str, *arguments: str | Path) -> Any:
        usual = ["--queries", data / "queries.tsv", "--collection", data / "index", "--model", tiny_checkpoint]
        return rankwell("rerank", data / "bm25.run", *usual, "--out", out, *arguments)

    return call


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("options", [[], ["--fuse", "0.3", "--depth", "7"]])
def test_rerank(rerank: Call, options: list[str]) -> None:
    one, two = rerank("one.run", *options), rerank("two.run", *options, "--ray", "local")
    assert (one.code, two.code) == (0, 0), two.err
    assert Path("one.run").read_bytes() == Path("two.run").read_bytes()
    truncated = [outcome.out.split("; ")[1].splitlines()[0] for outcome in (one, two)]  # an estimate of time follows
    assert truncated[0] == truncated[1]
    assert not Path("two.run.shards").exists()


@pytest.mark.usefixtures("cluster")
def test_index_and_search(rankwell: Call, data: Path) -> None:
    made = rankwell("index", data / "collection.tsv", "--out", "cut", "--ray", "local", "--set", "segment_documents=80")
    assert made.code == 0, made.err
    assert len(Index.open("cut").segments) == 4
    asked, options = data / "queries.tsv", ["--k", "50", "--k1", "0.8", "--set", "k2=8", "--set", "tag=mine"]
    options += ["--set", "ignore_identical_ids=true"]
    assert rankwell("search", data / "index", asked, *options, "--out", "one.run").code == 0
    for number, more in enumerate((["--ray", "local"], ["--ray", "local,2"])):
        done = rankwell("search", "cut", asked, *options, *more, "--out", f"{number}.run")
        assert done.code == 0, done.err
        assert Path(f"{number}.run").read_bytes() == Path("one.run").read_bytes()
    assert not list(Path().glob("*.shards"))


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("weights", [["0.4"], ["1"], ["0.4", "--words", "0.5"]])
def test_hybrid_search(rankwell: Call, data: Path, tiny_bi_encoder: Path, weights: list[str]) -> None:
    documents = make_documents(300)
    for folder in ("one", "two"):
        for part in range(3):
            Index.build(documents[part * 100 : (part + 1) * 100], folder, append=True)
    options = ["--hybrid", *weights, "--encoder", tiny_bi_encoder, "--precision", "fp32", "--k", "20", "--b", "0.7"]
    first = rankwell("search", "one", data / "queries.tsv", *options, "--out", "one.run")
    assert first.code == 0, first.err
    for number, workers in enumerate(("2", "1")):  # the first makes the vectors, the second finds them
        call = ["search", "two", data / "queries.tsv", *options, "--ray", f"local,{workers}"]
        done = rankwell(*call, "--out", f"{number}.run")
        assert done.code == 0, done.err
        assert Path(f"{number}.run").read_bytes() == Path("one.run").read_bytes()
    vectors = [sorted(path.read_bytes() for path in Path(folder).rglob("shard-*.f16")) for folder in ("one", "two")]
    assert len(vectors[0]) == 3
    assert vectors[0] == vectors[1]
    assert not list(Path().glob("*.shards"))


@pytest.mark.usefixtures("cluster")
def test_what_is_wrong_with_a_bi_encoder_is_one_line(rankwell: Call, data: Path, tiny_bi_encoder: Path) -> None:
    Index.build(make_documents(5), "bare", store=False)
    options = ["--hybrid", "0.5", "--encoder", tiny_bi_encoder, "--ray", "local"]
    done = rankwell("search", "bare", data / "queries.tsv", *options, "--out", "x.run")
    assert "was built without texts" in done.complaint


@pytest.mark.usefixtures("cluster")
def test_what_is_wrong_with_vectors_is_one_line(rankwell: Call, data: Path, tiny_bi_encoder: Path) -> None:
    Index.build(make_documents(5), "index")
    call = [
        "search",
        "index",
        data / "queries.tsv",
        "--hybrid",
        "0.5",
        "--encoder",
        tiny_bi_encoder,
        "--ray",
        "local,1",
    ]
    # A cluster without GPUs would be waited for, for ever.
    done = rankwell(*call, "--device", "cuda", "--out", "x.run")
    assert "no machine of the cluster has 1 cores and 1 GPUs" in done.complaint
    assert rankwell(*call, "--out", "x.run").code == 0
    (vectors,) = Path("index").rglob("shard-*.f16")
    vectors.write_bytes(b"")
    assert "has the wrong size" in rankwell(*call, "--out", "y.run").complaint


@pytest.mark.usefixtures("cluster")
def test_a_search_goes_on_with_what_it_has_found(
    rankwell: Call,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rankwell_ray.search.QUERIES_A_SHARD", 5)
    rankwell("search", data / "index", data / "queries.tsv", "--out", "one.run")
    answered, search = [], ShardedIndex.search

    def interrupted(self: ShardedIndex, queries: list[object], *bm25: object, **options: object) -> object:
        answered.append(len(queries))
        if len(answered) == 3:
            raise RankwellError("the lights went out")
        return search(self, queries, *bm25, **options)

    monkeypatch.setattr(ShardedIndex, "search", interrupted)
    call = ["search", data / "index", data / "queries.tsv", "--ray", "local", "--out", "two.run"]
    assert rankwell(*call).complaint == "the lights went out"
    assert not Path("two.run").exists()
    assert "other work" in rankwell(*call, "--k", "7").err
    assert rankwell(*call).code == 0
    assert answered == [5, 5, 5, 5, 5, 4]
    assert Path("two.run").read_bytes() == Path("one.run").read_bytes()


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("verb", "model", "options", "key"),
    [("weigh", "tiny_weigher", [], b'"vector"'), ("expand", "tiny_writer", ["--n", "2"], b'"queries"')],
)
def test_weights_and_written_queries(
    rankwell: Call, data: Path, request: pytest.FixtureRequest, verb: str, model: str, options: list[str], key: bytes
) -> None:
    call = [verb, data / "collection.tsv", "--model", request.getfixturevalue(model), *options]
    one = rankwell(*call, "--out", "one.jsonl")
    two = rankwell(*call, "--out", "two.jsonl", "--ray", "local")
    assert (one.code, two.code) == (0, 0), two.err
    assert key in Path("one.jsonl").read_bytes()
    assert Path("one.jsonl").read_bytes() == Path("two.jsonl").read_bytes()
    assert not Path("two.jsonl.shards").exists()


def test_an_address_where_nobody_answers(
    rankwell: Call,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nobody(address: str, **_: object) -> None:
        raise ConnectionError(f"nobody at {address}\nand much else")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=nobody))
    done = rankwell("search", data / "index", data / "queries.tsv", "--out", "o.run", "--ray", "10.0.0.9:6379")
    assert done.complaint == "no Ray cluster answers at 10.0.0.9:6379: nobody at 10.0.0.9:6379"


def test_with_workers_on_gpus_this_process_opens_the_bi_encoder_on_the_cpu(
    rerank: Call,
    rankwell: Call,
    data: Path,
    tiny_bi_encoder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def from_pretrained(name: str, **options: object) -> None:
        raise RankwellError(f"opened on {options['device']}")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    monkeypatch.setattr(BiEncoder, "from_pretrained", from_pretrained)
    options = ["--encoder", tiny_bi_encoder, "--ray", "local", "--device", "cuda"]
    blended = rerank("o.run", "--blend", "0.3", *options)
    hybrid = rankwell("search", data / "index", data / "queries.tsv", "--out", "o.run", "--hybrid", "0.3", *options)
    assert blended.complaint == hybrid.complaint == "opened on cpu"


def test_a_local_cluster_is_started_and_ended(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    call = ["search", data / "index", data / "queries.tsv", "--k", "20", "--ray", "local", "--out", tmp_path / "o.run"]
    done = subprocess.run([sys.executable, "-c", MAIN, *map(str, call)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "o.run").read_bytes() == (data / "bm25.run").read_bytes()


KILLED = """
import ray, sys
import small_groups
small_groups.use()
hook = {"worker_process_setup_hook": "small_groups.use"}
ray.init(address="local", num_cpus=2, object_store_memory=2**27, include_dashboard=False, runtime_env=hook)
from rankwell.cli.main import main
main()
"""


def test_a_killed_command_goes_on_where_it_was(rerank: Call, data: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The process that was given the command and all its workers are killed; given again it makes what is missing."""
    pytest.importorskip("ray")
    assert rerank("one.run", "--precision", "fp32").code == 0
    out = tmp_path / "two.run"
    names = [data / "bm25.run", data / "queries.tsv", str(data / "index"), str(tiny_checkpoint)]
    exact = Computing(precision="fp32")  # what a process of its own computes in depends on the processor
    job = RerankJob(RerankRequest(*names, computing=exact), tmp_path / "two.run.shards")
    shards = job.prepare()
    # Shard 3 takes forever: its candidates are a pipe that nobody feeds.
    part = job.folder / "candidates" / shards.path(3).name
    kept = part.rename(tmp_path / "kept.run")
    os.mkfifo(part)
    call = ["rerank", names[0], "--queries", names[1], "--collection", names[2], "--model", names[3], "--out", out]
    command = [sys.executable, "-c", KILLED, *map(str, call), "--precision", "fp32", "--ray", "local,2"]
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    while shards.pending() != [3] or not (worker := lock_holder(shards.folder / "lock", 3)):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    assert worker not in (process.pid, os.getpid())
    process.kill()
    process.wait()
    while lock_holder(shards.folder / "lock", 3):  # a worker ends with its cluster, and with it the lock
        assert time.monotonic() < deadline
        time.sleep(0.05)
    kept.rename(part)
    assert not out.exists()
    done = job.folder / "candidates" / shards.path(0).name
    done.unlink()
    os.mkfifo(done)  # whoever made this shard again would wait forever
    again = subprocess.run(command, env=environment, capture_output=True, timeout=600)
    assert again.returncode == 0, again.stderr
    assert out.read_bytes() == Path("one.run").read_bytes()
    assert not job.folder.exists()
