"""The service as a process: how it starts, how it ends, and what it does not import."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest

from rankwell.corpus.records import Document
from rankwell.retrieve.index import Index

START = "import typer; from rankwell.cli.serve import serve; typer.run(serve)"
# As START, but says at its end what it has imported.
WITHOUT_TORCH = (
    f"import sys\ntry:\n    {START}\nfinally:\n    print('torch' in sys.modules, 'onnxruntime' in sys.modules)"
)
NAMES = "from pathlib import Path; from rankwell.models.checkpoints import names"
SLOW = "import time; from rankwell.rank.engines import torch_engine as t; f = t.TorchEngine.logits\n"
SLOW += "t.TorchEngine.logits = lambda self, given: (time.sleep(0.2), f(self, given))[1]\n"


class Process:
    def __init__(self, code: str, *arguments: str):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.own = subprocess.Popen(
            [sys.executable, "-c", code, *arguments, "--port", str(self.port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> dict[str, Any]:
        end = time.monotonic() + 40
        while time.monotonic() < end:
            assert self.own.poll() is None, self.own.communicate()
            try:
                return self.ask("GET", "/ready")[1]
            except OSError:
                time.sleep(0.05)
        raise AssertionError("it did not start")

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def end(self, how: signal.Signals) -> tuple[int, str, list[dict[str, Any]]]:
        self.own.send_signal(how)
        out, err = self.own.communicate(timeout=30)
        return self.own.returncode, out, [json.loads(line) for line in err.splitlines() if line.startswith("{")]


@pytest.fixture
def process() -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(*arguments: str, code: str = START) -> Process:
        started.append(Process(code, *arguments))
        return started[-1]

    yield start
    for one in started:
        if one.own.poll() is None:
            os.kill(one.own.pid, signal.SIGKILL)
            one.own.communicate()


def test_sigterm_finishes_what_has_begun_and_then_ends(process: Callable[..., Process], tiny_checkpoint: Path) -> None:
    own = process("--model", str(tiny_checkpoint), "--batch-tokens", "64", code=SLOW + START)
    own.ready()
    body = {"query": "bees", "texts": ["honey " * 60] * 8}
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(own.ask, "POST", "/rerank", body) for _ in range(2)]
        time.sleep(0.5)
        assert not any(one.done() for one in asked)
        own.own.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        with pytest.raises(OSError):  # noqa: PT011  (refused or reset, as the system likes)
            own.ask("GET", "/ready")
        assert [one.result(20)[0] for one in asked] == [200, 200]
    _, err = own.own.communicate(timeout=20)
    assert own.own.returncode == 0, err
    assert '"event": "draining"' in err
    assert "honey" not in err


def test_kill_9_under_load_and_restart(
    process: Callable[..., Process], served_index: Path, tiny_checkpoint: Path
) -> None:
    # Exactly: in 16 bits the batches that requests share show in more than the last digits.
    options = ("--index", str(served_index), "--model", str(tiny_checkpoint), "--precision", "fp32")
    queries = ["bees in winter", "a fish in the river", "honey", "a bank in london"]

    def ask(own: Process, query: str) -> dict[str, float]:
        status, found = own.ask("POST", "/search", {"query": query, "k": 100})
        assert status == 200
        return {f"{stage} {row['docid']}": row["score"] for stage in ("bm25", "rerank") for row in found[stage]}

    first = process(*options)
    first.ready()
    # Requests share batches, and so a score's last digits.
    expected = {query: pytest.approx(ask(first, query), abs=1e-4) for query in queries}

    def until_it_is_gone(query: str) -> int:
        answers = 0
        while True:
            try:
                found = ask(first, query)
            except (OSError, HTTPException):
                return answers
            assert found == expected[query]
            answers += 1

    with ThreadPoolExecutor(len(queries)) as pool:
        asked = [pool.submit(until_it_is_gone, query) for query in queries]
        time.sleep(1.0)
        assert first.end(signal.SIGKILL)[0] == -signal.SIGKILL
        assert sum(one.result(30) for one in asked) > 0
    second = process(*options)
    second.ready()
    assert all(ask(second, query) == expected[query] for query in queries)
    assert second.end(signal.SIGTERM)[0] == 0


def test_sighup_opens_a_replaced_index(process: Callable[..., Process], tmp_path: Path) -> None:
    Index.build([Document("old", "bees in a hive")], tmp_path / "index")
    own = process("--index", str(tmp_path / "index"))
    own.ready()
    Index.build([Document("new", "bees on a flower")], tmp_path / "index", overwrite=True)
    found = own.ask("POST", "/search", {"query": "bees"})[1]
    assert (found["generation"], found["documents"]["old"]["text"]) == (1, "bees in a hive")
    own.own.send_signal(signal.SIGHUP)
    end = time.monotonic() + 10
    while own.ask("GET", "/ready")[1]["generation"] == 1:
        assert time.monotonic() < end
        time.sleep(0.05)
    found = own.ask("POST", "/search", {"query": "bees"})[1]
    assert (found["generation"], list(found["documents"])) == (2, ["new"])
    (tmp_path / "index" / "index.json").write_text("broken")
    own.own.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert list(own.ask("POST", "/search", {"query": "bees"})[1]["documents"]) == ["new"]
    status, _, lines = own.end(signal.SIGTERM)
    assert status == 0
    assert [line["outcome"] for line in lines if line["event"] == "reload"] == ["done", "failed"]


def test_without_arguments_the_sample_is_served(process: Callable[..., Process]) -> None:
    own = process(code=f"{NAMES}; names.SHIPPED = Path('nowhere')\n{START}")
    ready = own.ready()
    assert ready["index"]["name"] == "sample"
    assert ready["index"]["documents"] > 100
    assert ready["models"] == []
    assert own.ask("POST", "/search", {"query": "what kind of fish is bogue", "stages": "bm25"})[1]["bm25"]
    assert own.end(signal.SIGTERM)[0] == 0


def test_without_arguments_the_default_model_is_served_with_it(
    process: Callable[..., Process], tiny_checkpoint: Path
) -> None:
    shipped = f"names.SHIPPED = Path({str(tiny_checkpoint)!r})"
    own = process(code=f"{NAMES}; {shipped}\n{START}")
    assert own.ready()["models"] == [tiny_checkpoint.name]
    found = own.ask("POST", "/search", {"query": "what kind of fish is bogue", "depth": 5})[1]
    assert len(found["rerank"]) == 5
    assert own.end(signal.SIGTERM)[0] == 0


def test_an_exported_model_is_served_without_torch(
    process: Callable[..., Process], tiny_checkpoint: Path, served_index: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    from rankwell.models.checkpoints.export import export_model
    from rankwell.rank.ranker import Ranker

    export_model(tiny_checkpoint, tmp_path / "exported", "onnx", "fp32")
    own = process(
        *("--model", str(tmp_path / "exported"), "--backend", "onnx", "--index", str(served_index)), code=WITHOUT_TORCH
    )
    own.ready()
    texts = ["bees keep warm", "a bogus river", "tea"]
    status, rows = own.ask("POST", "/rerank", {"query": "bees", "texts": texts, "raw_scores": True})
    expected = Ranker.from_pretrained(tiny_checkpoint).rank("bees", texts)
    assert status == 200
    assert [row["index"] for row in rows] == [row["corpus_id"] for row in expected]
    assert [row["score"] for row in rows] == pytest.approx([row["score"] for row in expected], abs=1e-4)
    assert own.ask("POST", "/search", {"query": "bees"})[1]["rerank"]
    assert own.ask("POST", "/explain", {"query": "bees", "docid": "d1"})[0] == 409
    status, out, _ = own.end(signal.SIGTERM)
    assert (status, out.split()) == (0, ["False", "True"])
