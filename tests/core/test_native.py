"""Native code where nothing can be cached, uncompiled kernels, and kernels that hold on to nothing."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from pathlib import Path

import numba
import numpy as np
import pytest

from rankwell.core import native as native_module
from rankwell.core.native import kernel, native

SOURCE = """
def add_up(values):
    total = 0
    for i in range(len(values)):
        total += values[i]
    return total
"""


def test_code_is_compiled_where_no_folder_for_a_cache_can_be_written() -> None:
    place: dict[str, object] = {}
    exec(compile(SOURCE, "<nowhere>", "exec"), place)  # numba finds no place for the cache of such code
    for decorate in (kernel, native()):
        assert decorate(place["add_up"])(np.arange(5)) == 10


def test_a_kernel_is_compiled_again_when_a_helper_or_a_constant_in_another_file_changes(tmp_path: Path) -> None:
    package = tmp_path / "some_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "constants.py").write_text("FACTOR = 2\n")
    helper = "from rankwell.core.native import helper\n\n@helper\ndef twice(value):\n    return value * 2\n"
    (package / "helpers.py").write_text(helper)
    (package / "kernels.py").write_text(
        "from rankwell.core.native import kernel\nfrom some_package.constants import FACTOR\n"
        "from some_package.helpers import twice\n\n"
        "@kernel\ndef first(values):\n    return twice(values[0]) + FACTOR\n"
    )
    program = "import numpy as np; from some_package.kernels import first; print(first(np.arange(5, 9)), "
    program += "*first._compiled.stats.cache_hits.values())"

    def run() -> str:
        command = [sys.executable, "-c", program]
        made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return made.stdout.strip()

    assert [run(), run()] == ["12", "12 1"]  # the second is read from the cache
    (package / "helpers.py").write_text(helper.replace("* 2", "* 3"))
    assert run() == "17"
    (package / "constants.py").write_text("FACTOR = 4\n")
    assert run() == "19"


def test_what_is_waited_for_is_said_once_if_compiling_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    place: dict[str, object] = {}
    exec(compile(SOURCE, "<nowhere>", "exec"), place)
    monkeypatch.setattr(native_module, "LONG", native_module._COMPILER.seconds + 1e-9)
    with pytest.warns(native_module.Notice, match="compiling native code, once per machine"):
        kernel(place["add_up"])(np.arange(5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernel(place["add_up"])(np.arange(5.0)) == 10


def test_a_clock_stands_still_while_native_code_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    now, compiler = [100.0], native_module._Compiler()
    monkeypatch.setattr(native_module, "_COMPILER", compiler)
    monkeypatch.setattr(native_module.time, "monotonic", lambda: now[0])
    event = numba.core.event.Event("numba:compile", numba.core.event.EventStatus.START)
    times = [native_module.working_time()]
    compiler.on_start(event)
    now[0] = 102.0
    times.append(native_module.working_time())
    compiler.on_end(event)
    now[0] = 103.5
    times.append(native_module.working_time())
    assert times == [100.0, 100.0, 101.5]


def test_a_kernel_holds_no_arrays_after_it_returns() -> None:
    place: dict[str, object] = {}
    exec(compile(SOURCE, "<nowhere>", "exec"), place)
    add_up, values = kernel(place["add_up"]), np.arange(5)
    before = sys.getrefcount(values)
    for _ in range(10):
        add_up(values)
    assert sys.getrefcount(values) == before


SMALL = """
import sys
from rankwell import BM25, Document, Index, open_dataset, sample, write_run
from rankwell.core import native

native.allow_uncompiled(int(sys.argv[1]))
data = open_dataset(sample.FOLDER)
more = [Document("x", "Der Käfer’s HTTPServer 東京 ﾃｽﾄ " + "x" * 300), Document("y", "")]
index = Index.build([*data.documents(), *more], "index")
index.delete([index.search(data.queries("dev")[:1])[data.queries("dev")[0].qid].docids[0]])
for k in (3, 1000):
    write_run(index.search(data.queries("dev"), BM25(1.2, 0.7), k=k), f"{k}.run")
print("numba" in sys.modules)
"""


def test_uncompiled_kernels_make_the_same_index_and_the_same_run(tmp_path: Path) -> None:
    files = []
    for steps, compiled in ((10**12, "False"), (0, "True")):
        (folder := tmp_path / str(steps)).mkdir()
        done = subprocess.run(
            [sys.executable, "-c", SMALL, str(steps)], cwd=folder, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == compiled
        assert "Warning" not in done.stderr
        names = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".json"]
        files.append({str(path.relative_to(folder)): path.read_bytes() for path in names})
    assert len(files[0]) > 10
    assert files[0] == files[1]


def test_work_beyond_the_steps_allowed_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    place: dict[str, object] = {}
    exec(compile(SOURCE, "<nowhere>", "exec"), place)
    monkeypatch.setattr(native_module, "_uncompiled_steps", 0.0)
    native_module.allow_uncompiled(20)
    add_up = kernel(place["add_up"])
    for expected in (False, False, False, True):
        assert add_up(np.arange(6)) == 15
        assert ("_compiled" in vars(add_up)) is expected


def test_code_that_is_only_loaded_runs_uncompiled_for_fewer_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "added.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    function = importlib.import_module("added").add_up
    for compiled in (False, True):
        monkeypatch.setattr(native_module, "_uncompiled_steps", 0.0)
        native_module.allow_uncompiled(20)
        add_up = kernel(function)
        assert add_up(np.arange(6)) == 15
        assert ("_compiled" in vars(add_up)) is compiled
        native_module.allow_uncompiled(0)
        kernel(function)(np.arange(6))  # leaves compiled code beside the source


MANY = """
import sys
from rankwell import Index, Query
from rankwell.core import native

index = Index.build([f"bees make honey {n}" for n in range(2000)], "index")
native.allow_uncompiled()
for n in range(int(sys.argv[1])):
    index.search([Query(f"{n}-{q}", f"honey unknown{n}x{q}") for q in range(int(sys.argv[2]))])
print(native._uncompiled_steps, "numba" in sys.modules)
"""


@pytest.mark.parametrize(("batches", "queries", "compiled"), [(2, 4, False), (40, 12, True), (1, 257, True)])
def test_queries_with_unknown_words_use_up_what_may_run_uncompiled(
    tmp_path: Path, batches: int, queries: int, compiled: bool
) -> None:
    command = [sys.executable, "-c", MANY, str(batches), str(queries)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    steps, imported = done.stdout.split()
    assert imported == "True" or not compiled
    assert 0 <= float(steps) < native_module.SMALL - 1000 * queries
    assert (float(steps) == 0) is compiled
