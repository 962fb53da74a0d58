"""A system that takes the place of another one, in one rename, is served without dropping a request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("torch")
from rankwell.core.errors import RankwellError
from rankwell.core.files import exchange
from rankwell.corpus.records import Document
from rankwell.models.devices import Computing
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.system import System
from rankwell.retrieve.index import Index
from rankwell.serve.state import Holder, Sources

from .conftest import Live, passages, wait_until


def make_system(folder: Path, name: str, encoder: Path) -> Path:
    """A hybrid system whose documents have ids that begin with its name."""
    documents = [Document(f"{name}{n}", text) for n, text in enumerate(passages(60, seed=ord(name)))]
    index = Index.build(documents, folder.with_name(f"{folder.name}-index"))
    System(FirstStage(index, encoder=encoder, share=0.5)).save(folder)
    return folder


@pytest.fixture
def systems(tmp_path: Path, tiny_bi_encoder: Path) -> tuple[Path, Path]:
    return make_system(tmp_path / "old", "o", tiny_bi_encoder), make_system(tmp_path / "new", "n", tiny_bi_encoder)


def test_no_request_is_dropped_while_systems_change_places(
    systems: tuple[Path, Path], live: Callable[..., Live]
) -> None:
    old, new = systems
    service = live(Sources(old, computing=Computing("cpu", "fp32"), is_system=True))
    statuses, mixed, stop = list[int](), list[Any](), threading.Event()

    def ask() -> None:
        while not stop.is_set():
            status, answer, _ = service.post("/search", {"query": "bees honey river", "k": 60, "depth": 60})
            statuses.append(status)
            names = {row["id"][0] for row in answer.get("results", [])}
            texts = {row["id"]: row["text"] for row in answer.get("results", [])}
            if len(names) != 1 or texts[f"{min(names)}1"] != passages(60, seed=ord(min(names)))[1]:
                mixed.append(answer)

    def serves(name: str) -> bool:
        answer = service.post("/search", {"query": "bees"})[1]
        return bool(answer["results"][0]["id"].startswith(name))

    asking = [threading.Thread(target=ask) for _ in range(3)]
    for thread in asking:
        thread.start()
    try:
        for name in ("n", "o", "n"):
            exchange(new, old)
            wait_until(lambda name=name: serves(name))  # type: ignore[misc]
            done = len(statuses)
            wait_until(lambda done=done: len(statuses) > done + 10)  # type: ignore[misc]
    finally:
        stop.set()
        for thread in asking:
            thread.join()
    assert set(statuses) == {200}
    assert mixed == []
    assert service.service.state.generation == 4


def test_until_it_is_opened_nothing_is_written_to_the_new_system(systems: tuple[Path, Path]) -> None:
    old, new = systems
    holder = Holder(Sources(old, computing=Computing("cpu", "fp32"), is_system=True))
    state = holder.state
    exchange(new, old)
    assert holder.replaced
    assert holder.refresh() is state
    with pytest.raises(RankwellError, match="being replaced"):
        holder.write([[Document("x", "tea")]])
    fresh = holder.reload().result()
    assert not holder.replaced
    assert {answer.docid[0] for answer in fresh.system.search("bees")} == {"n"}  # type: ignore[union-attr]
    holder.write([[Document("x", "tea")]])
    assert "x" in System.open(old).index
    assert "x" not in System.open(new).index


def test_a_system_that_cannot_be_opened_leaves_the_old_one_in_use(
    systems: tuple[Path, Path], live: Callable[..., Live]
) -> None:
    old, new = systems
    service = live(Sources(old, computing=Computing("cpu", "fp32"), is_system=True))
    (new / "first-stage.json").write_text("{}")
    exchange(new, old)
    failed = service.service.metrics.reloads.labels("failed")
    wait_until(lambda: failed._value.get() == 1)
    assert service.post("/search", {"query": "bees"})[1]["results"][0]["id"].startswith("o")
    (old / "system.json").rename(old / "system.json.away")  # no system at all, for a while
    assert service.post("/search", {"query": "bees"})[0] == 200


def test_what_cannot_be_exchanged_is_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    with pytest.raises(RankwellError, match=r"cannot replace .*two in one step: no such file"):
        exchange(tmp_path / "one", tmp_path / "two")
