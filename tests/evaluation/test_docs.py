"""The examples of the documentation are true."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rankwell.evaluation import MEASURES

PAGE = Path(__file__).parents[2] / "docs" / "evaluation.md"


def test_the_examples_print_what_the_page_says() -> None:
    # In a process of its own, because the page registers a measure.
    done = subprocess.run([sys.executable, "-m", "doctest", str(PAGE)], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert done.returncode == 0


def test_every_measure_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in MEASURES if f"`{name}`" not in text] == []
