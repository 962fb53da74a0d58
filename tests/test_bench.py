"""The benchmark scripts: every one that the documentation cites is there and starts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("README.md"), ROOT / "Makefile"]
MENTIONED = sorted({name for page in PAGES for name in re.findall(r"bench/(\w+)", page.read_text(encoding="utf-8"))})
PLACES = {path.stem: path for path in (ROOT / "bench").iterdir() if path.suffix == ".py" or path.name == "papers"}
TEXTS = {
    name: "".join(file.read_text(encoding="utf-8") for file in (path.glob("*.py") if path.is_dir() else [path]))
    for name, path in PLACES.items()
}
CITED = [name for name in MENTIONED if "__main__" in TEXTS.get(name, "__main__")]  # the others are only imported


@pytest.mark.parametrize("name", CITED)
def test_a_cited_script_shows_its_help(name: str) -> None:
    command = [sys.executable, str(PLACES[name]), "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    if "ModuleNotFoundError" in done.stderr and "No module named 'rankwell" not in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])  # a peer that is not installed
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout


def test_no_script_is_without_a_page() -> None:
    statement = re.compile(r"^\s*(?:from|import) (\w+)", re.MULTILINE)
    reached, waiting = set(CITED), list(CITED)
    while waiting:
        for module in (set(statement.findall(TEXTS[waiting.pop()])) & TEXTS.keys()) - reached:
            reached.add(module)
            waiting.append(module)
    assert sorted(TEXTS.keys() - reached) == []
