"""Calling the command line as a user does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rankwell import sample
from rankwell.cli.main import main
from rankwell.corpus.datasets import open_dataset
from rankwell.retrieve.index import Index


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def rankwell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Outcome]:
    """Run ``rankwell ARGUMENTS`` in an empty folder, and give its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["rankwell", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return Outcome(int(stopped.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the sample that no test changes."""
    folder = tmp_path_factory.mktemp("cli") / "index"
    Index.build(open_dataset(sample.FOLDER).documents(), folder)
    return folder


@pytest.fixture(scope="session")
def queries() -> Path:
    return sample.FOLDER / "queries.dev.tsv"


@pytest.fixture(scope="session")
def qrels() -> Path:
    return sample.FOLDER / "qrels.dev.txt"
