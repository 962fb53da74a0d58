"""What is refused, with which status, and what is counted: nobody is refused for another's fault."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from rankwell.core.errors import RankwellError
from rankwell.serve.api import create_app
from rankwell.serve.bodies import ApiError, json_response
from rankwell.serve.engine import Batching
from rankwell.serve.formats import Limits, Search
from rankwell.serve.listening import Hosts, Place, bind, check_hosts
from rankwell.serve.service import Service
from rankwell.serve.state import Sources

from .conftest import opened, wait_until

QUERY = "how do bees keep warm in winter"
BODY = {"query": QUERY, "texts": ["bees"]}
FOREIGN = {"Origin": "https://evil.example", "Content-Type": "text/plain"}


@contextmanager
def listening(host: str) -> Iterator[Place]:
    with closing(bind(host, 0)) as place:
        yield place


@pytest.fixture(scope="module")
def local(sources: Sources) -> Iterator[Any]:
    """A service at an address of this machine alone."""
    with listening("127.0.0.1") as place, opened(sources, hosts=Hosts.of(place)) as client:
        yield client


@pytest.fixture(scope="module")
def client(sources: Sources) -> Iterator[Any]:
    with opened(sources) as client:
        yield client


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://testserver.evil.example", "testserver", ""])
def test_pages_of_other_hosts_are_refused(client: Any, origin: str) -> None:
    answer = client.post("/rerank", content=json.dumps(BODY), headers={**FOREIGN, "Origin": origin})
    assert (answer.status_code, answer.json()["error_type"]) == (403, "forbidden")


@pytest.mark.parametrize(
    "twice",
    [
        [("Origin", "http://testserver"), ("Origin", "https://evil.example")],
        [("Authorization", "Bearer a"), ("Authorization", "Bearer b")],
        [("Host", "testserver"), ("Host", "evil.example")],
        [("Content-Length", "2"), ("Transfer-Encoding", "chunked")],
    ],
)
def test_headers_that_contradict_each_other_are_refused(client: Any, twice: list[tuple[str, str]]) -> None:
    answer = client.post("/rerank", content=b"{}", headers=twice)
    assert (answer.status_code, answer.json()["error_type"]) == (400, "malformed")


@pytest.mark.parametrize("origin", ["http://testserver", "https://TestServer"])
def test_the_services_own_page_is_let_in(client: Any, origin: str) -> None:
    assert client.post("/rerank", json=BODY, headers={"Origin": origin}).status_code == 200


LOCAL = ["localhost", "localhost:8000", "LocalHost.:1", "127.0.0.1:9", "127.1.2.3", "[::1]", "[::1]:8000"]
OTHERS = ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.5:8000"]
OTHERS += ["", "[::2]", "a b", "localhost:8000:1", "127.0.0.1@evil.example"]


@pytest.mark.parametrize("host", OTHERS)
def test_a_page_whose_name_was_made_to_mean_this_machine_is_refused(local: Any, host: str) -> None:
    # To the browser it is the page's own host: Origin, if there is one, and Host are the same.
    for headers in ({"Host": host}, {"Host": host, "Origin": f"http://{host}"}):
        answer = local.post("/rerank", json=BODY, headers=headers)
        assert (answer.status_code, answer.json()["error_type"]) == (421, "misdirected")
        assert "--allow-host" in answer.json()["message"]
    assert local.get("/ready", headers={"Host": host}).status_code == 421
    assert local.get("/", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("host", LOCAL)
def test_names_of_this_machine_alone_are_taken(local: Any, host: str) -> None:
    assert local.post("/rerank", json=BODY, headers={"Host": host, "Origin": f"http://{host}"}).status_code == 200
    assert local.get("/ready", headers={"Host": host}).status_code == 200


def test_the_key_opens_under_any_name(sources: Sources) -> None:
    with listening("127.0.0.1") as place, opened(sources, key="k", hosts=Hosts.of(place)) as client:
        keyed = {"Host": "evil.example", "Authorization": "Bearer k"}
        assert client.post("/rerank", json=BODY, headers=keyed).status_code == 200
        assert client.get("/ready", headers={"Host": "evil.example"}).status_code == 421


def test_which_names_are_checked() -> None:
    with listening("127.0.0.1") as local, listening("0.0.0.0") as open_to_all:
        assert Hosts.of(open_to_all) is None
        assert Hosts.of(open_to_all, origins=("https://page.example",)) is None
        for named, origins in ((["*"], ()), ([], ("*",))):
            assert Hosts.of(local, named, origins) is None
        for place in (local, open_to_all):
            hosts = Hosts.of(place, ["Search.Example", "[fd00::1]"], ("https://page.example:8443",))
            assert hosts is not None
            taken = ["search.example:80", "[FD00::1]:80", "page.example", "localhost", "127.0.0.1:8000"]
            assert all(map(hosts.has, taken))
            assert not any(map(hosts.has, ["example", "search.example.evil.example", "fd00::1", "10.0.0.5"]))


@pytest.mark.parametrize(
    ("host", "header"),
    [
        ("Search.Example.", "search.example:8000"),
        ("search.example", "search.example.:8000"),
        ("2001:DB8:0::5", "[2001:db8::5]:8000"),
        ("2001:db8::5", "[2001:db8:0:0:0:0:0:5]"),
    ],
)
def test_a_host_has_several_spellings(host: str, header: str) -> None:
    place = Place(host, 8000, ())
    for hosts in (Hosts.of(place), Hosts.of(place, ["other.example"])):
        assert hosts is not None
        assert hosts.has(header)
        assert not hosts.has("[2001:db8::6]:8000")


@pytest.mark.parametrize("name", ["https://a.example", "a.example:80", "a b", "", "::1", "[::1]:80"])
def test_a_host_is_named_without_scheme_and_port(name: str) -> None:
    with pytest.raises(RankwellError, match=r"not a host name; expected one without scheme and port"):
        check_hosts([name])
    check_hosts(["a.example", "[::1]", "10.0.0.5", "*", "my_host"])


def test_pages_of_other_hosts_are_let_in_by_name_or_with_the_key(sources: Sources) -> None:
    for origins in (("https://evil.example",), ("*",)):
        with opened(sources, origins=origins) as client:
            answer = client.post("/rerank", json=BODY, headers=FOREIGN)
            assert answer.status_code == 200
            exposed = answer.headers["access-control-expose-headers"].lower().split(", ")
            assert set(exposed) == {"retry-after", "x-request-id"}
    with opened(sources, key="k") as client:
        assert client.post("/rerank", json=BODY, headers={**FOREIGN, "Authorization": "Bearer k"}).status_code == 200
        assert client.post("/rerank", json=BODY, headers=FOREIGN).status_code == 401
        assert client.get("/ready", headers=FOREIGN).status_code == 403
        assert client.get("/ready").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("GET", "/rerank", 405, "POST"),
        ("DELETE", "/search", 405, "GET, HEAD, POST"),
        ("OPTIONS", "/reload", 405, "POST"),
        ("POST", "/ready", 405, "GET, HEAD"),
        ("GET", "/v1/rerank", 405, "POST"),
        ("GET", "/v2/rerank", 405, "POST"),
        ("POST", "/openapi.json", 405, "GET, HEAD"),
        ("POST", "/", 405, "GET, HEAD"),
        ("DELETE", "/app.js", 405, "GET, HEAD"),
        ("POST", "/nope", 404, None),
        ("GET", "/nope", 404, None),
        ("POST", "/search/", 404, None),
        ("GET", "/ready/", 404, None),
        ("HEAD", "/health", 200, None),
        ("HEAD", "/ready", 200, None),
        ("HEAD", "/", 200, None),
    ],
)
def test_paths_and_methods(client: Any, method: str, path: str, status: int, allowed: str | None) -> None:
    answer = client.request(method, path, follow_redirects=False)
    assert (answer.status_code, answer.headers.get("Allow")) == (status, allowed)
    assert status != 405 or answer.json()["error_type"] == "method"


def test_without_the_page_a_slash_too_many_is_no_path_either(sources: Sources) -> None:
    with opened(sources, page=None) as client:
        assert client.post("/search/", json={"query": QUERY}, follow_redirects=False).status_code == 404


def test_the_pages_files_are_asked_for_anew(client: Any) -> None:
    first = client.get("/app.js")
    again = client.get("/app.js", headers={"If-None-Match": first.headers["ETag"]})
    assert (first.status_code, again.status_code) == (200, 304)
    assert first.headers["Cache-Control"] == again.headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/search", ("k", "from")),
        ("/search", ("depth",)),
        ("/explain", ("layer",)),
        ("/explain", ("head",)),
        ("/rerank", ("timeout_ms",)),
    ],
)
def test_numbers_too_long_to_write_are_refused_in_a_short_line(client: Any, path: str, fields: tuple[str, ...]) -> None:
    rest = {"/search": {}, "/explain": {"document": "bees"}, "/rerank": {"texts": ["bees"]}}[path]
    known = json.dumps({"query": QUERY, **rest})[:-1]
    answer = client.post(path, content=known + "".join(f', "{name}": {"9" * 4300}' for name in fields) + "}")
    assert answer.status_code == (200 if fields == ("timeout_ms",) else 422)
    assert len(answer.text) < 500


def test_a_body_is_not_counted_against_itself(sources: Sources) -> None:
    with opened(sources, Limits(body_bytes=3000, bodies_bytes=3000)) as client:
        for content in (json.dumps({**BODY, "user": "x" * 2500}).encode(), iter([json.dumps(BODY).encode()])):
            assert client.post("/rerank", content=content).status_code == 200
        assert client.post("/rerank", json={**BODY, "user": "x" * 3000}).status_code == 413


def test_a_deadline_that_has_passed_is_no_full_queue(sources: Sources) -> None:
    service = Service(sources)
    with pytest.raises(ApiError) as refused:
        asyncio.run(service.search(Search(query=QUERY), time.monotonic() - 1, {}))
    assert (refused.value.status, refused.value.kind) == (504, "deadline")
    assert b"rankwell_late_total 1.0" in service.metrics.text()
    assert b"rankwell_refused_total 0.0" in service.metrics.text()


@pytest.mark.parametrize(("path", "body"), [("/rerank", BODY), ("/search", {"query": QUERY})])
def test_every_refusal_of_a_full_queue_is_counted_once(sources: Sources, path: str, body: Any) -> None:
    service = Service(sources, batching=Batching(queue_tokens=100))
    with TestClient(create_app(service, page=None)) as client:
        ticket = service.engine.admit(100)
        assert client.post(path, json=body).status_code == 429
        service.engine.release(ticket)
    assert b"rankwell_refused_total 1.0" in service.metrics.text()


def test_a_client_that_goes_in_the_midst_of_its_body_is_counted(live: Callable[..., Any]) -> None:
    service = live()
    with socket.create_connection(("127.0.0.1", service.port), timeout=5) as one:
        one.sendall(b"POST /rerank HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{")
        wait_until(lambda: b"rankwell_body_bytes 1.0" in service.service.metrics.text())
    wait_until(lambda: b"rankwell_gone_total 0.0" not in service.service.metrics.text())
    assert b"rankwell_gone_total 1.0" in service.service.metrics.text()


def test_the_log_says_where_an_error_arose(
    sources: Sources, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(sources)

    async def defective(*given: Any) -> None:
        raise ValueError("with a document's text")

    monkeypatch.setattr(service, "rerank", defective)
    with TestClient(create_app(service, page=None)) as client, caplog.at_level("INFO", logger="rankwell.serve"):
        assert client.post("/rerank", json=BODY).status_code == 500
    (bug,) = [record.about["bug"] for record in caplog.records if "bug" in getattr(record, "about", {})]
    assert bug.startswith("ValueError at ")
    assert "defective:" in bug


def test_models_are_described_as_they_were_opened(tiny_checkpoint: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_checkpoint, model)
    with opened(Sources(None, (str(model),))) as client:
        before = client.get("/models").json()
        (model / "config.json").write_text("{")
        assert client.get("/models").json() == before
    assert before["models"][0]["layers"] > 0
    assert before["models"][0]["heads"] > 0


def test_a_number_that_json_cannot_hold_is_null() -> None:
    assert json_response({"figures": {"RR@10": float("nan"), "note": "\ud800"}}).body == (
        b'{"figures": {"RR@10": null, "note": "\\ud800"}}'
    )
    assert json_response({"RR@10": float("inf")}).body == b'{"RR@10":null}'


@pytest.mark.parametrize("key", ["schlüssel", "a\tb", "ключ", " key", "key\n"])
def test_a_key_is_printable_ascii(rankwell: Callable[..., Any], key: str) -> None:
    assert "printable ASCII" in rankwell("serve", "nowhere", "--key", key).complaint
