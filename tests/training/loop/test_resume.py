"""The state that training resumes from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import resource, signal, sys
from pathlib import Path
import torch
from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_folder
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.training.loop.loop import Progress, save_state

tokenizer, place = Tokenizer.open(Path(sys.argv[1])), Path(sys.argv[2])
model = torch.nn.Linear(64, 64)

def save_tokenizer():
    with atomic_folder(place / "model") as folder:
        tokenizer.save(folder)

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for save in (save_tokenizer, lambda: save_state(place, model, torch.optim.SGD(model.parameters()), Progress(step=7))):
    try:
        save()
    except RankwellError as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on the size of files")
def test_a_full_disk_is_one_line_and_leaves_nothing(tiny_tokenizer: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tiny_tokenizer), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    places = tmp_path / "model", tmp_path / "last-00000007"
    assert done.stdout.splitlines() == [f"cannot write {place}: file too large" for place in places]
    assert list(tmp_path.iterdir()) == []
