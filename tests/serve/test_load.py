"""A real socket, many clients: nobody gets another's scores, and what cannot be served is refused quickly."""

from __future__ import annotations

import json
import random
import shutil
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwell.corpus.records import Document
from rankwell.rank.ranker import Ranker
from rankwell.retrieve.index import Index
from rankwell.serve.engine import Batching
from rankwell.serve.formats import Limits
from rankwell.serve.state import Sources

from .conftest import wait_until

WORDS = "bees honey hive winter warm river fish bogue bank money insurance numeric running city london".split()
QUERY = "how do bees keep warm in winter"


def texts(seed: int, count: int) -> list[str]:
    own = random.Random(seed)
    return [" ".join(own.choices(WORDS, k=own.randint(1, 60))) for _ in range(count)]


def test_64_clients_get_their_own_scores(live: Callable[..., Any], tiny_checkpoint: Path) -> None:
    service = live(batching=Batching(wait_ms=5))
    ranker = Ranker.from_pretrained(tiny_checkpoint)
    requests = [(f"query {n} {WORDS[n % len(WORDS)]}", texts(n, 1 + n % 12)) for n in range(192)]
    expected = [ranker.predict([(query, text) for text in own]) for query, own in requests]

    def ask(request: tuple[str, list[str]]) -> tuple[int, Any, Any]:
        query, own = request
        return service.post("/rerank", {"query": query, "texts": own, "raw_scores": True, "return_text": True})

    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(ask, requests))
    assert {status for status, _, _ in answers} == {200}
    for (_, own), (_, rows, _), scores in zip(requests, answers, expected, strict=True):
        assert [own[row["index"]] for row in rows] == [row["text"] for row in rows]
        np.testing.assert_allclose([row["score"] for row in rows], [scores[row["index"]] for row in rows], atol=1e-6)
    figures = service.service.metrics.text().decode()
    shared = float(figures.split('rankwell_batch_requests_bucket{le="1.0"} ')[1].split("\n")[0])
    total = float(figures.split("rankwell_batch_requests_count ")[1].split("\n")[0])
    assert shared < total  # some batches held more than one request
    assert service.service.engine.queued == 0


def test_a_full_queue_refuses_at_once_and_recovers(live: Callable[..., Any], hold_back: Any) -> None:
    service = live(batching=Batching(queue_tokens=600))
    engine = hold_back(service.service)
    body = {"query": QUERY, "texts": ["bees " * 60] * 4}
    with ThreadPoolExecutor(12) as pool:
        posted = [pool.submit(service.post, "/rerank", body) for _ in range(12)]
        # Each request takes more than half of the queue, and the model computes nothing until the others are answered.
        wait_until(lambda: sum(one.done() for one in posted) == 11)
        refused = [one.result() for one in posted if one.done()]
        engine.gate.set()
        answers = [one.result() for one in posted]
    assert sorted(status for status, *_ in answers) == [200] + [429] * 11
    for status, found, headers in refused:
        assert (status, found["error_type"]) == (429, "overloaded")
        assert int(headers["retry-after"]) >= 1
    wait_until(lambda: service.service.engine.queued == 0)
    assert service.post("/rerank", body)[0] == 200


def test_a_deadline_ends_a_request_and_takes_its_pairs_along(live: Callable[..., Any], hold_back: Any) -> None:
    service = live()
    engine = hold_back(service.service)
    body = {"query": QUERY, "texts": ["bees " * 200] * 40}
    status, found, _ = service.post("/rerank", {**body, "timeout_ms": 2000})  # the model computes nothing yet
    assert (status, found["error_type"]) == (504, "deadline")
    wait_until(lambda: service.service.engine.queued == 0)
    engine.gate.set()
    assert service.post("/rerank", {"query": QUERY, "texts": ["tea"]})[0] == 200
    assert engine.scored < 20  # the rest was dropped


def test_a_client_that_goes_takes_its_pairs_along(live: Callable[..., Any], hold_back: Any) -> None:
    service = live()
    engine = hold_back(service.service)
    connection = HTTPConnection("127.0.0.1", service.port, timeout=120)
    connection.request("POST", "/rerank", json.dumps({"query": QUERY, "texts": ["bees " * 200] * 60}))
    wait_until(lambda: engine.begun > 0)
    connection.close()
    wait_until(lambda: service.service.engine.queued == 0)
    engine.gate.set()
    assert b"rankwell_gone_total 1.0" in service.service.metrics.text()
    assert service.post("/rerank", {"query": QUERY, "texts": ["tea"]})[0] == 200
    assert engine.scored < 30


def test_bodies_that_break_off_or_lie_do_no_harm(live: Callable[..., Any]) -> None:
    service = live(limits=Limits(default_timeout_ms=1000))
    for raw in (
        b"POST /rerank HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{",
        b"POST /rerank HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n{",
        b"POST /rerank HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"nonsense\r\n\r\n",
        b"\x00" * 100,
    ):
        with socket.create_connection(("127.0.0.1", service.port), timeout=60) as one:
            one.sendall(raw)
            one.shutdown(socket.SHUT_WR)
            first = one.recv(100)
            assert first == b"" or first.startswith(b"HTTP/1.1 4"), first
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as one:  # a body that never comes
        one.sendall(b"POST /rerank HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{")
        assert one.recv(100).startswith(b"HTTP/1.1 408")
    assert service.post("/rerank", {"query": QUERY, "texts": ["tea"], "timeout_ms": 60_000})[0] == 200
    assert b"rankwell_body_bytes 0.0" in service.service.metrics.text()


def test_a_huge_body_is_refused_with_an_answer_its_sender_can_read(live: Callable[..., Any]) -> None:
    service = live(limits=Limits(body_bytes=1000))
    status, found, _ = service.post("/rerank", {"query": QUERY, "texts": ["b" * 20_000_000]})
    assert (status, found["error_type"]) == (413, "too_large")


def test_searches_beyond_those_that_may_wait_are_refused(
    live: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, held, real = live(limits=Limits(preparing=2)), threading.Lock(), Index.search

    def search(*arguments: Any, **options: Any) -> Any:
        with held:
            return real(*arguments, **options)

    monkeypatch.setattr(Index, "search", search)
    with ThreadPoolExecutor(8) as pool:
        with held:
            asked = [pool.submit(service.post, "/search", {"query": QUERY, "stages": "bm25"}) for _ in range(8)]
            wait_until(lambda: sum(one.done() for one in asked) == 6)
            early = [one.result()[0] for one in asked if one.done()]
        statuses = [one.result(60)[0] for one in asked]
    assert early == [429] * 6
    assert sorted(statuses) == [200] * 2 + [429] * 6


def test_a_reload_under_load_never_mixes_and_drops_nothing(
    live: Callable[..., Any], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Two collections with the same ids and two models: every answer is wholly of one of the two generations."""
    import torch
    from safetensors.torch import load_file, save_file

    model, index = tmp_path / "model", tmp_path / "index"
    shutil.copytree(tiny_checkpoint, model)
    old = [Document(f"d{n}", f"bees {text}") for n, text in enumerate(texts(1, 20))]
    new = [Document(f"d{n}", f"bees {text}") for n, text in enumerate(texts(2, 20))]
    Index.build(old, index)
    # On a busy machine, requests would be refused that could not be done in time.
    service = live(Sources(index, (str(model),)), Limits(default_timeout_ms=600_000), key="k")
    headers = {"Authorization": "Bearer k"}
    body = {"query": "bees in winter", "k": 20, "highlight": False}
    expected = {1: service.post("/search", body, **headers)[1]}
    answers: list[tuple[int, Any, Any]] = []
    stop = threading.Event()

    def keep_asking() -> None:
        while not stop.is_set():
            answers.append(service.post("/search", body, **headers))

    threads = [threading.Thread(target=keep_asking) for _ in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(answers) >= 6)
    weights = load_file(model / "model.safetensors")
    changed = {name: value * (1.5 if "classifier" in name else 1.0) for name, value in weights.items()}
    assert any(not torch.equal(changed[name], weights[name]) for name in weights)
    save_file(changed, tmp_path / "fresh", {"format": "pt"})
    (tmp_path / "fresh").rename(model / "model.safetensors")
    Index.build(new, index, overwrite=True)
    status, ready, _ = service.post("/reload", {}, **headers)
    wait_until(lambda: any(found.get("generation") == 2 for _, found, _ in list(answers)))
    stop.set()
    for thread in threads:
        thread.join(120)
    assert (status, ready["generation"]) == (200, 2)
    expected[2] = service.post("/search", body, **headers)[1]
    assert {status for status, *_ in answers} == {200}
    assert {found["generation"] for _, found, _ in answers} == {1, 2}
    wanted = [{row["id"]: row["text"] for row in expected[generation]["results"]} for generation in (1, 2)]
    assert wanted[0] != wanted[1]
    for _, found, _ in answers:
        right = expected[found["generation"]]
        assert [row["text"] for row in found["results"]] == [row["text"] for row in right["results"]]
        assert [row["id"] for row in found["results"]] == [row["id"] for row in right["results"]]
        np.testing.assert_allclose(
            [row["score"] for row in found["results"]], [row["score"] for row in right["results"]], atol=1e-6
        )


def test_a_reload_that_fails_keeps_the_old(live: Callable[..., Any], sources: Sources, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(sources.models[0], model)
    service = live(replace(sources, models=(str(model),)), key="k")
    headers = {"Authorization": "Bearer k"}
    body = {"query": QUERY, "texts": ["bees", "tea"]}
    before = service.post("/rerank", body, **headers)[1]
    (model / "model.safetensors").write_bytes(b"broken")
    status, found, _ = service.post("/reload", {}, **headers)
    assert (status, found["error_type"]) == (409, "reload_failed")
    assert service.post("/rerank", body, **headers)[1] == before
    assert service.service.state.generation == 1
