"""A fit that is killed, or whose disk is full, at any moment resumes to the system it would have been.

Some kills run with all tests; `make test-faults` sets RANKWELL_FAULTS, and a twentieth of that many fits are killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.training import toys

pytest.importorskip("torch")

KILLS = max(4, int(os.environ.get("RANKWELL_FAULTS", "0")) // 20)


def test_fits_that_were_killed_end_as_the_one_that_was_not(tmp_path: Path, tiny_bi_encoder: Path) -> None:
    data = toys.write_data(tmp_path / "data", queries=110)
    script = Path(__file__).with_name("kill_fits.py")
    command = [sys.executable, str(script), str(data), str(tiny_bi_encoder), str(tmp_path / "fits"), str(KILLS), "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    whole, full, *others = [json.loads(line) for line in done.stdout.splitlines()]
    assert whole["facts"]["files without checksums"] == 0
    assert whole["facts"]["beside"] == ["system"]
    for message in full["messages"]:
        assert message.startswith("cannot write ")
        assert message.endswith("file too large")
        assert "\n" not in message
    for other in (full, *others):
        assert other["facts"] == whole["facts"]
    moments = Counter(moment for other in others for moment in other["kills"])
    assert moments.total() >= KILLS
    print(f"\n{moments.total()} kills of {len(others)} fits: {dict(moments)}")
