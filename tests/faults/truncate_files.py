"""Truncate a file of an index while another process searches it, again and again, and print how the searches ended.

    python truncate_files.py INDEX COUNT SEED [survive]

Each time a forked process searches a copy of the index without a pause, until a search fails. Prints a line of JSON.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rankwell import Index, Query
from rankwell.core.errors import RankwellError
from rankwell.core.truncation import run_whole, survive_truncation

QUERIES = [Query("1", "what kind of fish is bogue"), Query("2", "how do bees make honey"), Query("3", "king of rivers")]
GIVES_UP_AFTER = 60.0


def search(index: Index) -> None:
    index.texts(index.search(QUERIES, k=100)["1"].docids[:5])


def search_until_it_fails(folder: Path, ready: int) -> str:
    if "survive" in sys.argv:
        survive_truncation()
    index = Index.open(folder)
    search(index)
    os.write(ready, b"r")
    end = time.monotonic() + GIVES_UP_AFTER
    try:
        while time.monotonic() < end:
            run_whole(search, index)
    except RankwellError:
        return "error"
    except Exception as error:
        return f"traceback: {type(error).__name__}"
    return "not noticed"


def outcome(folder: Path, chance: random.Random) -> str:
    reader, writer = os.pipe()
    results, result = os.pipe()
    if not (child := os.fork()):
        os.write(result, search_until_it_fails(folder, writer).encode())
        os._exit(0)
    os.close(writer)
    os.close(result)
    assert os.read(reader, 1) == b"r"
    files = [path for path in sorted(folder.rglob("*.npy")) if path.stat().st_size > 1]
    path = chance.choice(files)
    time.sleep(chance.uniform(0, 0.01))
    os.truncate(path, chance.randrange(path.stat().st_size))
    _, status = os.waitpid(child, 0)
    text = os.read(results, 100).decode()
    os.close(reader)
    os.close(results)
    return text if os.WIFEXITED(status) else f"signal {os.WTERMSIG(status)}"


def main(index: Path, count: int, seed: int) -> None:
    chance, outcomes = random.Random(seed), Counter[str]()
    Index.open(index).search(QUERIES)  # the native code is loaded before the fork
    for _ in range(count):
        with tempfile.TemporaryDirectory() as scratch:
            shutil.copytree(index, copy := Path(scratch) / "index")
            outcomes[outcome(copy, chance)] += 1
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
