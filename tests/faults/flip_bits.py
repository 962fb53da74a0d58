"""Flip bits in the files of FOLDER, use them after each flip, and print what happened as lines of JSON.

    python flip_bits.py FOLDER COUNT SEED

FOLDER has ``index``, ``model``, ``system`` and ``cache.db``. It runs in a process of its own, which may crash or hang.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rankwell import Index, Query, Ranker
from rankwell.core.errors import RankwellError
from rankwell.inputs.stored import StoredTokens
from rankwell.models.bi_encoder import BiEncoder
from rankwell.rank.cache import ScoreCache, text_hashes
from rankwell.rank.dense import DenseRanker
from rankwell.rank.passage_vectors import PassageVectors, PassageWords
from rankwell.rank.system import System
from rankwell.rank.vector_codes import VectorCodes

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


def main(folder: Path, count: int, seed: int) -> None:
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
        kind = list(uses)[number % len(uses)]
        path = chosen.choice(files[kind])
        content, times = path.read_bytes(), path.stat()
        # Half of the flips near the beginning, where headers, counts and offsets are.
        byte = chosen.randrange(len(content) if number % 4 < 2 else min(len(content), 300))
        bit = chosen.randrange(8)
        print(json.dumps({"kind": kind, "file": str(path.relative_to(folder)), "byte": byte, "bit": bit}), flush=True)
        damaged = bytearray(content)
        damaged[byte] ^= 1 << bit
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
        print(json.dumps({"outcome": outcome, "problem": problem}), flush=True)


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
    work = Path(sys.argv[1]).with_name(f"flips-{sys.argv[3]}")
    archive = shutil.make_archive(str(work), "zip", sys.argv[1])
    shutil.unpack_archive(archive, work)  # with times of its own, as any copy
    main(work, int(sys.argv[2]), int(sys.argv[3]))
