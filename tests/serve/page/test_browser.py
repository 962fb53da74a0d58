"""Where there is no browser, a run says in its last line that the page was not tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_a_run_without_a_browser_ends_with_what_was_not_tested() -> None:
    test = Path(__file__).with_name("test_looks.py")
    environment = {name: value for name, value in os.environ.items() if name != "CHROMIUM"} | {"PATH": ""}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "landmarks", str(test)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=test.parents[3])
    last = done.stdout.splitlines()[-1]
    assert last.startswith("NOT TESTED: the web page (1 tests): there is no Chromium here"), done.stdout + done.stderr
