"""A tiny service: an index of made-up passages and the tiny model."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
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
    from fastapi.testclient import TestClient
    from starlette.types import ASGIApp

    from rankwell.serve.formats import Limits
    from rankwell.serve.service import Service
    from rankwell.serve.state import Sources

PATIENCE = 120  # seconds that anything may take on a busy machine
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


@pytest.fixture(scope="session", autouse=True)
def _a_fast_machine() -> Iterator[None]:
    """However busy this machine is, a service in this process re-ranks as many candidates as on any other run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rankwell.serve.state.reading_time", lambda model: (2048, 0.01))
        yield


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


def opened(sources: Sources, limits: Limits | None = None, **options: Any) -> TestClient:
    """A client of a service in this process; use it in a ``with`` statement."""
    from fastapi.testclient import TestClient

    from rankwell.serve.api import create_app
    from rankwell.serve.service import Service

    return TestClient(create_app(Service(sources, limits), **options))


def ask(port: int, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str, dict[str, str]]:
    """The status, text and headers of an answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), {k.lower(): v for k, v in answer.getheaders()}
    finally:
        connection.close()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, not for ever."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


class Live:
    """A service behind a real socket. ``around`` wraps its app."""

    def __init__(self, service: Service, around: Callable[[ASGIApp], ASGIApp] = lambda app: app, **options: Any):
        import uvicorn

        from rankwell.serve.api import create_app

        self.service = service
        app = around(create_app(service, **options))
        self.server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False))
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()
            time.sleep(0.01)
        self.port: int = self.server.servers[0].sockets[0].getsockname()[1]

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any, dict[str, str]]:
        status, text, answered = ask(self.port, "POST", path, body, **headers)
        return status, json.loads(text), answered

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(120)
        assert not self.thread.is_alive()


@pytest.fixture
def live(sources: Sources) -> Iterator[Callable[..., Live]]:
    """Starts services: ``live(sources, limits, batching, **options_of_the_app)``; all of them are optional."""
    from rankwell.serve.service import Service

    started: list[Live] = []

    def start(served: Sources = sources, limits: Any = None, batching: Any = None, **app: Any) -> Live:
        started.append(Live(Service(served, limits, batching), **app))
        return started[-1]

    yield start
    for service in started:
        service.stop()


START = "import typer; from rankwell.cli.serve import serve; typer.run(serve)"


class Process:
    """``rankwell serve`` in a process of its own, after some ``code``."""

    def __init__(self, code: str, *arguments: str, port: int | None = None):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1] if port is None else port
        command = [sys.executable, "-c", code, *arguments, "--port", str(self.port)]
        self.own = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ready(self) -> dict[str, Any]:
        wait_until(lambda: self.own.poll() is not None or self.answers())
        assert self.own.poll() is None, self.own.communicate()
        return self.ask("GET", "/ready")[1]

    def queued(self) -> int:
        tokens: int = self.ask("GET", "/ready")[1]["queue"]["tokens"]
        return tokens

    def answers(self) -> bool:
        try:
            return bool(self.ask("GET", "/ready"))
        except OSError:
            return False

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        status, text, _ = ask(self.port, method, path, body, **headers)
        return status, json.loads(text)

    def end(self, how: signal.Signals) -> tuple[int, str, list[dict[str, Any]]]:
        """The exit code, what was printed, and the lines of the log."""
        self.own.send_signal(how)
        out, err = self.own.communicate(timeout=PATIENCE)
        return self.own.returncode, out, [json.loads(line) for line in err.splitlines() if line.startswith("{")]


@pytest.fixture
def process() -> Iterator[Callable[..., Process]]:
    """Starts processes; those that still run at the end are killed."""
    started: list[Process] = []

    def start(*arguments: str, code: str = "", port: int | None = None) -> Process:
        started.append(Process(code if START in code else code + START, *arguments, port=port))
        return started[-1]

    yield start
    for service in started:
        if service.own.poll() is None:
            service.own.kill()
            service.own.communicate()
