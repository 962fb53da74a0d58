"""One flipped bit in any file: an error or no effect, never a crash, a hang, a traceback or another result.

A few flips run with all tests; `make test-faults` sets RANKWELL_FAULTS, the number of faults, to 1,000. They are made
and used in processes of their own, because a flip might crash or hang one: `python test_flips.py FOLDER COUNT SEED`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import shutil
import subprocess
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwell import Index, Query, Ranker, sample
from rankwell.core.errors import Notice, RankwellError
from rankwell.corpus.datasets import open_dataset
from rankwell.inputs.stored import StoredTokens
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.checkpoints.folders import load_checkpoint, save_checkpoint
from rankwell.rank.cache import ScoreCache, text_hashes
from rankwell.rank.dense import DenseRanker
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.passage_vectors import PassageVectors, PassageWords
from rankwell.rank.system import System
from rankwell.rank.vector_codes import VectorCodes

FLIPS = int(os.environ.get("RANKWELL_FAULTS", "48"))
HANGS_AFTER = 120.0
QUERIES = ["what kind of fish is bogue", "how do bees make honey", "interest rate of a bank loan", "king of the river"]
PAIRS = [("how do bees make honey", "The bees make honey."), ("a bank", "Interest is paid by the bank.")]
KEYS = text_hashes([str(number) for number in range(2000)], "query")


def use_index(folder: Path) -> Any:
    index = Index.open(folder)
    run = index.search([Query(str(n), text) for n, text in enumerate(QUERIES)], k=100)
    docids = run["0"].docids[:10]
    return [list(ranking) for ranking in run.values()], index.texts(docids), index.documents.numbers(docids).tolist()


def use_tokens(folder: Path, encoder: BiEncoder) -> Any:
    pieces = [
        StoredTokens.open(segment.store.documents, encoder.tokenizer).at(np.arange(len(segment)))
        for segment in Index.open(folder).segments
    ]
    return [(part.ids.tolist(), part.continues.tolist(), part.ends.tolist()) for part in pieces]


def use_vectors(folder: Path, encoder: BiEncoder) -> Any:
    opened = [PassageVectors.open(segment.store, encoder) for segment in Index.open(folder).segments]
    words = [PassageWords.open(segment.store, encoder) for segment in Index.open(folder).segments]
    [query] = DenseRanker(encoder).encode([Query("q", "honey")], words=True).words
    every = [np.arange(len(vectors)) for vectors in opened]
    met = [part.matches(numbers, query)[0].tobytes() for part, numbers in zip(words, every, strict=True)]
    return [vectors.at(numbers).tobytes() for vectors, numbers in zip(opened, every, strict=True)], met


def use_codes(folder: Path, encoder: BiEncoder) -> Any:
    vectors = [PassageVectors.open(segment.store, encoder) for segment in Index.open(folder).segments]
    codes = [VectorCodes.open(some) for some in vectors]
    return [(part.whole().tobytes(), some.recall) for some in codes for part in some._mapped]


def use_model(folder: Path) -> Any:
    return Ranker(str(folder)).predict(PAIRS).tolist()


def use_system(folder: Path) -> Any:
    return [[(a.docid, a.score, a.text) for a in System.open(folder).search(text, k=20)] for text in QUERIES]


def use_cache(path: Path) -> Any:
    # Missing scores are computed again; a wrong one is what must not happen.
    with ScoreCache(path) as cache:
        return cache.complete(KEYS, lambda rows: rows.astype(np.float32) / 7).tolist()


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
        cache.put(KEYS, np.arange(2000, dtype=np.float32) / 7)
    return folder


def test_flipped_bits_are_errors_or_without_effect(folder: Path) -> None:
    outcomes: Counter[tuple[str, str]] = Counter()
    failures = []
    for seed, done in enumerate(range(0, FLIPS, 250)):
        count = min(FLIPS - done, 250)
        command = [sys.executable, __file__, folder, str(count), str(seed)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [json.loads(line) for line in process.stdout.splitlines()]
        if process.returncode != 0:  # a crash or a hang, after its last flip
            failures.append((lines[-1:], process.returncode, process.stderr[-2000:]))
        for (kind, flip), (outcome, problem) in zip(lines[::2], lines[1::2], strict=False):
            outcomes[kind, outcome] += 1
            if outcome not in ("same", "refused"):
                failures.append((flip, outcome, problem))
    kinds = sorted({kind for kind, _ in outcomes})
    print({kind: {name: n for (k, name), n in sorted(outcomes.items()) if k == kind} for kind in kinds})
    assert not failures
    assert outcomes.total() == FLIPS
    refused = {kind for kind, outcome in outcomes if outcome == "refused"}
    assert refused >= {"index", "vectors", "codes", "tokens", "model"}


def flip_bits(folder: Path, count: int, seed: int) -> None:
    """Flip bits in the files of a folder, use them after each flip, and print lines of JSON: each flip, its outcome."""
    encoder = BiEncoder.from_pretrained(folder / "system" / "encoder")
    uses: dict[str, Callable[[Path], Any]] = {
        "index": use_index,
        "tokens": lambda path: use_tokens(path, encoder),
        "vectors": lambda path: use_vectors(path, encoder),
        "codes": lambda path: use_codes(path, encoder),
        "model": use_model,
        "system": use_system,
        "cache": use_cache,
    }
    places = {kind: folder / ("index" if kind in ("tokens", "vectors", "codes") else kind) for kind in uses}
    places["cache"] = folder / "cache.db"
    expected = {kind: use(places[kind]) for kind, use in uses.items()}
    files = {kind: files_of(kind, place) for kind, place in places.items()}
    chosen = random.Random(seed)
    for number in range(count):
        faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
        kind = list(uses)[number % len(uses)]
        path = chosen.choice(files[kind])
        content, times = path.read_bytes(), path.stat()
        # Half of the flips near the beginning, where headers, counts and offsets are.
        byte = chosen.randrange(len(content) if number % 4 < 2 else min(len(content), 300))
        damaged = bytearray(content)
        damaged[byte] ^= 1 << (bit := chosen.randrange(8))
        print(json.dumps([kind, f"{path.relative_to(folder)}, byte {byte}, bit {bit}"]), flush=True)
        path.write_bytes(damaged)
        when = times.st_mtime + chosen.choice([-3600, 0, 3600])  # a copy has any time
        os.utime(path, (when, when))
        problem = ""
        try:
            outcome = "same" if uses[kind](places[kind]) == expected[kind] else "silent"
        except RankwellError as error:
            outcome, problem = ("refused" if "\n" not in str(error) else "several lines"), str(error)
        except Exception:
            outcome, problem = "traceback", traceback.format_exc()
        if kind == "cache":
            for rest in folder.glob("cache.db*"):
                rest.unlink()
        path.write_bytes(content)
        print(json.dumps([outcome, problem]), flush=True)


def files_of(kind: str, place: Path) -> list[Path]:
    if kind == "cache":
        return [place]
    files = sorted(path for path in place.rglob("*") if path.is_file() and path.stat().st_size)
    # Locks are empty, a card is not read, and system.json names the other parts.
    files = [path for path in files if path.suffix != ".md" and path.name != "lock"]
    apart = {"tokens": "tokens-", "vectors": "vectors-", "codes": "codes"}
    if kind in apart:
        return [path for path in files if path.parent.name.startswith(apart[kind])]
    if kind == "index":
        return [path for path in files if not path.parent.name.startswith(tuple(apart.values()))]
    return files


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    copy = Path(sys.argv[1]).with_name(f"flips-{sys.argv[3]}")
    shutil.copytree(sys.argv[1], copy, copy_function=shutil.copyfile)  # with times of its own, as a copy may have
    flip_bits(copy, int(sys.argv[2]), int(sys.argv[3]))
