"""The small parts of core: named parts, records of what made a file, progress bars."""

from __future__ import annotations

import copy
import io
import itertools
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from rankwell.core import progress
from rankwell.core.errors import InputError, MissingExtraError, RankwellError, excerpt
from rankwell.core.manifest import Manifest, digest, file_digest
from rankwell.core.progress import track
from rankwell.core.registry import Registry
from rankwell.corpus.store import RepeatedIdError

# Registry


@pytest.fixture
def losses() -> Registry[str]:
    registry: Registry[str] = Registry("loss")
    registry.register("hinge")("h")
    registry.register("listwise")("l")
    return registry


def test_a_registered_part_is_found_by_its_name(losses: Registry[str]) -> None:
    assert losses["hinge"] == "h"
    assert (list(losses), len(losses)) == (["hinge", "listwise"], 2)
    assert "hinge" in losses
    assert "hing" not in losses


@pytest.mark.parametrize(
    ("name", "guess"), [("listwize", "; did you mean listwise?"), ("HINGE", "; did you mean hinge?"), ("qqq", "")]
)
def test_a_misspelt_name_gets_the_nearest_one_and_all_that_are_known(
    losses: Registry[str], name: str, guess: str
) -> None:
    with pytest.raises(RankwellError) as raised:
        losses[name]
    assert str(raised.value) == f"no loss is called '{name}'{guess} (known: hinge, listwise)"


def test_the_trunk_works_without_a_paper() -> None:
    script = """
from rankwell import papers
papers.PARTS = {}
from rankwell.rank.rankers import RANKERS, WORDS
assert list(RANKERS) == [WORDS], list(RANKERS)
assert RANKERS[WORDS].__name__ == "WordRanker"
import rankwell.training.fit.fit, rankwell.training.run, rankwell.cli.main
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_one_name_cannot_be_registered_twice(losses: Registry[str]) -> None:
    with pytest.raises(ValueError, match="'hinge' is registered twice"):
        losses.register("hinge")("again")


# Errors


def test_an_input_error_says_which_file_and_line() -> None:
    error = InputError("a.tsv", 3, "found 1 column")
    assert (str(error), error.path, error.line) == ("a.tsv, line 3: found 1 column", "a.tsv", 3)
    assert str(InputError("a.tsv", None, "is empty")) == "a.tsv: is empty"


@pytest.mark.parametrize(
    "error",
    [
        RankwellError("no"),
        InputError("queries.tsv", 3, "no text"),
        MissingExtraError("torch", "models", "training"),
        RepeatedIdError("d1"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_go_from_process_to_process_as_they_are(error: RankwellError) -> None:
    twin = copy.copy(error)  # by way of pickle
    assert (type(twin), str(twin), vars(twin)) == (type(error), str(error), vars(error))


def test_an_excerpt_is_short_and_on_one_line() -> None:
    assert excerpt("a\nb") == "'a\\nb'"
    assert len(excerpt("x" * 1000)) < 80


# Manifest


def test_a_manifest_holds_version_configuration_data_seed_and_machine() -> None:
    record = Manifest("index", {"k": 10}, {"queries": "abc"}, seed=7).as_dict()
    assert record["version"] == version("rankwell")
    assert (record["kind"], record["config"], record["data"], record["seed"]) == (
        "index",
        {"k": 10},
        {"queries": "abc"},
        7,
    )
    assert set(record["machine"]) == {"system", "architecture", "cores", "python"}
    assert record["config_hash"] == digest({"k": 10})
    assert record["data_hash"] == digest({"queries": "abc"})
    assert record["created"].endswith("+00:00")


def test_a_digest_does_not_depend_on_the_order_of_keys_but_on_every_value() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({"a": 1, "b": 2}) != digest({"a": 2, "b": 1})


def test_a_file_digest_depends_on_the_bytes_alone(tmp_path: Path) -> None:
    for name, content in (("a", b"same"), ("b", b"same"), ("c", b"other")):
        (tmp_path / name).write_bytes(content)
    assert file_digest(tmp_path / "a") == file_digest(tmp_path / "b") != file_digest(tmp_path / "c")


def test_the_digest_of_a_missing_file_is_a_readable_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        file_digest(tmp_path / "none")


# Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_nothing_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr(progress, "_in_log", False)
    assert list(track(range(3), "counting")) == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_in_a_terminal_long_work_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", -1.0)
    assert list(track([4, 5], "counting sheep")) == [4, 5]
    assert "counting sheep" in terminal.getvalue()


def test_in_a_terminal_short_work_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 600.0)
    assert list(track(range(1000), "counting sheep")) == list(range(1000))
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("terminal", [io.StringIO, Terminal])
def test_items_are_taken_one_at_a_time(monkeypatch: pytest.MonkeyPatch, terminal: type[io.StringIO]) -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(10):
            taken.append(item)
            yield item

    monkeypatch.setattr("sys.stderr", terminal())
    tracked = track(items(), "working")
    assert next(tracked) == 0
    assert taken == [0]


def test_an_error_in_the_work_passes_through_and_the_bar_is_taken_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", -1.0)

    def items() -> Iterator[int]:
        yield 1
        time.sleep(0.01)
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        list(track(items(), "working"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time pass."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress._Log, "last", 0.0)
    return lambda seconds: now.__setitem__(0, now[0] + seconds)


def test_in_the_log_of_a_command_a_line_comes_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clock: Callable[[float], None]
) -> None:
    monkeypatch.setattr(progress, "_in_log", True)
    for _ in track(range(60), "re-ranking", unit="pairs"):
        clock(2.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "rankwell: re-ranking: 15 of 60 pairs, 0.5/s, about 90 s left"
    assert len(lines) == 3


def test_what_a_model_computes_moves_the_work_around_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clock: Callable[[float], None]
) -> None:
    monkeypatch.setattr(progress, "_in_log", True)
    with progress.progress("re-ranking", total=100, unit="pairs") as work:
        progress.expect(50, 100)  # two windows each
        for _ in range(9):
            clock(4.0)
            progress.computed(10)
        assert work.done == 45
        progress.computed(100)
        assert work.done == 50  # no more than was expected
        work.finish(60)  # ten had their scores already
        assert work.done == 60
        with progress.progress("tokenising", total=2):
            progress.computed(1)  # unexpected there
        assert work.done == 60
    progress.computed(1)
    assert capsys.readouterr().err == "rankwell: re-ranking: 40 of 100 pairs, 1.2/s, about 48 s left\n"


def test_inner_work_is_shown_while_it_lasts(monkeypatch: pytest.MonkeyPatch, clock: Callable[[float], None]) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with progress.progress("training", total=4, unit="steps") as outer:
        clock(3.0)
        outer.advance()
        for _ in track([1, 2], "validating"):
            clock(3.0)
        outer.advance()
    drawn = re.findall(r"training|validating", terminal.getvalue())
    assert [name for name, _ in itertools.groupby(drawn)] == ["training", "validating", "training"]
    assert "1 of 4 steps" in terminal.getvalue()
    assert "about 9 s left" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is empty again


def test_threads_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", -1.0)
    thread = threading.Thread(target=lambda: list(track(range(3), "searching")))
    thread.start()
    thread.join()
    assert terminal.getvalue() == ""
