"""Processes that search a system while another changes it: every answer is of one version, and none is an error."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from rankwell.core import files
from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Document
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.system import System
from rankwell.retrieve.index import Index

ROUNDS, UPDATED = 25, 3
WRITER = """
import sys, time
from pathlib import Path
from rankwell import Document, System

folder, rounds, updated = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for name in ("once", "anew"):  # readers that are ready to search
    while not (folder.parent / name).exists():
        time.sleep(0.05)
system = System.open(folder)
for number in range(rounds):
    system.update([Document(f"d{i}", f"bee honey river edition {number}") for i in range(updated)])
    system.delete([f"d{updated + number}"])
    system.merge()
(folder.parent / "done").touch()
"""
READER = """
import json, sys, traceback
from pathlib import Path
from rankwell import System

folder, anew, updated = Path(sys.argv[1]), sys.argv[2] == "anew", int(sys.argv[3])
system, seen, wrong = System.open(folder), [], []
(folder.parent / sys.argv[2]).touch()
while True:
    last = (folder.parent / "done").exists()
    try:
        answers = (System.open(folder) if anew else system).search("bee honey edition", k=100)
    except Exception:
        wrong.append(traceback.format_exc())
    else:
        editions = [answer.text for answer in answers if answer.docid in {f"d{i}" for i in range(updated)}]
        seen += editions[:1]
        if len(editions) != updated or len(set(editions)) != 1:
            wrong.append(f"mixed: {editions}")
    if last:
        print(json.dumps([seen, wrong]))
        break
    if not anew:  # nothing of the version as it is now is open
        system = system.with_index(system.index.refreshed())
"""


@pytest.fixture
def system(tiny_bi_encoder: Path, tmp_path: Path) -> System:
    documents = [Document(f"d{i}", "bee honey river edition none" if i < UPDATED else f"tea {i}") for i in range(40)]
    first = FirstStage(Index.build(documents, tmp_path / "made"), encoder=tiny_bi_encoder, share=0.6, words=0.5)
    return System(first).save(tmp_path / "folder" / "system")


def test_a_search_beside_changes_by_another_process_answers_from_one_version(system: System) -> None:
    folder = str(system.folder)
    system.search("bee honey")
    runs = [(READER, "once", str(UPDATED)), (READER, "anew", str(UPDATED)), (WRITER, str(ROUNDS), str(UPDATED))]
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", script, folder, *rest], stdout=subprocess.PIPE, text=True
        )
        for script, *rest in runs
    ]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    for output in outputs[:2]:
        seen, wrong = json.loads(output)
        assert not wrong, "\n".join([f"{len(wrong)} of {len(seen) + len(wrong)} searches", *wrong[:3]])
        assert seen[-1] == f"bee honey river edition {ROUNDS - 1}"
    index = Index.open(system.index.folder)
    assert len(index) == 40 - ROUNDS
    index.update([Document("last", "tea")])
    assert not index.leftovers()
    index.check()


def test_a_merge_leaves_nothing_for_readers_to_store(system: System) -> None:
    def stored() -> set[Path]:
        return {path for path in system.index.folder.rglob("*") if path.is_file() and path.name != "lock"}

    system.update([Document("d0", "bee honey")])
    system.merge()
    before = stored()
    assert System.open(system.folder or "").search("bee honey")
    assert stored() == before


def test_a_folder_that_is_not_in_use_is_gone_at_once(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that opens files while they are removed one by one would compute what is gone already."""
    removed, remove = list[str](), shutil.rmtree

    def look(path: Path, **options: Any) -> None:
        removed.append(Path(path).name)
        remove(path, **options)

    system.update([Document("d0", "bee honey")])
    monkeypatch.setattr(shutil, "rmtree", look)
    system.merge()
    assert any(name.endswith("-segment-0001") for name in removed)
    assert all(name.startswith(files.TEMPORARY_PREFIX) for name in removed if "segment" in name)


def test_a_search_is_tried_again_as_often_as_the_index_changes(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, run, tries = System.open(system.folder or ""), System._run, 0

    def fail(self: System, *args: object) -> object:
        nonlocal tries
        tries += 1
        if tries < 4:
            system.update([Document("d0", f"bee honey edition {tries}")])
            raise RankwellError("files are gone")
        return run(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(System, "_run", fail)
    assert "bee honey edition 3" in [answer.text for answer in opened.search("bee honey edition")]
    tries = 10
    monkeypatch.setattr(System, "_run", lambda *args: (_ for _ in ()).throw(RankwellError("a wrong query")))
    with pytest.raises(RankwellError, match="a wrong query"):
        replace(opened).search("bee")
