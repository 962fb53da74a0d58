"""The benchmark scripts: every one that the documentation cites is there and starts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("README.md"), ROOT / "Makefile"]
MENTIONED = sorted(
    {name for page in PAGES for name in re.findall(r"bench/(\w+\.py)", page.read_text(encoding="utf-8"))}
)
SCRIPTS = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "bench").glob("*.py")}
CITED = [name for name in MENTIONED if "__main__" in SCRIPTS.get(name, "__main__")]  # the others are only imported


@pytest.mark.parametrize("name", CITED)
def test_a_cited_script_shows_its_help(name: str) -> None:
    command = [sys.executable, str(ROOT / "bench" / name), "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    if "ModuleNotFoundError" in done.stderr and "No module named 'rankwell" not in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])  # a peer that is not installed
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout


def test_no_script_is_without_a_page() -> None:
    modules = {name.removesuffix(".py") for name in SCRIPTS}
    statement = re.compile(r"^\s*(?:from|import) (\w+)", re.MULTILINE)
    imports = {name: set(statement.findall(text)) & modules for name, text in SCRIPTS.items()}
    reached, waiting = set(CITED), list(CITED)
    while waiting:
        for module in imports[waiting.pop()]:
            if (file := f"{module}.py") not in reached:
                reached.add(file)
                waiting.append(file)
    assert sorted(SCRIPTS.keys() - reached) == []
