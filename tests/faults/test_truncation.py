"""An index that is truncated while it is searched: an error, and a service goes on.

`python test_truncation.py INDEX COUNT SEED` truncates copies of an index while forked processes search them without a
pause, until a search fails, and prints how the searches ended as a line of JSON.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from rankwell import Index, Query
from rankwell.core.errors import RankwellError
from rankwell.core.truncation import run_whole, survive_truncation
from rankwell.corpus.records import Document

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a signal handler for Linux")
TRUNCATIONS = max(10, int(os.environ.get("RANKWELL_FAULTS", "0")) // 4)
QUERIES = [Query("1", "what kind of fish is bogue"), Query("2", "how do bees make honey"), Query("3", "king of rivers")]
GIVES_UP_AFTER = 60.0
READ_AFTER_TRUNCATION = """
import mmap, os, sys
from rankwell.core.errors import RankwellError
from rankwell.core.truncation import count_missing_pages, run_whole, survive_truncation

assert survive_truncation()
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
assert run_whole(lambda: mapped[-1]) == 1
os.truncate(sys.argv[1], 100)
try:
    run_whole(lambda: mapped[-1])
except RankwellError as error:
    print(error)
print(count_missing_pages(), mapped[-1], mapped[99])
"""


def test_missing_pages_are_zeros_and_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\1" * 5 * os.sysconf("SC_PAGE_SIZE"))
    command = [sys.executable, "-c", READ_AFTER_TRUNCATION, str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    problem, counted = done.stdout.splitlines()
    assert "truncated while it was read" in problem
    assert counted == "1 0 1"


def test_an_index_truncated_during_a_search_is_an_error(tmp_path: Path) -> None:
    texts = (
        f"the bees of hive {n} make honey, the king of river {n % 977} keeps fish and bogue" for n in range(20_000)
    )
    Index.build((Document(str(n), text) for n, text in enumerate(texts)), tmp_path / "index")
    command = [sys.executable, __file__, tmp_path / "index", str(TRUNCATIONS), "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"error": TRUNCATIONS}


def search(index: Index) -> None:
    index.texts(index.search(QUERIES, k=100)["1"].docids[:5])


def search_until_it_fails(folder: Path, ready: int) -> str:
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
