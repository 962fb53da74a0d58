"""Re-ranking in shards: the run of one process, byte for byte, whoever makes it and whatever is killed meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")


from rankwell.core.errors import RankwellError
from rankwell.core.shards import Shards, do
from rankwell.corpus.formats import read_queries, read_run, write_run
from rankwell.corpus.store import DocumentStore
from rankwell.models.devices import Computing
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.ranker import Ranker
from rankwell.rank.requests import RerankRequest
from rankwell.rank.system import System
from rankwell.rank.texts import open_texts
from rankwell.retrieve.index import Index
from rankwell_ray.rerank import ClusterRanker, RerankJob, digest_texts, join_scores
from rankwell_ray.workers import Cluster

from .conftest import lock_holder
from .small_groups import PAIRS


@pytest.fixture(scope="module", autouse=True)
def small_groups() -> object:
    """Groups of three queries; the cluster's workers have them too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rankwell.rank.pairs.PAIRS_AT_A_TIME", PAIRS)
        yield


@pytest.fixture(scope="module")
def whole(data: Path, tiny_checkpoint: Path) -> bytes:
    """What one process writes."""
    run = read_run(data / "bm25.run")
    ranker = Ranker.from_pretrained(tiny_checkpoint)
    found = ranker.rerank(run, read_queries(data / "queries.tsv"), open_texts(data / "index", run))
    write_run(found, data / "whole.run")
    return (data / "whole.run").read_bytes()


@pytest.fixture
def job(data: Path, tiny_checkpoint: Path, tmp_path: Path) -> RerankJob:
    files = data / "bm25.run", data / "queries.tsv"
    return RerankJob(RerankRequest(*files, str(data / "index"), str(tiny_checkpoint)), tmp_path / "shards")


def joined(shards: Shards, folder: Path) -> bytes:
    write_run(join_scores(shards)[0], folder / "joined.run")
    return (folder / "joined.run").read_bytes()


def test_without_a_cluster_it_is_the_run_of_one_process(job: RerankJob, whole: bytes, tmp_path: Path) -> None:
    shards = do(job)
    assert len(shards) == 8
    assert joined(shards, tmp_path) == whole


def test_on_a_cluster_too(job: RerankJob, whole: bytes, tmp_path: Path, cluster: Cluster) -> None:
    assert joined(do(job, cluster), tmp_path) == whole


def test_a_collection_that_is_a_plain_file(
    job: RerankJob, data: Path, whole: bytes, tmp_path: Path, cluster: Cluster
) -> None:
    request = replace(job.request, collection=str(data / "collection.tsv"))
    job = replace(job, request=request, groups=2)
    shards = do(job, cluster)
    assert len(shards) == 4
    assert joined(shards, tmp_path) == whole


def test_what_was_cut_is_counted_in_all_shards(job: RerankJob, tmp_path: Path) -> None:
    request = replace(job.request, changes={"template": {"max_length": 14, "max_query": 4}}, windows=0)
    _, report = join_scores(do(replace(job, request=request)))
    assert report.pairs == 24 * 20
    assert 0 < report.pairs_cut < report.pairs
    assert report.pieces_cut["document"] >= report.pairs_cut


def test_a_job_takes_a_rankers_place(job: RerankJob, data: Path, tiny_checkpoint: Path) -> None:
    run, queries = read_run(data / "bm25.run"), read_queries(data / "queries.tsv")
    texts = open_texts(data / "index", run)
    rankers = (Ranker.from_pretrained(tiny_checkpoint), ClusterRanker(job))
    found = [ranker.rerank(run, queries, texts, depth=100) for ranker in rankers]
    assert all(found[0][qid] == found[1][qid] for qid in run)
    with pytest.raises(RankwellError, match="re-ranks 100 documents of 24 queries, not these"):
        ClusterRanker(job).rerank(run, queries, texts, depth=10)


def test_a_system_re_ranks_as_it_searches(data: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    exact = Computing("cpu", "fp32")
    made = System(FirstStage(Index.open(data / "index")), ranker=tiny_checkpoint, depth=10, computing=exact)
    system = made.save(tmp_path / "system")
    queries = read_queries(data / "queries.tsv")
    write_run(system.first_stage.search(queries, 20), tmp_path / "first.run")
    request = RerankRequest(tmp_path / "first.run", data / "queries.tsv", "", str(system.folder), computing=exact)
    found = request.of_system(None).execute(lambda own: ClusterRanker(RerankJob.of(own, tmp_path / "shards"))).run
    expected = system.search(queries, 20)
    assert list(found) == list(expected)
    for qid in expected:
        assert found[qid].docids == expected[qid].docids
        np.testing.assert_allclose(found[qid].scores, expected[qid].scores, atol=1e-4)


def test_texts_have_one_digest_wherever_they_are(data: Path, tmp_path: Path) -> None:
    run = read_run(data / "bm25.run")
    digests = {digest_texts(open_texts(data / name, run), run) for name in ("index", "collection.tsv")}
    assert len(digests) == 1
    others = DocumentStore.of_texts({docid: "x" for ranking in run.values() for docid in ranking.docids})
    assert digest_texts(others, run) not in digests


def test_a_lost_worker_costs_its_shard_alone(job: RerankJob, whole: bytes, tmp_path: Path, cluster: Cluster) -> None:
    shards = job.prepare()
    outcome: list[Shards] = []
    # The last shard takes forever: its candidates are a pipe that nobody feeds.
    last = len(shards) - 1
    part = tmp_path / "shards" / "candidates" / shards.path(last).name
    kept = part.rename(tmp_path / "kept.run")
    os.mkfifo(part)
    thread = Thread(target=lambda: outcome.append(do(job, cluster)), daemon=True)
    thread.start()
    deadline = time.monotonic() + 600
    while shards.pending() != [last] or not (pid := lock_holder(shards.folder / "lock", last)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    times = {path: path.stat().st_mtime_ns for path in shards.paths()[:last]}
    kept.rename(part)  # who opens it from now on reads on
    assert pid not in (0, 1, -1, os.getpid())
    os.kill(pid, signal.SIGKILL)
    thread.join(60)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert joined(outcome[0], tmp_path) == whole


KILLED = """
import sys
from pathlib import Path
import rankwell.rank.ranker
rankwell.rank.pairs.PAIRS_AT_A_TIME = {size}
from rankwell.rank.requests import RerankRequest
from rankwell_ray.rerank import RerankJob
from rankwell.core.shards import do
do(RerankJob(RerankRequest(*map(Path, sys.argv[1:3]), *sys.argv[3:5]), Path(sys.argv[5])))
"""


def test_a_killed_job_goes_on_where_it_was(job: RerankJob, whole: bytes, tmp_path: Path, cluster: Cluster) -> None:
    shards = job.prepare()
    part = tmp_path / "shards" / "candidates" / shards.path(3).name
    kept = part.rename(tmp_path / "kept.run")
    os.mkfifo(part)
    request = job.request
    arguments = [request.run, request.queries, request.collection, request.model, job.folder]
    command = [sys.executable, "-c", KILLED.format(size=PAIRS), *map(str, arguments)]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})  # as workers have
    deadline = time.monotonic() + 600
    while lock_holder(shards.folder / "lock", 3) != process.pid:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    kept.rename(part)
    assert shards.pending() == [3, 4, 5, 6, 7]
    times = [path.stat().st_mtime_ns for path in shards.paths()[:3]]
    assert joined(do(job, cluster), tmp_path) == whole
    assert [path.stat().st_mtime_ns for path in shards.paths()[:3]] == times


def test_shards_of_other_work_are_refused(job: RerankJob, cluster: Cluster) -> None:
    do(job)
    for where in (None, cluster):
        with pytest.raises(RankwellError, match="holds shards of other work"):
            do(replace(job, request=replace(job.request, changes={"template": {"max_length": 40}})), where)


def test_an_error_of_a_worker_is_one_line(job: RerankJob, cluster: Cluster) -> None:
    with pytest.raises(RankwellError, match="no backend is called 'abacus'"):
        do(replace(job, request=replace(job.request, computing=Computing(backend="abacus"))), cluster)
