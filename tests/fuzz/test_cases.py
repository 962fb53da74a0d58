"""Inputs that once went wrong, or were made to, are read or refused in one line; so are some new ones.

`make fuzz` adds the inputs that it finds to this folder: the packed input of a kind of `bench/fuzz_readers.py`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPT = HERE.parents[1] / "bench" / "fuzz_readers.py"


@pytest.mark.parametrize(
    "options", [("--replay", str(HERE)), ("--inputs", "1000", "--seed", "7")], ids=["found", "new"]
)
def test_every_input_is_read_or_refused(options: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    print(done.stdout)
