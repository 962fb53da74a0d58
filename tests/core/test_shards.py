"""Work in shards: killed at any moment and shared by processes, it leaves the files of an uninterrupted run."""

from __future__ import annotations

import gzip
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.shards import Shards, map_shards, open_shards, recorded_size

COUNT, SIZE = 6000, 100

WORKER = """
import os, sys, time
from pathlib import Path
from rankwell.core.shards import Shards, map_shards

folder, log = Path(sys.argv[1]), os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def work(items, file):
    os.write(log, b"%d\\n" % items.start)
    for item in items:
        file.write(b"%d %d\\n" % (item, item * item))
        time.sleep(0.0001)

map_shards(Shards(folder, 6000, 100, {"what": "squares"}), work)
"""


def write_squares(items: range, file: IO[bytes]) -> None:
    for item in items:
        file.write(b"%d %d\n" % (item, item * item))


def squares(folder: Path, suffix: str = ".jsonl") -> Shards:
    return Shards(folder, COUNT, SIZE, {"what": "squares"}, suffix)


def test_killed_and_shared_work_leaves_the_same_files_and_does_nothing_twice(tmp_path: Path) -> None:
    generator = random.Random(7)
    folder, log = tmp_path / "killed", tmp_path / "log"
    shards, kills = squares(folder), 0

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", WORKER, str(folder), str(log)])

    workers = [start(), start()]
    deadline = time.monotonic() + 600
    try:
        while kills < 8 and any(worker.poll() is None for worker in workers):
            assert time.monotonic() < deadline
            # Whole shards first, then a kill at a moment nobody chose.
            done = len(shards) - len(shards.pending())
            while len(shards) - len(shards.pending()) < min(len(shards), done + 3) and time.monotonic() < deadline:
                time.sleep(0.002)
            time.sleep(generator.random() * 0.02)
            chosen = generator.randrange(2)
            if workers[chosen].poll() is None:
                workers[chosen].send_signal(signal.SIGKILL)
                workers[chosen].wait()
                kills += 1
                workers[chosen] = start()
        for worker in workers:
            assert worker.wait(600) == 0
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
    assert kills >= 4
    map_shards(squares(tmp_path / "whole"), write_squares)
    for killed, whole in zip(shards.paths(), squares(tmp_path / "whole").paths(), strict=True):
        assert killed.read_bytes() == whole.read_bytes()
    begun = [int(line) for line in log.read_text().split()]
    assert set(begun) == set(range(0, COUNT, SIZE))
    assert len(begun) <= len(shards) + kills  # a kill costs the shard that was being made, at most
    assert not [path for path in folder.iterdir() if path.name.startswith(".partial-")]


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    shards, begun = squares(tmp_path), []

    def failing(items: range, file: IO[bytes]) -> None:
        begun.append(items.start)
        write_squares(items, file)
        if items.start == 500:
            raise OSError("the power went off")

    with pytest.raises(OSError, match="power"):
        map_shards(shards, failing)
    assert shards.pending() == list(range(5, 60))
    with pytest.raises(InputError, match="55 of 60 shards are not done"):
        shards.join(tmp_path / "joined")
    map_shards(shards, lambda items, file: (begun.append(items.start), write_squares(items, file))[1])
    assert sorted(begun) == sorted([*range(0, COUNT, SIZE), 500])
    map_shards(shards, failing)  # nothing is left to do
    assert len(begun) == 61


def test_a_shard_that_another_process_works_on_is_left_to_it(tmp_path: Path) -> None:
    shards = Shards(tmp_path / "shards", 30, 10)
    map_shards(Shards(tmp_path / "shards", 30, 10), lambda items, file: None)
    for path in shards.paths():
        path.unlink()
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys\nf = open(sys.argv[1], 'ab')\nfcntl.lockf(f, fcntl.LOCK_EX, 1, 1)\n"
            "print('held', flush=True)\nsys.stdin.read()",
            str(shards.folder / "lock"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        map_shards(shards, lambda items, file: None, wait=False)
        assert shards.pending() == [1]
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()
    map_shards(shards, lambda items, file: None)
    assert shards.pending() == []


def test_shards_join_in_order_zipped_or_not(tmp_path: Path) -> None:
    shards = squares(tmp_path / "shards", ".txt.gz")
    map_shards(shards, write_squares)
    expected = b"".join(b"%d %d\n" % (item, item * item) for item in range(COUNT))
    shards.join(tmp_path / "plain.txt")
    shards.join(tmp_path / "zipped.txt.gz")
    assert (tmp_path / "plain.txt").read_bytes() == expected
    assert gzip.decompress((tmp_path / "zipped.txt.gz").read_bytes()) == expected


def test_a_folder_of_other_work_is_refused(tmp_path: Path) -> None:
    map_shards(Shards(tmp_path, 30, 10, {"model": "a"}), lambda items, file: None)
    with pytest.raises(RankwellError, match=r"other work \(model was 'a', now 'b'\)"):
        map_shards(Shards(tmp_path, 30, 10, {"model": "b"}), lambda items, file: None)
    with pytest.raises(RankwellError, match=r"\(items was 30, now 31\)"):
        map_shards(Shards(tmp_path, 31, 10, {"model": "a"}), lambda items, file: None)
    (tmp_path / "shards.json").unlink()
    with pytest.raises(InputError, match=r"has shards but no shards.json"):
        map_shards(Shards(tmp_path, 30, 10, {"model": "a"}), lambda items, file: None)


def test_ranges_cover_the_items_once() -> None:
    shards = Shards(Path("nowhere"), 23, 10)
    assert [shards.items(number) for number in range(len(shards))] == [range(10), range(10, 20), range(20, 23)]
    assert len(Shards(Path("nowhere"), 0, 10)) == 0


def test_what_makes_the_shards_can_be_recorded_before_any_is_made(tmp_path: Path) -> None:
    open_shards(Shards(tmp_path / "s", 3, 2, {"model": "a"}))
    assert [path.name for path in sorted((tmp_path / "s").iterdir())] == ["lock", "shards.json"]
    open_shards(Shards(tmp_path / "s", 3, 2, {"model": "a"}))
    with pytest.raises(RankwellError, match="model was 'a', now 'b'"):
        open_shards(Shards(tmp_path / "s", 3, 2, {"model": "b"}))


def test_a_folder_records_the_size_of_its_shards(tmp_path: Path) -> None:
    assert recorded_size(tmp_path / "new") is None
    open_shards(Shards(tmp_path / "new", 10, 4))
    assert recorded_size(tmp_path / "new") == 4
    (tmp_path / "new" / "shards.json").write_text("{")
    assert recorded_size(tmp_path / "new") is None
