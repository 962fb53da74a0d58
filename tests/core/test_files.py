"""Reading lines and writing files so that nothing goes wrong silently."""

from __future__ import annotations

import errno
import gc
import gzip
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwell.core import files
from rankwell.core.errors import InputError, RankwellError
from rankwell.core.files import (
    TEMPORARY_PREFIX,
    atomic_binary,
    atomic_folder,
    atomic_text,
    disk_errors,
    link_tree,
    read_lines,
    remove_leftovers,
)


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(TEMPORARY_PREFIX)]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        ("a\x85b\u2028c\x1cd\x0be\n".encode(), ["a\x85b\u2028c\x1cd\x0be"]),
        (b"\n\n a \n", ["", "", " a "]),
    ],
    ids=["empty", "plain", "no final newline", "CRLF", "byte-order mark", "other line separators", "blank lines"],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_lines_end_at_newlines_and_nowhere_else(tmp_path: Path, content: bytes, lines: list[str], zipped: bool) -> None:
    path = tmp_path / "lines"  # the name does not say whether it is gzip: the bytes do
    path.write_bytes(gzip.compress(content) if zipped else content)
    assert list(read_lines(path)) == list(enumerate(lines, 1))


def test_concatenated_gzip_members_are_one_file(tmp_path: Path) -> None:
    path = tmp_path / "two.gz"
    path.write_bytes(gzip.compress(b"a\n") + gzip.compress(b"b\n"))
    assert [text for _, text in read_lines(path)] == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        (b"good\ncaf\xe9\n", 2, "not UTF-8 text (byte 0xe9 at column 4)"),
        (b"good\n\0\1\2\n", 2, "NUL"),
        (gzip.compress(b"x" * 5000)[:-9], 1, "broken gzip"),
        (b"\x1f\x8bnot gzip at all", 1, "broken gzip"),
    ],
    ids=["latin-1", "binary", "truncated gzip", "gzip by its first bytes only"],
)
def test_what_is_not_text_is_an_input_error_with_the_line(
    tmp_path: Path, content: bytes, line: int, problem: str
) -> None:
    path = tmp_path / "broken"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        list(read_lines(path))
    assert problem in caught.value.problem
    assert caught.value.line == line
    assert str(path) in str(caught.value)


def test_a_missing_file_a_folder_and_a_forbidden_name_are_input_errors(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path, problem in (
        (tmp_path / "absent", "no such file"),
        (tmp_path, "is a folder"),
        (tmp_path / "file" / "below", "not a directory"),
        (tmp_path / ("n" * 300), "too long"),
    ):
        with pytest.raises(InputError, match=problem):
            list(read_lines(path))


@given(st.binary(max_size=200), st.booleans(), st.integers(0, 40))
def test_arbitrary_bytes_are_lines_or_an_input_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, zipped: bool, cut: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "arbitrary"
    path.write_bytes(gzip.compress(content)[cut:] if zipped else content)
    try:
        lines = list(read_lines(path))
    except InputError:
        return
    assert [number for number, _ in lines] == list(range(1, len(lines) + 1))
    assert not any("\n" in text or "\0" in text for _, text in lines)


def test_reading_closes_the_file_also_under_gzip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "zipped"
    path.write_bytes(gzip.compress(b"a\n"))
    gc.collect()  # what other tests left open
    # A file that is only collected warns in its destructor, where an error is reported but not raised.
    unclosed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unclosed.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        list(read_lines(path))
        gc.collect()
    assert unclosed == []


@pytest.mark.parametrize("name", ["new.txt", "new.txt.gz", "folder/that/is/made/new.txt"])
def test_what_is_written_is_read_back(tmp_path: Path, name: str) -> None:
    with atomic_text(tmp_path / name) as file:
        file.write("é\u2028\n\x85")
    assert list(read_lines(tmp_path / name)) == [(1, "é\u2028"), (2, "\x85")]
    assert not leftovers((tmp_path / name).parent)


def test_gzip_bytes_repeat(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        with atomic_binary(tmp_path / name) as file:
            file.write(b"the same")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


@pytest.mark.parametrize("name", ["old.txt", "old.txt.gz"])
def test_an_exception_while_writing_leaves_the_old_file(tmp_path: Path, name: str) -> None:
    with atomic_text(tmp_path / name) as file:
        file.write("old\n")
    with pytest.raises(ZeroDivisionError), atomic_text(tmp_path / name) as file:
        file.writelines(f"{1 / n}\n" for n in range(20_000, -1, -1))
    assert list(read_lines(tmp_path / name)) == [(1, "old")]
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("name", ["big.txt", "big.txt.gz"])
def test_a_full_disk_is_one_line_and_leaves_no_partial_file(tmp_path: Path, name: str) -> None:
    """The limit on a file's size stands in for the disk's; the error number is the disk's neighbour (EFBIG)."""
    script = f"""
import random, resource, signal
from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_text
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with atomic_text({str(tmp_path / name)!r}) as file:
        for _ in range(200_000):
            file.write(f"{{random.random()}}\\n")
except RankwellError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"cannot write {tmp_path / name}: file too large\n"
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_no_space_left_is_said_in_these_words(tmp_path: Path) -> None:
    (tmp_path / "run.txt").write_text("old\n")
    with (
        pytest.raises(RankwellError, match=r"cannot write .*run\.txt: no space left on device"),
        atomic_text(tmp_path / "run.txt"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert [path.name for path in tmp_path.iterdir()] == ["run.txt"]
    assert (tmp_path / "run.txt").read_text() == "old\n"


def test_an_os_error_that_is_not_the_disks_keeps_its_traceback() -> None:
    with pytest.raises(ConnectionResetError), disk_errors("x"):
        raise ConnectionResetError(errno.ECONNRESET, "reset")


def test_a_file_that_is_missing_elsewhere_keeps_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), disk_errors(tmp_path / "folder"):
        (tmp_path / "folder" / "users").open("rb")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
@pytest.mark.parametrize("path", ["/proc/rankwell", "/proc/rankwell/below"])
def test_a_name_that_cannot_be_made_is_one_line(path: str) -> None:
    expected = f"cannot write {path}: no such file or directory"
    with pytest.raises(RankwellError, match=expected), atomic_text(path):
        pass
    with pytest.raises(RankwellError, match=expected), atomic_folder(path):
        pass
    with pytest.raises(RankwellError, match=expected), disk_errors(path):
        Path(path).mkdir(parents=True)


def test_writing_over_a_folder_or_below_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "folder", tmp_path / "file" / "below"):
        with pytest.raises(RankwellError, match="cannot write"), atomic_text(path) as file:
            file.write("x")
    assert not leftovers(tmp_path)


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "index") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "part").write_text("x")
        assert not (tmp_path / "index").exists()
    assert (tmp_path / "index" / "inner" / "part").read_text() == "x"
    assert not leftovers(tmp_path)


def test_a_folder_whose_making_fails_never_appears(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_folder(tmp_path / "index") as folder:
        shutil.copy(folder / "absent", folder / "part")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "old").write_text("x")
    with pytest.raises(RankwellError, match="cannot write"), atomic_folder(tmp_path / "index") as folder:
        (folder / "new").write_text("y")
    assert [path.name for path in (tmp_path / "index").iterdir()] == ["old"]
    assert not leftovers(tmp_path)


def test_leftovers_of_one_name_are_removed_alone(tmp_path: Path) -> None:
    names = [".partial-0123abcd-system", ".partial-0123abcd-other-system", ".partial-0123abcd-system.run", "system"]
    for name in names:
        (tmp_path / name).mkdir()
    remove_leftovers(tmp_path, of="system")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])


def test_leftovers_of_killed_writers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / f"{TEMPORARY_PREFIX}1-a").write_text("x")
    (tmp_path / f"{TEMPORARY_PREFIX}2-b").mkdir()
    (tmp_path / "kept").write_text("x")
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_link_tree_links_files_and_skips(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    (source / "inner" / "text").write_text("words")
    (source / "lock").write_text("")
    (source / "named").symlink_to(source / "inner" / "text")
    link_tree(source, tmp_path / "target", skip=lambda path: path.name == "lock")
    target = tmp_path / "target"
    assert sorted(path.name for path in target.rglob("*")) == ["inner", "named", "text"]
    assert (target / "inner" / "text").samefile(source / "inner" / "text")
    assert not (target / "named").is_symlink()
    assert (target / "named").read_text() == "words"


def test_link_tree_copies_where_links_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "text").write_text("words")
    link_tree(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target" / "text").read_text() == "words"
    assert not (tmp_path / "target" / "text").samefile(tmp_path / "source" / "text")


def test_a_gzip_file_that_unpacks_to_more_than_any_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LEAST_UNPACKED", 1 << 20)
    with gzip.open(tmp_path / "bomb.gz", "wb") as file:
        file.writelines([b"a line of a text\n" * 1000] * 400)
    with pytest.raises(InputError, match=r"bomb\.gz: takes over 1 MiB unpacked, the bound for a file of"):
        list(read_lines(tmp_path / "bomb.gz"))
    with gzip.open(tmp_path / "fine.gz", "wb") as file:
        file.writelines(f"{number * 7919 % 100_003}\n".encode() for number in range(300_000))
    assert len(list(read_lines(tmp_path / "fine.gz"))) == 300_000
    # The end of this one says nothing of what is before it.
    (tmp_path / "two.gz").write_bytes((tmp_path / "bomb.gz").read_bytes() + gzip.compress(b"end\n"))
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 1 << 16)
    with pytest.raises(InputError, match=r"two\.gz, line \d+: takes over 1 MiB unpacked, the bound for a file of"):
        list(read_lines(tmp_path / "two.gz"))
    monkeypatch.setenv("RANKWELL_MAX_UNPACKED", "600")
    assert len(list(read_lines(tmp_path / "two.gz"))) == 400_001
    monkeypatch.setenv("RANKWELL_MAX_UNPACKED", "lots")
    with pytest.raises(RankwellError, match="RANKWELL_MAX_UNPACKED is 'lots', expected a number of MiB"):
        list(read_lines(tmp_path / "two.gz"))


def test_a_cut_gzip_file_is_broken_whatever_its_last_bytes_say(tmp_path: Path) -> None:
    packed = gzip.compress(b"a line\n" * 1000)
    (tmp_path / "cut.gz").write_bytes(packed[:30] + b"\xff" * 8)
    with pytest.raises(InputError, match=r"cut\.gz, line 1: broken gzip file"):
        list(read_lines(tmp_path / "cut.gz"))
