"""Connections that say nothing are closed, and never keep others out."""

from __future__ import annotations

import json
import logging
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import pytest

from rankwell.serve.bodies import JsonLines, RateLimit
from rankwell.serve.listening import Connections, is_begun

from .conftest import PATIENCE, Process

FEW_DESCRIPTORS = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))\n"
PATIENT = "import rankwell.serve.listening as c; c.HEADER_SECONDS = 600\n"
SHARED = "import rankwell.serve.listening as c; c.Connections.has_share = lambda self, address: True\n"
QUICK = "import rankwell.serve.listening as c; c.HEADER_SECONDS = 0.5\n"


@pytest.fixture
def start(process: Callable[..., Process], served_index: Path) -> Callable[[str], Process]:
    """Start a service of the index alone, after some code."""

    def run(code: str) -> Process:
        service = process(str(served_index), "--model", "none", code=code)
        service.ready()
        return service

    return run


def test_silent_connections_do_not_use_up_the_descriptors(start: Callable[[str], Process]) -> None:
    service = start(FEW_DESCRIPTORS)
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=60))
        for _ in range(5):
            assert service.ask("POST", "/search", {"query": "bees", "stages": "bm25"})[0] == 200
    service.own.terminate()
    log = service.own.communicate(timeout=PATIENCE)[1].splitlines()
    assert len(log) < 100
    assert all(json.loads(line) for line in log if line.startswith("{"))
    assert not [line for line in log if "Traceback" in line]


def test_slow_bodies_leave_searches_answered(start: Callable[[str], Process]) -> None:
    service = start(FEW_DESCRIPTORS + PATIENT)
    head = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{"
    with ExitStack() as stack:
        for _ in range(3):
            for _ in range(100):
                slow = stack.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=60))
                with suppress(ConnectionError):
                    slow.sendall(head)
            assert service.ask("POST", "/search", {"query": "bees", "stages": "bm25"})[0] == 200


def test_a_body_must_come_at_a_least_rate(start: Callable[[str], Process]) -> None:
    code = "import rankwell.serve.bodies as r; r.SLOW_SECONDS = 0.5; r.LEAST_RATE = 10\n"
    port = start(QUICK + code).port
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sender:
        begin = time.monotonic()
        sender.sendall(b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n")
        sender.sendall(b" " * 10)
        assert sender.recv(100).startswith(b"HTTP/1.1 408")
        assert 0.5 < time.monotonic() - begin < 25  # the deadline of every body is 30 s
    body = json.dumps({"query": "bees", "stages": "bm25"}).encode().ljust(300)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sender:  # slower than a body usually is
        sender.sendall(b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300\r\n\r\n")
        for begin_at in range(0, 300, 100):
            sender.sendall(body[begin_at : begin_at + 100])
            time.sleep(0.3)
        assert sender.recv(100).startswith(b"HTTP/1.1 200")


def test_a_refused_body_must_end_in_time(start: Callable[[str], Process]) -> None:
    with socket.create_connection(("127.0.0.1", start(QUICK).port), timeout=60) as sender:
        sender.sendall(b"POST /search HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 5000\r\n\r\n")
        assert sender.recv(100).startswith(b"HTTP/1.1 421")
        with suppress(ConnectionError):
            while sender.recv(1000):
                sender.sendall(b" ")


@pytest.mark.skipif(sys.platform != "linux", reason="needs a second address of this machine")
def test_many_connections_of_one_client_leave_those_of_another_alone(start: Callable[[str], Process]) -> None:
    port = start(FEW_DESCRIPTORS + PATIENT + SHARED).port
    with ExitStack() as stack:
        connect = partial(socket.create_connection, ("127.0.0.1", port), timeout=60)
        other = stack.enter_context(connect(source_address=("127.0.0.2", 0)))
        for _ in range(300):
            stack.enter_context(connect())
        other.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert other.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("sent", [b"", b"POST /search HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_a_connection_must_send_its_headers_in_time(start: Callable[[str], Process], sent: bytes) -> None:
    port = start(QUICK).port
    with socket.create_connection(("127.0.0.1", port), timeout=60) as silent:
        silent.sendall(sent)
        with suppress(ConnectionResetError):
            assert silent.recv(1) == b""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    for _ in range(2):  # a connection that is used stays open beyond the deadline
        connection.request("GET", "/health")
        assert connection.getresponse().read() is not None
        time.sleep(0.7)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b""),
        (b"POST / HTTP/1.1\r\ncontent-LENGTH:  4 \r\n\r\n", b"abcd"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"4\r\nabcd\r\n0\r\n\r\n"),
        (b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n", b""),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", b"a" * 20_000),
    ],
)
def test_a_request_has_begun_when_all_of_it_or_much_of_it_has_come(head: bytes, body: bytes) -> None:
    sent = head + body
    begun = [is_begun(bytearray(sent[:size])) for size in range(len(sent) + 1)]
    assert begun.index(True) == min(len(sent), 16 << 10)
    assert all(begun[begun.index(True) :])


def test_requests_in_pieces_are_answered_among_many_that_do_not_end(start: Callable[[str], Process]) -> None:
    port = start(PATIENT).port
    body = json.dumps({"query": "bees", "stages": "bm25"}).encode()
    request = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with ExitStack() as stack:
        before = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        before.sendall(request[:40])  # this one has begun before there are many
        for _ in range(100):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            slow.sendall(request[:-1])
        one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        for piece in (request[:30], request[30:90], request[90:] + request[:50], request[50:]):
            one.sendall(piece)
            time.sleep(0.05)
        before.sendall(request[40:])
        for asked, answers in ((before, 1), (one, 2)):
            received = b""
            while received.count(b"HTTP/1.1 200") < answers:
                more = asked.recv(1 << 16)
                assert more, received
                received += more


class Fake:
    def __init__(self, address: str):
        self.address, self.aborted = address, False

    def abort(self) -> None:
        self.aborted = True


def test_the_oldest_silent_connection_makes_room() -> None:
    pool = Connections(most=20, backlog=8)
    made = [Fake(str(n % 4)) for n in range(21)]
    for connection in made[:20]:
        pool.add(connection)  # type: ignore[arg-type]
    pool.silent.pop(made[0])  # type: ignore[call-overload]
    pool.add(made[20])  # type: ignore[arg-type]
    assert [n for n, connection in enumerate(made) if connection.aborted] == [1]


def test_one_address_has_half_of_the_connections() -> None:
    pool = Connections(most=20, backlog=8)
    other, made = Fake("other"), [Fake("greedy") for _ in range(11)]
    for connection in (other, *made):
        pool.add(connection)  # type: ignore[arg-type]
    assert [connection.aborted for connection in made] == [True] + [False] * 10
    assert not other.aborted


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.0.0.5"])
def test_addresses_of_this_machine_and_of_the_proxy_may_have_all_connections(address: str) -> None:
    pool = Connections(most=20, backlog=8, proxy="10.0.0.5")
    made = [Fake(address) for _ in range(21)]
    for connection in made:
        pool.add(connection)  # type: ignore[arg-type]
    assert [connection.aborted for connection in made] == [True] + [False] * 20


def test_connections_that_come_together_each_close_another() -> None:
    pool = Connections(most=20, backlog=8)
    made = [Fake("greedy") for _ in range(13)]
    for connection in made:  # a connection that is closed is removed only later
        pool.add(connection)  # type: ignore[arg-type]
    assert [connection.aborted for connection in made] == [True] * 3 + [False] * 10


def test_a_new_connection_is_refused_if_all_others_are_busy() -> None:
    pool = Connections(most=8, backlog=8)
    made = [Fake(str(n)) for n in range(9)]
    for connection in made[:8]:
        pool.add(connection)  # type: ignore[arg-type]
        pool.silent.clear()
    pool.add(made[8])  # type: ignore[arg-type]
    assert [connection.aborted for connection in made] == [False] * 8 + [True]
    pool.remove(made[0])  # type: ignore[arg-type]
    assert (pool.open, pool.by_address["0"]) == (8, 0)


def test_an_event_that_repeats_is_logged_a_few_times_a_second() -> None:
    limit = RateLimit(requests=1000, others=2)

    def record(second: float) -> logging.LogRecord:
        made = logging.LogRecord("asyncio", logging.ERROR, "", 0, "out of descriptors", None, None)
        made.created = second
        return made

    assert [limit.filter(record(10.0 + n / 10)) for n in range(5)] == [True, True, False, False, False]
    late = record(11.0)
    assert limit.filter(late)
    assert json.loads(JsonLines().format(late))["left_out"] == 3
