"""An index that is truncated while it is searched: an error, and a service goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankwell.corpus.records import Document
from rankwell.retrieve.index import Index

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a signal handler for Linux")
TRUNCATIONS = max(10, int(os.environ.get("RANKWELL_FAULTS", "0")) // 4)
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
    script = Path(__file__).with_name("truncate_files.py")
    command = [sys.executable, script, tmp_path / "index", str(TRUNCATIONS), "1", "survive"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"error": TRUNCATIONS}
