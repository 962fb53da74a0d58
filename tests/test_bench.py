"""The benchmark scripts: every one that the documentation cites is there and starts."""

from __future__ import annotations

import json
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


# Each script runs in a fork of a process that has imported once what is slow to import.
HELP = """
import json, os, runpy, sys, tempfile, traceback
from contextlib import suppress

with suppress(ImportError):
    import rankwell.rank.ranker, sentence_transformers
for path in sys.argv[1:]:
    with tempfile.TemporaryFile("w+") as told:
        if not os.fork():
            os.dup2(told.fileno(), 1), os.dup2(told.fileno(), 2)
            sys.argv, sys.path[0] = [path, "--help"], os.path.dirname(path)
            status = 0
            try:
                runpy.run_path(path, run_name="__main__")
            except SystemExit as end:
                status = int(end.code or 0)
            except BaseException:
                traceback.print_exc()
                status = 1
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.wait()[1])
        told.seek(0)
        print(json.dumps([status, told.read()]), flush=True)
"""


@pytest.fixture(scope="module")
def helps() -> dict[str, tuple[int, str]]:
    """The exit code of each script with --help, and what it prints."""
    command = [sys.executable, "-c", HELP, *(str(PLACES[name]) for name in CITED)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(zip(CITED, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", CITED)
def test_a_cited_script_shows_its_help(name: str, helps: dict[str, tuple[int, str]]) -> None:
    status, told = helps[name]
    if "ModuleNotFoundError" in told and "No module named 'rankwell" not in told:
        pytest.skip(told.splitlines()[-1])  # a peer that is not installed
    assert status == 0, told
    assert "usage" in told


def test_no_script_is_without_a_page() -> None:
    statement = re.compile(r"^\s*(?:from|import) (\w+)", re.MULTILINE)
    reached, waiting = set(CITED), list(CITED)
    while waiting:
        for module in (set(statement.findall(TEXTS[waiting.pop()])) & TEXTS.keys()) - reached:
            reached.add(module)
            waiting.append(module)
    assert sorted(TEXTS.keys() - reached) == []
