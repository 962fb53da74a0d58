"""Standard streams, pipes, devices and links: read once, written through, never replaced."""

from __future__ import annotations

import gzip
import io
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.files import atomic_text, check_output, check_parent, is_stream, read_lines, reading_pipes_once
from rankwell.core.manifest import file_digest

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")


def type_in(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def lines_of(path: str | Path) -> list[str]:
    return [line for _, line in read_lines(path)]


def feed(fifo: Path, content: bytes) -> threading.Thread:
    os.mkfifo(fifo)
    thread = threading.Thread(target=fifo.write_bytes, args=(content,))
    thread.start()
    return thread


def write(path: str | Path, text: str) -> None:
    with atomic_text(path) as file:
        file.write(text)


# Reading


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch, "a\nb\n")
    assert lines_of("-") == ["a", "b"]


def test_standard_input_that_is_no_text_is_called_that(monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch, "a\0\n")
    with pytest.raises(InputError, match=r"^standard input, line 1: holds a NUL"):
        lines_of("-")


def test_a_pipe_may_be_compressed(tmp_path: Path) -> None:
    thread = feed(tmp_path / "pipe", gzip.compress(b"a\nb\n"))
    assert lines_of(tmp_path / "pipe") == ["a", "b"]
    thread.join()


def test_pipes_are_read_once_however_often_they_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"a\nb\n")
    type_in(monkeypatch, "a\nb\n")
    thread = feed(tmp_path / "pipe", b"a\nb\n")
    with reading_pipes_once():
        for path in ("-", tmp_path / "pipe"):
            assert lines_of(path) == lines_of(path) == ["a", "b"]
            assert file_digest(path) == file_digest(tmp_path / "file")
    thread.join()
    again = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"c\n",))
    again.start()
    with reading_pipes_once():  # another command: nothing is remembered
        assert lines_of(tmp_path / "pipe") == ["c"]
    again.join()


# Writing


def test_a_pipe_is_written_through_and_stays_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    read: list[bytes] = []
    thread = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    thread.start()
    write(tmp_path / "pipe", "a\n")
    thread.join()
    assert read == [b"a\n"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert is_stream(tmp_path / "pipe")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_link_stays_and_the_file_it_names_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("old")
    (tmp_path / "link").symlink_to(Path("elsewhere") / "file")
    (tmp_path / "new").symlink_to(tmp_path / "elsewhere" / "made")
    write(tmp_path / "link", "x")
    write(tmp_path / "new", "y")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "new").is_symlink()
    assert {path.name: path.read_text() for path in (tmp_path / "elsewhere").iterdir()} == {"file": "x", "made": "y"}


def test_links_that_lead_nowhere_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere" / "file")
    with pytest.raises(RankwellError, match="its symbolic links form a circle"):
        check_output(tmp_path / "a")
    with pytest.raises(RankwellError, match=r"there is no folder .*nowhere"):
        check_output(tmp_path / "gone")
    assert (tmp_path / "a").is_symlink()


def test_standard_output_is_written_to_under_any_name(tmp_path: Path) -> None:
    code = """
import sys
from rankwell.core.files import atomic_text
print("before")
for name in sys.argv[1:]:
    with atomic_text(name) as file:
        print(name, file=file)
print("after")
"""
    names = ["-", "/dev/stdout", "file"]
    with (tmp_path / "file").open("wb") as out:  # the last name is that of the file which standard output is
        subprocess.run([sys.executable, "-c", code, *names], cwd=tmp_path, stdout=out, check=True)
    assert (tmp_path / "file").read_text() == "before\n-\n/dev/stdout\nfile\nafter\n"
    done = subprocess.run([sys.executable, "-c", code, "-", "/dev/stdout"], stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"before\n-\n/dev/stdout\nafter\n"


@pytest.mark.parametrize(("kind", "refused"), [(stat.S_IFCHR, False), (stat.S_IFBLK, True), (stat.S_IFIFO, False)])
def test_devices_are_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int, refused: bool) -> None:
    device = tmp_path / "device"
    device.write_text("")
    genuine, inode = os.stat, device.stat().st_ino

    def pretend(path: Any, **options: Any) -> Any:
        if str(path) != str(device):
            return genuine(path, **options)
        return SimpleNamespace(st_mode=kind | 0o666, st_dev=1, st_ino=inode)

    monkeypatch.setattr(os, "stat", pretend)
    if refused:
        with pytest.raises(RankwellError, match="is a disk"):
            write(device, "x")
    else:
        write(device, "x")
    monkeypatch.undo()
    assert device.stat().st_ino == inode
    assert device.read_text() == ("" if refused else "x")


def test_a_missing_folder_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, problem in (
        (tmp_path / "nowhere" / "x", f"there is no folder {tmp_path / 'nowhere'}"),
        (tmp_path / "file" / "x", "file is not a directory"),
    ):
        for check in (check_output, check_parent):
            with pytest.raises(RankwellError, match=problem):
                check(path)
    with pytest.raises(RankwellError, match="is a directory"):
        check_output(tmp_path)
    check_output(tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
