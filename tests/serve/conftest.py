"""A tiny service: an index of made-up passages and the tiny model."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rankwell.corpus.records import Document
from rankwell.inputs.batching import Sequences
from rankwell.rank.engines.engine import Engine, Logits
from rankwell.retrieve.index import Index

if TYPE_CHECKING:
    from rankwell.serve.service import Service
    from rankwell.serve.state import Sources

WORDS = (
    "bees honey hive winter warm river fish bogue bogus bank money insurance numeric running café city london".split()
)


def passages(count: int, seed: int = 1, words: int = 20) -> list[str]:
    own = random.Random(seed)
    return [" ".join(own.choices(WORDS, k=own.randint(3, words))).capitalize() + "." for _ in range(count)]


@pytest.fixture(scope="session")
def served_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve") / "passages"
    Index.build((Document(f"d{n}", text) for n, text in enumerate(passages(80))), folder)
    return folder


@pytest.fixture(scope="session")
def sources(served_index: Path, tiny_checkpoint: Path) -> Sources:
    from rankwell.serve.state import Sources

    return Sources(served_index, (str(tiny_checkpoint),))


class GatedEngine(Engine):
    """An engine that computes only while ``gate`` is set, and counts its batches and sequences."""

    tokens_at_once = 256

    def __init__(self, inner: Engine):
        self.inner, self.gate, self.begun, self.scored = inner, threading.Event(), 0, 0

    def logits(self, sequences: Sequences) -> Logits:
        self.begun += 1
        assert self.gate.wait(120)
        self.scored += len(sequences)
        return self.inner.logits(sequences)


@pytest.fixture
def hold_back() -> Iterator[Callable[[Service], GatedEngine]]:
    """Makes a service's model wait until the returned engine's gate is set."""
    engines: list[GatedEngine] = []

    def hold(service: Service) -> GatedEngine:
        model = service.state.default
        assert model is not None
        engines.append(GatedEngine(model.ranker.engine))
        model.ranker.engine = engines[-1]
        return engines[-1]

    yield hold
    for engine in engines:
        engine.gate.set()


class Live:
    """A service behind a real socket."""

    def __init__(self, service: Service, **options: Any):
        import uvicorn

        from rankwell.serve.api import create_app

        self.service = service
        config = uvicorn.Config(create_app(service, **options), port=0, log_config=None, access_log=False)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()
            time.sleep(0.01)
        self.port: int = self.server.servers[0].sockets[0].getsockname()[1]

    def connect(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=120)

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any, dict[str, str]]:
        connection = self.connect()
        try:
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read()), {k.lower(): v for k, v in answer.getheaders()}
        finally:
            connection.close()

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(120)
        assert not self.thread.is_alive()


@pytest.fixture
def live(sources: Sources) -> Iterator[Callable[..., Live]]:
    """Starts services: ``live(sources, limits, batching, **options_of_the_app)``; all of them are optional."""
    from rankwell.serve.service import Service

    started: list[Live] = []

    def start(own: Sources = sources, limits: Any = None, batching: Any = None, **app: Any) -> Live:
        started.append(Live(Service(own, limits, batching), **app))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def wait_for() -> Callable[..., None]:
    """Waits for a condition, not for ever."""

    def wait(condition: Callable[[], bool], seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not happen in time"
            time.sleep(0.01)

    return wait
