"""Numbers that are not finite are errors where they appear; rankers go to other processes by their folder."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Document, Query
from rankwell.inputs.batching import Sequences
from rankwell.models.bi_encoder import BiEncoder
from rankwell.rank.cache import ScoreCache
from rankwell.rank.dense import DenseRanker
from rankwell.rank.engines.engine import Engine, Logits
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.passage_vectors import PassageVectors
from rankwell.rank.ranker import Ranker
from rankwell.rank.system import System
from rankwell.retrieve.index import Index

MANY = [(f"query {n}", "the bees make honey " * (n + 1)) for n in range(60)]
PAIRS = [("how do bees keep warm", "The cluster shivers."), ("what is bogue", "a fish")]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_that_is_not_a_number_is_an_error(tiny_checkpoint: Path, tmp_path: Path, value: float) -> None:
    shutil.copytree(tiny_checkpoint, tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    tensors["classifier.bias"][1] = value
    save_file(tensors, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    ranker = Ranker(tmp_path / "model")
    with pytest.raises(RankwellError, match="score for the query 'how do bees keep warm' is not a finite number"):
        ranker.predict(PAIRS)
    with pytest.raises(RankwellError, match="not a finite number"):
        ranker.rank("bees", ["honey"])


def test_a_stored_vector_that_is_not_finite_is_an_error(tmp_path: Path, tiny_bi_encoder: Path) -> None:
    index = Index.build([Document(str(n), f"bees make honey {n}") for n in range(20)], tmp_path / "index")
    encoder = BiEncoder.from_pretrained(tiny_bi_encoder)
    folder = PassageVectors.open(index.segments[0].store, encoder).folder
    shard = next(folder.glob("shard-*.f16"))
    vectors = np.fromfile(shard, np.float16)
    vectors[5] = np.inf
    vectors.tofile(shard)
    for table in folder.glob("checksums*"):
        table.unlink()
    with pytest.raises(RankwellError, match="numbers that are not finite"):
        DenseRanker(encoder).search([Query("q", "bees")], index, k=5)
    with pytest.raises(RankwellError, match="numbers that are not finite"):
        PassageVectors.open(index.segments[0].store, encoder).at(np.arange(3))


def test_an_index_and_a_ranker_are_pickled_by_their_folders(tiny_checkpoint: Path, tmp_path: Path) -> None:
    index = Index.build([Document("a", "bees make honey")], tmp_path / "index")
    index.rank("bees")
    assert pickle.loads(pickle.dumps(index)).rank("bees") == index.rank("bees")  # noqa: S301
    ranker = Ranker(tiny_checkpoint, template={"max_length": 100}, cache=ScoreCache(tmp_path / "scores.db"))
    again = pickle.loads(pickle.dumps(ranker))  # noqa: S301
    assert again.template == ranker.template
    assert again.cache.path == ranker.cache.path
    np.testing.assert_array_equal(again.predict(PAIRS), ranker.predict(PAIRS))
    with pytest.raises(RankwellError, match="made of loaded parts cannot be pickled"):
        pickle.dumps(Ranker.from_engine(ranker.engine, ranker.reader))


def test_a_system_is_pickled_by_its_folder(tiny_checkpoint: Path, tmp_path: Path) -> None:
    index = Index.build([Document("a", "bees make honey"), Document("b", "honey")], tmp_path / "index")
    system = System(FirstStage(index), ranker=tiny_checkpoint, depth=2)
    with pytest.raises(RankwellError, match="save"):
        pickle.dumps(system)
    saved = system.save(tmp_path / "system")
    again = pickle.loads(pickle.dumps(saved))  # noqa: S301
    assert [(answer.docid, answer.score) for answer in again.search("bees", k=2)] == [
        (answer.docid, answer.score) for answer in saved.search("bees", k=2)
    ]


class OnGpu(Engine):
    """As if it computed on a GPU, which a forked process cannot use."""

    def __init__(self, inner: Engine):
        self.logits = inner.logits  # type: ignore[method-assign]

    def logits(self, sequences: Sequences) -> Logits:
        raise AssertionError


def predict_in_fork(ranker: Ranker, answers: multiprocessing.Queue[object]) -> None:
    try:
        answers.put(ranker.predict(MANY).tolist())
    except RankwellError as error:
        answers.put(str(error))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_ranker_on_a_cpu_can_be_used_after_a_fork_and_another_says_what_to_do(tiny_checkpoint: Path) -> None:
    # In a process of its own: threads that other tests have started do not outlive a fork.
    script = "import sys; from pathlib import Path; from tests.rank.test_faults import fork; fork(Path(sys.argv[1]))"
    command = [sys.executable, "-c", script, str(tiny_checkpoint)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2], timeout=6000)


def fork(tiny_checkpoint: Path) -> None:
    ranker, context = Ranker(tiny_checkpoint, engine={"lanes": 2}), multiprocessing.get_context("fork")
    expected = ranker.predict(MANY)  # the parent's threads are running now
    with_gpu = Ranker.from_engine(OnGpu(ranker.engine), ranker.reader)
    for used, check in (
        (ranker, lambda answer: np.testing.assert_allclose(answer, expected, atol=1e-6)),
        (with_gpu, lambda answer: "load it in each process, or start them by spawn" in answer),
    ):
        answers = context.Queue()
        process = context.Process(target=predict_in_fork, args=(used, answers))
        process.start()
        try:
            assert check(answers.get(timeout=600)) is not False
        finally:
            process.kill()
            process.join()
