"""The page "Your data": every example runs."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from rankwell.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "corpus.md"
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.S | re.M)


def test_every_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = 0
    for language, name, content in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if name:
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_text(content, encoding="utf-8")
        elif language == "python":
            exec(compile(content, str(PAGE), "exec"), {})
        elif language == "sh":
            for line in content.splitlines():
                monkeypatch.setattr(sys, "argv", shlex.split(line))
                with pytest.raises(SystemExit) as stopped:
                    main()
                assert not stopped.value.code, (line, capsys.readouterr().err)
                commands += 1
    assert commands >= 10
    out = capsys.readouterr()
    assert "('0',)" in out.out
    assert "{'RR@10': 1.0}" in out.out
    for notice in re.findall(r"^    (rankwell: .*)$", PAGE.read_text(encoding="utf-8"), re.M):
        assert notice in out.err
    runs = {name: Path(name).read_text().split()[:3] for name in ("bm25.run", "queries.run", "wishes.run")}
    assert runs == {name: [qid, "Q0", "bees.md"] for name, qid in zip(runs, "177", strict=True)}
