"""Refits to a log replace a system by a better one, in one step, or leave it as it is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from tests.training.fit.fitting import results
from tests.training.fit.refits import QUERIES, TIMES, WEEKS, answers, make_all, quick_steps

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.files import folder_size
from rankwell.corpus.records import Document
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.system import System
from rankwell.retrieve.index import Index
from rankwell.training.fit import refit
from rankwell.training.fit.fit import fit
from rankwell.training.fit.refit import NotBetterError

KILLS = int(os.environ.get("RANKWELL_KILLS", "3"))
Call = Callable[..., Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    make_all(tmp_path_factory.mktemp("refit"))
    return tmp_path_factory.getbasetemp() / "refit0"


@pytest.fixture
def parts(made: Path, tmp_path: Path) -> tuple[Path, Path, Path]:
    """Data, a system of one's own, and its log."""
    shutil.copytree(made / "place", tmp_path / "place")
    return made / "data", tmp_path / "place" / "system", made / "log"


def run(encoder: Path, parts: tuple[Path, Path, Path], out: Path | None = None, **options: Any) -> tuple[System, str]:
    (data, system, log), lines = parts, list[str]()
    with quick_steps(encoder):
        found = fit(str(data), out or system, previous=system, log=log, device="cpu", say=lines.append, **options)
    return found, "\n".join(lines)


def test_a_better_system_takes_the_place_of_the_old_one(parts: tuple[Path, Path, Path], tiny_bi_encoder: Path) -> None:
    _, system, log = parts
    old = answers(system)
    found, said = run(tiny_bi_encoder, parts)
    assert found.folder == system
    assert answers(system) != old
    assert [path.name for path in system.parent.iterdir()] == ["system"]
    last, searches = QUERIES * TIMES, QUERIES * TIMES * WEEKS
    assert f"{log}: {searches:,} searches; train: {searches - last:,} searches, clicks on " in said
    assert f"last-week: {last:,} searches, clicks on " in said
    assert f"{QUERIES} judged queries" in said
    assert said.splitlines()[-1].startswith(f"{system}: RR@10 0.500 → 1.000 (+0.500 [")
    assert said.endswith("on 80 queries of the last week")
    assert found.card["reported on"] == "last-week"
    assert "report" in results(found)["analyser"]
    assert f"--from {system} --log {log}" in (system / "README.md").read_text()


def test_without_a_gain_the_old_one_stays_and_the_exit_code_is_3(
    parts: tuple[Path, Path, Path], tiny_bi_encoder: Path, rankwell: Call
) -> None:
    data, system, log = parts
    run(tiny_bi_encoder, parts)
    before = {path: path.read_bytes() for path in system.rglob("*") if path.is_file()}
    with quick_steps(tiny_bi_encoder):
        typed = ["fit", data, "--from", system, "--log", log, "--out", system, "--device", "cpu"]
        done, told = rankwell(*typed), rankwell(*typed, "--json")
    assert (done.code, done.err) == (3, "")
    reason = done.out.splitlines()[-1]
    assert reason.startswith(f"{system} stays: RR@10 1.000 → 1.000 (+0.000 [")
    assert (told.code, json.loads(told.out)) == (3, {"out": str(system), "reason": reason, "exit_code": 3})
    assert {path: path.read_bytes() for path in system.rglob("*") if path.is_file()} == before
    assert [path.name for path in system.parent.iterdir()] == ["system"]


def test_a_better_system_can_have_a_place_of_its_own(
    parts: tuple[Path, Path, Path], tiny_bi_encoder: Path, tmp_path: Path
) -> None:
    _, system, _ = parts
    old = answers(system)
    System.open(system).add([Document("put", "what was put into the service alone")])
    found, said = run(tiny_bi_encoder, parts, tmp_path / "new")
    assert found.folder == tmp_path / "new"
    assert "1 of the 81 documents of" in said
    assert answers(system) == old != answers(tmp_path / "new")
    with pytest.raises(RankwellError, match="new holds a system already"):
        run(tiny_bi_encoder, parts, tmp_path / "new")


def test_the_system_may_be_named_by_a_link(
    parts: tuple[Path, Path, Path], tiny_bi_encoder: Path, tmp_path: Path
) -> None:
    data, system, log = parts
    old, link = answers(system), tmp_path / "current"
    link.symlink_to(system)
    run(tiny_bi_encoder, (data, link, log))
    assert link.is_symlink()
    assert answers(system) == answers(link) != old
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "place"]


def test_judgments_of_the_data_are_fitted_to_as_well(
    parts: tuple[Path, Path, Path], tiny_bi_encoder: Path, tmp_path: Path
) -> None:
    data = shutil.copytree(parts[0], tmp_path / "data")
    (data / "queries.train.tsv").write_text("j1\tcalls bees wasps\nj2\tcalls bees tea\n")
    (data / "qrels.train.txt").write_text("j1 0 d0 1\nj2 0 d1 1\n")
    _, said = run(tiny_bi_encoder, (data, *parts[1:]), tmp_path / "new")
    assert f"{QUERIES + 2} judged queries" in said


def test_few_clicks_in_the_last_week_change_nothing(
    parts: tuple[Path, Path, Path], tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refit, "LEAST_QUERIES", QUERIES + 1)
    with pytest.raises(
        NotBetterError, match=r"stays: the last week of .* has 80 queries with enough clicks, expected 81"
    ):
        run(tiny_bi_encoder, parts)
    assert folder_size(parts[1]) > 0


def test_a_log_of_another_system_is_refused(
    parts: tuple[Path, Path, Path], tiny_bi_encoder: Path, tmp_path: Path, rankwell: Call
) -> None:
    data, _, log = parts
    other = System(FirstStage(Index.build([Document("x", "tea")], tmp_path / "index"))).save(tmp_path / "other")
    with pytest.raises(InputError, match=r"80 of the 80 documents that it shows are not in .*other, such as d0; is it"):
        run(tiny_bi_encoder, (data, other.folder, log))  # type: ignore[arg-type]
    checked = rankwell("check", other.folder, "--log", log)
    assert checked.code == 2
    assert "is it the log of another system?" in checked.complaint


def test_options_that_have_no_part_in_a_refit_are_refused(parts: tuple[Path, Path, Path], rankwell: Call) -> None:
    data, system, log = parts
    assert rankwell("fit", data, "--log", log, "--out", system).complaint == "--log needs --from"
    done = rankwell("fit", data, "--from", system, "--log", log, "--out", system, "--report", "dev")
    assert done.complaint == "--report does not go with --log"


def test_work_on_the_log_of_another_week_is_removed(parts: tuple[Path, Path, Path], tiny_bi_encoder: Path) -> None:
    _, system, _ = parts
    stale = system.with_name("system.refit") / "0123456789" / "system.work"
    stale.mkdir(parents=True)
    run(tiny_bi_encoder, parts)
    assert [path.name for path in system.parent.iterdir()] == ["system"]


def test_health_is_printed_below_the_check(parts: tuple[Path, Path, Path], rankwell: Call) -> None:
    _, system, log = parts
    done = rankwell("check", system, "--log", log)
    assert done.code == 0, done.err
    *_, described, searches, empty, unclicked, below, lacking = done.out.splitlines()
    assert described.startswith(f"{log}: ")
    assert searches.startswith("searches: ")
    assert empty == "without results: 0.0% [0.0%, 0.4%]; 0.0% before"
    assert unclicked.startswith("without a click: 50.0% [")
    assert below == "below min-relevance: not calibrated"
    assert lacking.startswith("with words that the index lacks: 100.0% [99.6%, 100.0%]; 100.0% before; calls (")
    assert rankwell("check", system, "--log", system).complaint.endswith("as `rankwell serve --log` writes")


def test_a_kill_at_any_time_leaves_a_whole_system(tmp_path: Path, tiny_bi_encoder: Path) -> None:
    """RANKWELL_KILLS=50 kills it so often."""
    command = [sys.executable, "-m", "tests.training.fit.refits", str(tmp_path), str(tiny_bi_encoder), str(KILLS)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    first, *killed = [json.loads(line) for line in done.stdout.splitlines()]
    assert first["old"] != first["new"]
    assert len(killed) == KILLS
    for line in killed:
        assert line["whole"], line
        assert line["left"] in (first["old"], first["new"]), line
        assert line["last"] == first["new"], line
        assert line["beside"] == ["system"], line
        assert line["run again"][0] == 0, line
    print(f"\n{KILLS} kills of refits of {first['operations']} operations")
