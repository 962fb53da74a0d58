"""Work that resumes, on a disk that fails or loses power at any operation: rerun, it ends as if nothing had happened.

With all tests, a few operations of a training and each of a score cache are tried; `make test-faults` tries all of a
training, and some of a fit. All of a fit: RANKWELL_FAULTS=1000000, in hours, or with RANKWELL_PART=0/16 a sixteenth.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
from tests.faults.disk import Disk
from tests.training import toys
from tests.training.conftest import make_model
from tests.training.fit.fitting import fitted
from tests.training.loop.test_loop import make_task, options

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.files import atomic_folder
from rankwell.corpus.datasets import open_dataset
from rankwell.inputs.templates import Template
from rankwell.rank.cache import ScoreCache, text_hashes
from rankwell.rank.system import System, is_system
from rankwell.training.loop.loop import train

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")

FAULTS = int(os.environ.get("RANKWELL_FAULTS", "0"))
PART, PARTS = (int(number) for number in os.environ.get("RANKWELL_PART", "0/1").split("/"))
Work = Callable[[Path], Any]


def run_training(folder: Path) -> Any:
    """Train a tiny model, with a checkpoint after every third step; its weights and log."""
    from safetensors.torch import load_file, save_file

    model = make_model()

    def save(place: Path) -> None:
        with atomic_folder(place) as fresh:
            save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, fresh / "weights")

    def validate(network: Any) -> dict[str, float]:
        return {"RR@10": float(sum(weights.detach().abs().sum() for weights in network.parameters()))}

    settings = options(epochs=2, save_every=3)
    train(model, make_task(Template(max_length=80)), settings, folder, save=save, device="cpu", validate=validate)
    return {name: tensor.tolist() for name, tensor in load_file(folder / "model" / "weights").items()}


def fitting(tmp_path: Path, encoder: Path, ranker: Path) -> Work:
    """Fit a system on toy data; what it is and finds."""
    data = toys.write_data(tmp_path / "data", queries=110)

    def run_fit(folder: Path) -> Any:
        if not is_system(folder / "system") or (folder / "system.work").exists():
            fitted(folder / "system", encoder, data, ranker=ranker, minutes=60)
        system = System.open(folder / "system", device="cpu")
        run = system.search(open_dataset(data).queries("dev"), 20)
        found = {qid: [ranking.docids, ranking.scores.tolist()] for qid, ranking in run.items()}
        return system.describe(), found, system.check().without, sorted(path.name for path in folder.iterdir())

    return run_fit


def try_faults(work: Work, tmp_path: Path, points: int) -> int:
    """Power cuts and errors at operations that lie evenly over the work, each rerun to the end."""
    folder = tmp_path / "whole"
    folder.mkdir()
    with Disk(folder) as disk:
        whole = work(folder)
    operations = sorted({int(number) for number in np.linspace(1, disk.operations, min(points, disk.operations))})
    operations = operations[PART::PARTS]
    for turn, number in enumerate(operations):
        folder = tmp_path / "fault"
        folder.mkdir()
        place = f"operation {number} of {disk.operations}"
        if turn % 2:
            with Disk(folder, cut=number) as cut:
                work(folder)
            cut.restart(seed=number)
        else:
            raised = ""
            with Disk(folder, fail=(number, (errno.EIO, errno.ENOSPC)[turn // 2 % 2])):
                try:
                    work(folder)
                except (RankwellError, OSError) as error:
                    raised = str(error)
            assert "\n" not in raised, place
            shutil.rmtree(tmp_path / "fault-spare")
        assert work(folder) == whole, place
        shutil.rmtree(folder)
    print(f"\n{len(operations)} faults at {disk.operations} operations")
    return len(operations)


def test_training_resumes_to_the_same_weights(tmp_path: Path) -> None:
    assert try_faults(run_training, tmp_path, max(4, FAULTS // 5)) >= 4


@pytest.mark.skipif(not FAULTS, reason="some minutes, for `make test-faults`")
def test_a_fit_resumes_to_the_same_system(tmp_path: Path, tiny_bi_encoder: Path, tiny_checkpoint: Path) -> None:
    work = fitting(tmp_path, tiny_bi_encoder, tiny_checkpoint)
    assert try_faults(work, tmp_path, max(2, FAULTS // 50)) >= 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reason", [sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CORRUPT])
def test_scores_are_right_whatever_statement_of_the_cache_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    keys, right = text_hashes([str(number) for number in range(40)], "query"), np.arange(40, dtype=np.float32) / 7
    statements, failing, connect = 0, 0, sqlite3.connect

    class Connection(sqlite3.Connection):
        def count(self) -> None:
            nonlocal statements
            statements += 1
            if statements == failing:
                error = sqlite3.OperationalError("a fault")
                error.sqlite_errorcode = reason
                raise error

        def execute(self, *arguments: Any) -> Any:
            self.count()
            return super().execute(*arguments)

        def executemany(self, *arguments: Any) -> Any:
            self.count()
            return super().executemany(*arguments)

    def scores(path: Path) -> list[float]:
        with ScoreCache(path) as cache:
            cache.complete(keys[:20], lambda rows: right[:20][rows])
            completed: list[float] = cache.complete(keys, lambda rows: right[rows]).tolist()
            return completed

    monkeypatch.setattr(sqlite3, "connect", lambda *given, **named: connect(*given, **named, factory=Connection))
    assert scores(tmp_path / "whole") == right.tolist()
    for failing in range(1, statements + 1):
        statements, path = 0, tmp_path / f"cache-{failing}"
        with suppress(InputError):  # at opening: the user asked for a cache that cannot be used
            assert scores(path) == right.tolist()
        failing = 0
        assert scores(path) == right.tolist()
