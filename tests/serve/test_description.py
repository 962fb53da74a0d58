"""What ``/openapi.json`` says holds for whatever schemathesis makes of it; and an exported model needs no torch.

Both need packages that are not among the project's, and so an environment of their own: they run where
``RANKWELL_ENVIRONMENTS`` names a folder for those, which are made in it and used again (``make test-api``).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankwell.serve.state import Sources

ROOT = Path(__file__).parents[2]
PLACE = os.environ.get("RANKWELL_ENVIRONMENTS")
pytestmark = pytest.mark.skipif(not PLACE, reason="RANKWELL_ENVIRONMENTS names no folder to install into")
# A deadline of a millisecond passes (504). What a service can take depends on it, say whether its model knows types.
SETTINGS = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 504]
positive_data_acceptance.enabled = false
"""


def installed(name: str, *packages: str) -> Path:
    """The folder of programs of an environment with packages; the test is skipped where they cannot be installed."""
    folder = Path(PLACE or "") / name
    programs = folder / "bin"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True, clear=True)
        done = subprocess.run([programs / "python", "-m", "pip", "install", "--quiet", *packages], capture_output=True)
        if done.returncode:
            pytest.skip(f"{', '.join(packages)} cannot be installed here")
        (folder / "complete").touch()
    return programs


def test_no_request_of_the_description_fails(live: Callable[..., Any], sources: Sources, tmp_path: Path) -> None:
    programs = installed("schemathesis", "schemathesis>=4.3")
    (tmp_path / "settings.toml").write_text(SETTINGS)
    shutil.copytree(sources.index or "", tmp_path / "index")  # it is written to
    own = live(replace(sources, index=tmp_path / "index"), key="secret", writing_key="secret")
    command = [programs / "st", "--config-file", tmp_path / "settings.toml", "run"]
    command += [f"http://127.0.0.1:{own.port}/openapi.json", "--header", "Authorization: Bearer secret"]
    command += ["--max-examples", "50", "--seed", "1", "--suppress-health-check", "all"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]


def test_an_exported_model_needs_no_torch(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    environment = Path(PLACE or "") / "without-torch"
    command = [sys.executable, ROOT / "bench" / "cold_start.py", "--environment", environment]
    command += ["--starts", "0", "--out", tmp_path / "found.json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if "No matching distribution" in done.stderr or "Could not find a version" in done.stderr:
        pytest.skip("what serving needs cannot be installed here")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert "torch" not in found["installed_mb"]
    assert found["systems"]["onnx, without torch"]
