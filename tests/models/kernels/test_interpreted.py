"""Without a GPU the Triton kernels run in Triton's interpreter, which must be chosen before Triton is first imported:
their tests run again in one process of their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parents[2]
FEWEST = {
    "models/kernels/test_triton_attention.py": 11,
    "models/kernels/test_triton_training.py": 11,
    "models/test_cuda_graphs.py": 16,
    "models/test_modernbert.py": 10,
    "rank/engines/test_torch_engine.py": 20,
}
"""How many tests must pass there at least."""


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run on the GPU itself")
def test_the_kernels_hold_in_tritons_interpreter() -> None:
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *(TESTS / name for name in FEWEST)]
    threads = {"OMP_NUM_THREADS": "1", "COLUMNS": "500", "CUDA_VISIBLE_DEVICES": ""}
    environment = {**os.environ, **threads, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    outcomes = dict(re.findall(r"^tests/(\S+\.py) (\S+)", done.stdout, re.MULTILINE))
    assert {name: outcomes[name].count(".") >= fewest for name, fewest in FEWEST.items()} == dict.fromkeys(FEWEST, True)
    assert [name for name in FEWEST if "s" in outcomes[name]] == ["models/test_modernbert.py"]  # those without kernels
