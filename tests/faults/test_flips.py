"""One flipped bit in any file: an error or no effect, never a crash, a hang, a traceback or another result.

A few flips run with all tests; `make test-faults` sets RANKWELL_FAULTS, the number of faults, to 1,000.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import numpy as np
import pytest

pytest.importorskip("torch")
from rankwell import sample
from rankwell.core.errors import Notice
from rankwell.corpus.datasets import open_dataset
from rankwell.models.checkpoints.folders import load_checkpoint, save_checkpoint
from rankwell.rank.cache import ScoreCache, text_hashes
from rankwell.rank.dense import DenseRanker
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.system import System
from rankwell.rank.vector_codes import VectorCodes
from rankwell.retrieve.index import Index

FLIPS = int(os.environ.get("RANKWELL_FAULTS", "48"))
HANGS_AFTER = 120.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path, tiny_bi_encoder: Path) -> Path:
    """One of everything, as `rankwell` writes it."""
    folder = tmp_path_factory.mktemp("flips") / "pristine"
    documents = list(open_dataset(sample.FOLDER).documents())
    Index.build(documents[:300], folder / "index")
    index = Index.build(documents[300:], folder / "index", append=True)
    save_checkpoint(folder / "model", *load_checkpoint(tiny_checkpoint))
    first = FirstStage(index, encoder=tiny_bi_encoder, share=0.5, words=0.5)
    System(first, ranker=folder / "model", depth=5).save(folder / "system")
    ranker = DenseRanker(str(folder / "system" / "encoder"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # it says how much compressed search finds
        for segment in index.segments:
            VectorCodes.open(ranker.vectors(segment.store))
    with ScoreCache(folder / "cache.db") as cache:
        cache.put(text_hashes([str(n) for n in range(2000)], "query"), np.arange(2000, dtype=np.float32) / 7)
    return folder


def test_flipped_bits_are_errors_or_without_effect(folder: Path) -> None:
    outcomes: Counter[tuple[str, str]] = Counter()
    failures = []
    seed, done = 0, 0
    while done < FLIPS:
        count = min(FLIPS - done, 250)
        for flip, outcome in run_flips(folder, count, seed):
            outcomes[flip["kind"], outcome["outcome"]] += 1
            if outcome["outcome"] not in ("same", "refused"):
                failures.append((flip, outcome))
        done, seed = done + count, seed + 1
    kinds = sorted({kind for kind, _ in outcomes})
    print({kind: {name: n for (k, name), n in sorted(outcomes.items()) if k == kind} for kind in kinds})
    assert not failures
    assert sum(outcomes.values()) == FLIPS
    refused = {kind for kind, outcome in outcomes if outcome == "refused"}
    assert refused >= {"index", "vectors", "codes", "tokens", "model"}


def run_flips(folder: Path, count: int, seed: int) -> list[tuple[dict[str, str], dict[str, str]]]:
    """The flips of one process, with their outcomes; one that ends or hangs the process is the last."""
    script = Path(__file__).with_name("flip_bits.py")
    process = subprocess.Popen(
        [sys.executable, script, folder, str(count), str(seed)], stdout=subprocess.PIPE, text=True
    )
    lines: Queue[str | None] = Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    Thread(target=read, daemon=True).start()
    results: list[tuple[dict[str, str], dict[str, str]]] = []
    flip: dict[str, str] = {"kind": "start"}
    begun = time.monotonic()
    try:
        while True:
            try:
                line = lines.get(timeout=HANGS_AFTER)
            except Empty:
                results.append((flip, {"outcome": "hang", "problem": f"after {time.monotonic() - begun:.0f} s"}))
                break
            if line is None:
                if process.wait() != 0 or len(results) < count:
                    results.append((flip, {"outcome": "crash", "problem": f"exit code {process.wait()}"}))
                break
            record = json.loads(line)
            if "outcome" in record:
                results.append((flip, record))
            else:
                flip, begun = record, time.monotonic()
    finally:
        process.kill()
        process.wait()
    return results
