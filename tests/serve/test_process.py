"""The service as a process: how it starts, how it ends, and what it does not import."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from rankwell.corpus.records import Document
from rankwell.rank.defaults import UNFITTED
from rankwell.retrieve.index import Index

from ..conftest import Outcome
from .conftest import PATIENCE, START, Process, ask, opened, wait_until

if TYPE_CHECKING:
    from rankwell.serve.state import Sources

# As START, but says at its end what it has imported.
WITHOUT_TORCH = (
    f"import sys\ntry:\n    {START}\nfinally:\n    print('torch' in sys.modules, 'onnxruntime' in sys.modules)"
)
NAMES = "from pathlib import Path; from rankwell.models.checkpoints import names"
# The engine computes nothing while the file $HOLD exists.
HELD = """
import os, time
from rankwell.serve.engine import RequestEngine
compute = RequestEngine._compute
def held(self, engine, chunks):
    while os.path.exists(os.environ["HOLD"]):
        time.sleep(0.01)
    compute(self, engine, chunks)
RequestEngine._compute = held
"""
# A reload makes the file $RELOADING and then takes ten minutes.
RELOAD_SLOWLY = """
import os, time
from rankwell.serve import state
open_state = state.open_state
def reopen(sources, generation=1):
    if generation > 1:
        open(os.environ["RELOADING"], "w").close()
        time.sleep(600)
    return open_state(sources, generation)
state.open_state = reopen
"""
START_SLOWLY = "import time; from rankwell.serve import state as s; s.open_state = lambda own, n=1: time.sleep(600)\n"


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """While this file exists, a process of the code ``HELD`` computes nothing."""
    monkeypatch.setenv("HOLD", str(tmp_path / "hold"))
    return tmp_path / "hold"


def test_sigterm_finishes_what_has_begun_and_then_ends(
    process: Callable[..., Process], tiny_checkpoint: Path, hold: Path
) -> None:
    own = process("--model", str(tiny_checkpoint), "--set", "batch_tokens=64", code=HELD)
    own.ready()
    hold.touch()
    body = {"query": "bees", "texts": ["honey " * 60] * 8}
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(own.ask, "POST", "/rerank", body) for _ in range(2)]
        wait_until(lambda: own.queued() == 2 * 8 * 64)  # [CLS] bees [SEP] honey × 60 [SEP], eight times in both
        own.own.send_signal(signal.SIGTERM)
        wait_until(lambda: not own.answers())
        assert not any(one.done() for one in asked)
        hold.unlink()
        assert [one.result(PATIENCE)[0] for one in asked] == [200, 200]
    _, err = own.own.communicate(timeout=PATIENCE)
    assert own.own.returncode == 0, err
    assert '"event": "draining"' in err
    assert "honey" not in err


def test_what_the_drain_cannot_wait_for_is_told_so(
    process: Callable[..., Process], tiny_checkpoint: Path, hold: Path
) -> None:
    options = ("--model", str(tiny_checkpoint), "--set", "batch_tokens=64", "--set", "drain_seconds=1")
    own = process(*options, code=HELD)
    own.ready()
    hold.touch()
    body = {"query": "bees", "texts": ["honey " * 60] * 60}
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(own.ask, "POST", "/rerank", body) for _ in range(2)]
        wait_until(lambda: own.queued() == 2 * 60 * 64)
        own.own.send_signal(signal.SIGTERM)
        answers = [one.result(PATIENCE) for one in asked]
        hold.unlink()
    assert [(status, found["error_type"]) for status, found in answers] == [(503, "draining")] * 2
    _, err = own.own.communicate(timeout=PATIENCE)
    assert own.own.returncode == 0, err
    assert "Traceback" not in err
    lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert [line["status"] for line in lines if line["event"] == "request"] == [503, 503]


@pytest.mark.parametrize("signals", [1, 2])
def test_sigterm_does_not_wait_for_a_reload(
    process: Callable[..., Process], served_index: Path, signals: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELOADING", str(tmp_path / "reloading"))
    own = process(str(served_index), "--model", "none", code=RELOAD_SLOWLY)
    own.ready()
    own.own.send_signal(signal.SIGHUP)
    wait_until((tmp_path / "reloading").exists)
    for _ in range(signals - 1):
        own.own.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    assert own.end(signal.SIGTERM)[0] == 0  # long before the reload is done


def test_a_signal_during_the_start_leaves_nothing_behind(
    process: Callable[..., Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    own = process(code=f"{NAMES}; names.SHIPPED = Path('nowhere')\n{START_SLOWLY}")
    wait_until(lambda: own.own.poll() is not None or bool(list(tmp_path.glob("rankwell-sample-*/sample"))))
    assert own.own.poll() is None, own.own.communicate()
    assert own.end(signal.SIGTERM)[0] == 128 + signal.SIGTERM
    assert list(tmp_path.glob("rankwell-sample-*")) == []


def test_names_that_requests_may_be_sent_to(process: Callable[..., Process], served_index: Path) -> None:
    own = process(str(served_index), "--model", "none", "--allow-host", "search.example")
    open_to_all = process(str(served_index), "--model", "none", "--host", "0.0.0.0")
    for one, taken in ((own, {"search.example"}), (open_to_all, {"search.example", "evil.example"})):
        one.ready()  # as 127.0.0.1
        for host in ("search.example", "evil.example"):
            status, told = one.ask("GET", "/ready", Host=f"{host}:{one.port}")
            assert (status, told.get("error_type")) == ((200, None) if host in taken else (421, "misdirected"))


def test_it_says_its_port_when_clients_can_connect_and_logs_json_alone(
    process: Callable[..., Process], served_index: Path
) -> None:
    own = process(str(served_index), "--model", "none", port=0)
    lines: list[str] = []
    assert own.own.stderr is not None
    for line in own.own.stderr:
        lines.append(line)
        if "serving at" in line:
            break
    own.port = int(lines[-1].split("http://127.0.0.1:")[1])
    connection = HTTPConnection("127.0.0.1", own.port, timeout=PATIENCE)
    connection.request("GET", "/health", headers={"Connection": "Upgrade", "Upgrade": "websocket"})
    assert connection.getresponse().status == 200
    connection.close()
    own.own.send_signal(signal.SIGTERM)
    lines += own.own.stderr
    events = [json.loads(line)["event"] for line in lines if not line.startswith("rankwell: ")]
    assert "Unsupported upgrade request." in events


def test_kill_9_under_load_and_restart(
    process: Callable[..., Process], served_index: Path, tiny_checkpoint: Path
) -> None:
    # Exactly: in 16 bits the batches that requests share show in more than the last digits.
    options = (str(served_index), "--model", str(tiny_checkpoint), "--precision", "fp32")
    queries = ["bees in winter", "a fish in the river", "honey", "a bank in london"]

    def search(own: Process, query: str) -> dict[str, float]:
        status, found = own.ask("POST", "/search", {"query": query, "k": 100, "depth": 100})
        assert status == 200
        return {f"{part} {row['id']}": row["score"] for part in ("first", "results") for row in found[part]}

    first = process(*options)
    first.ready()
    # Requests share batches, and so a score's last digits.
    expected = {query: pytest.approx(search(first, query), abs=1e-4) for query in queries}

    answered: list[str] = []

    def until_it_is_gone(query: str) -> None:
        while True:
            try:
                found = search(first, query)
            except (OSError, HTTPException):
                return
            assert found == expected[query]
            answered.append(query)

    with ThreadPoolExecutor(len(queries)) as pool:
        asked = [pool.submit(until_it_is_gone, query) for query in queries]
        wait_until(lambda: set(answered) == set(queries))
        assert first.end(signal.SIGKILL)[0] == -signal.SIGKILL
        for one in asked:
            one.result(PATIENCE)
    second = process(*options)
    second.ready()
    assert all(search(second, query) == expected[query] for query in queries)
    assert second.end(signal.SIGTERM)[0] == 0


def test_sighup_opens_a_replaced_index(process: Callable[..., Process], tmp_path: Path) -> None:
    Index.build([Document("old", "bees in a hive")], tmp_path / "index")
    own = process(str(tmp_path / "index"), "--model", "none")
    own.ready()
    Index.build([Document("new", "bees on a flower")], tmp_path / "index", overwrite=True)
    found = own.ask("POST", "/search", {"query": "bees"})[1]
    assert (found["generation"], found["results"][0]["text"]) == (1, "bees in a hive")
    own.own.send_signal(signal.SIGHUP)
    wait_until(lambda: own.ask("GET", "/ready")[1]["generation"] == 2)
    found = own.ask("POST", "/search", {"query": "bees"})[1]
    assert (found["generation"], [row["id"] for row in found["results"]]) == (2, ["new"])
    (tmp_path / "index" / "index.json").write_text("broken")
    own.own.send_signal(signal.SIGHUP)
    wait_until(lambda: 'rankwell_reloads_total{outcome="failed"} 1.0' in ask(own.port, "GET", "/metrics")[1])
    assert [row["id"] for row in own.ask("POST", "/search", {"query": "bees"})[1]["results"]] == ["new"]
    status, _, lines = own.end(signal.SIGTERM)
    assert status == 0
    assert [line["outcome"] for line in lines if line["event"] == "reload"] == ["done", "failed"]


def test_without_arguments_the_sample_is_served(process: Callable[..., Process]) -> None:
    own = process(code=f"{NAMES}; names.SHIPPED = Path('nowhere')\n")
    ready = own.ready()
    assert ready["index"]["name"] == "sample"
    assert ready["index"]["documents"] > 100
    assert ready["models"] == []
    assert own.ask("POST", "/search", {"query": "what kind of fish is bogue", "stages": "bm25"})[1]["results"]
    assert own.end(signal.SIGTERM)[0] == 0


@pytest.mark.parametrize("options", [(), ("--hybrid", "0.7"), ("--model", "rankwell-mini")])
def test_the_default_model_finds_and_re_ranks_if_asked_to(
    options: tuple[str, ...],
    rankwell: Callable[..., Outcome],
    tiny_twin: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the command opens, in this process."""
    asked = "--model" in options

    def served(sources: Sources, *rest: object) -> object:
        with opened(sources) as client:
            ready = client.get("/ready").json()
            assert (ready["models"], ready["reranks"]) == ([tiny_twin.name], asked)
            assert ready["hybrid"] == (None if asked else UNFITTED.share)
            query = {"query": "what kind of fish is bogue"}
            found = client.post("/search", json=query).json()
            assert found["stages"] == ("both" if asked else "hybrid")
            reranked = client.post("/search", json={**query, "stages": "rerank", "depth": 5}).json()
            assert len(reranked["results"]) == 5
            assert client.post("/rerank", json={"query": "bees", "documents": ["bees", "tea"]}).status_code == 200
        return SimpleNamespace(unfinished=False)

    index = Index.build((Document(f"d{n}", f"bogue {n}") for n in range(20)), tmp_path / "index")
    monkeypatch.setattr("rankwell.models.checkpoints.names.SHIPPED", tiny_twin)
    monkeypatch.setattr("rankwell.serve.server.serve", served)
    where = (str(index.folder),) if options else ()  # or the sample
    done = rankwell("serve", *where, *options, "--port", "0")
    assert done.code == 0, done.err


def test_an_exported_model_is_served_without_torch(
    process: Callable[..., Process], tiny_checkpoint: Path, served_index: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    from rankwell.models.checkpoints.export import export_model
    from rankwell.rank.ranker import Ranker

    export_model(tiny_checkpoint, tmp_path / "exported")
    own = process(*("--model", str(tmp_path / "exported"), "--backend", "onnx", str(served_index)), code=WITHOUT_TORCH)
    own.ready()
    texts = ["bees keep warm", "a bogus river", "tea"]
    status, rows = own.ask("POST", "/rerank", {"query": "bees", "texts": texts, "raw_scores": True})
    expected = Ranker.from_pretrained(tiny_checkpoint).rank("bees", texts)
    assert status == 200
    assert [row["index"] for row in rows] == [row["corpus_id"] for row in expected]
    assert [row["score"] for row in rows] == pytest.approx([row["score"] for row in expected], abs=1e-4)
    assert own.ask("POST", "/search", {"query": "bees"})[1]["results"]
    assert own.ask("POST", "/explain", {"query": "bees", "id": "d1"})[0] == 409
    status, out, _ = own.end(signal.SIGTERM)
    assert (status, out.split()) == (0, ["False", "True"])


def test_an_index_alone_is_served_with_the_default_model_if_it_has_texts(
    tiny_twin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rankwell.models.checkpoints import names
    from rankwell.serve.state import default_models

    Index.build([Document("a", "bees in a hive")], tmp_path / "index")
    Index.build([Document("a", "bees in a hive")], tmp_path / "bare", store=False)
    monkeypatch.setattr(names, "SHIPPED", tiny_twin)
    assert default_models(tmp_path / "index", "torch") == default_models(None, "torch") == ("rankwell-mini",)
    assert default_models(tmp_path / "bare", "torch") == default_models(tmp_path / "index", "onnx") == ()
    monkeypatch.setattr(names, "SHIPPED", tmp_path / "nowhere")
    assert default_models(tmp_path / "index", "torch") == ()
