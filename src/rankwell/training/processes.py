"""The processes that ``torchrun`` starts: the first one writes, the others wait for what it wrote."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

POLL_SECONDS = 0.2


def process_number() -> int:
    """The rank of this process; 0 is the one that writes."""
    return int(os.environ.get("RANK", "0"))


def process_count() -> int:
    """How many processes there are."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def write_once(path: Path, write: Callable[[], object]) -> Path:
    """Call ``write`` in the first process unless ``path`` exists already; the others wait for it. Returns ``path``.

    ``write`` must create ``path`` in one step, so that nobody sees half of it.
    """
    if process_number() == 0:
        if not path.exists():
            write()
    else:
        while not path.exists():
            time.sleep(POLL_SECONDS)
    return path
