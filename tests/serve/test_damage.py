"""Files that are damaged while they are served: found, named in the log, counted, and never shown to clients."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from rankwell.serve import service as module
from rankwell.serve.api import create_app
from rankwell.serve.bodies import JsonLines
from rankwell.serve.service import Service
from rankwell.serve.state import Sources

from .conftest import wait_until


@pytest.fixture
def index(served_index: Path, tmp_path: Path) -> Path:
    """An index that a test may damage."""
    return Path(shutil.copytree(served_index, tmp_path / "copy"))


def flip(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def logged(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """What the log says of damage."""
    return [record.about["damaged"] for record in caplog.records if "damaged" in getattr(record, "about", {})]


def test_damage_that_a_request_meets_is_named_in_the_log_and_not_to_the_client(
    index: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(Sources(index))
    with TestClient(create_app(service, page=None)) as client, caplog.at_level("INFO", logger="rankwell.serve"):
        (damaged,) = index.rglob("texts.npy")
        damaged.write_bytes(damaged.read_bytes()[:-1])
        answer = client.post("/search", json={"query": "bees honey"})
    assert (answer.status_code, answer.json()["error_type"]) == (500, "damaged")
    assert "the index is damaged" in answer.json()["message"]
    assert str(index) not in answer.text
    assert damaged.name not in answer.text
    assert any(str(damaged) in line for line in logged(caplog))
    assert b"rankwell_damaged_total 1.0" in service.metrics.text()
    (line,) = [JsonLines().format(record) for record in caplog.records if "damaged" in getattr(record, "about", {})]
    assert damaged.name in line


def test_damage_that_no_request_meets_is_found(
    index: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SCRUB_RATE", 1 << 40)
    monkeypatch.setattr(module, "SCRUB_PAUSE", 0.01)
    service = Service(Sources(index))
    with TestClient(create_app(service, page=None)), caplog.at_level("INFO", logger="rankwell.serve"):
        (damaged,) = index.rglob("texts.npy")
        flip(damaged)
        wait_until(lambda: b"rankwell_damaged_total 0.0" not in service.metrics.text())
        assert str(damaged) in logged(caplog)[0]
    wait_until(lambda: not service._scrubber.is_alive())


def test_an_index_that_another_one_replaces_is_not_damaged(
    index: Path, served_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SCRUB_RATE", 1 << 40)
    monkeypatch.setattr(module, "SCRUB_PAUSE", 0.0)
    service = Service(Sources(index))
    with TestClient(create_app(service, page=None)):
        for number in range(20):
            shutil.copytree(served_index, fresh := index.with_name(f"fresh-{number}"))
            index.rename(index.with_name(f"old-{number}"))
            fresh.rename(index)
    assert b"rankwell_damaged_total 0.0" in service.metrics.text()


def test_the_speed_of_a_model_is_known_before_the_first_request(sources: Sources) -> None:
    service = Service(sources)
    tokens, seconds = service.state.default.warm_up  # type: ignore[union-attr]
    assert tokens > 500
    assert service.engine.seconds_per_token == pytest.approx(seconds / tokens)
