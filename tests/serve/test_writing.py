"""Documents are put and deleted over HTTP, and a service serves its index as it is on the disk."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rankwell.corpus.records import Document
from rankwell.models.devices import Computing
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.system import System
from rankwell.retrieve.index import Index
from rankwell.serve import service as service_module
from rankwell.serve.formats import Limits
from rankwell.serve.state import Sources

from .conftest import opened, wait_until

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

KEY = {"Authorization": "Bearer writer"}
DOCUMENTS = [
    Document("a", "honey from bees", metadata={"year": 2014, "lang": "de"}),
    Document("b", "honey and wax", "Wax", {"year": 2016, "lang": "en", "tags": ["x", "y"]}),
    Document("c", "tea"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Index.build(DOCUMENTS, tmp_path / "index").folder


@pytest.fixture
def client(folder: Path) -> Iterator[TestClient]:
    with opened(Sources(folder), Limits(documents=5), writing_key="writer") as client:
        yield client


def found(client: TestClient, query: str = "honey", **more: Any) -> list[str]:
    answer = client.post("/search", json={"query": query, **more})
    assert answer.status_code == 200, answer.text
    return [row["id"] for row in answer.json()["results"]]


def put(client: TestClient, *documents: dict[str, Any], headers: dict[str, str] = KEY) -> Any:
    return client.put("/documents", content="\n".join(map(json.dumps, documents)), headers=headers)


def test_what_is_put_is_found_at_once_and_on_the_disk(client: TestClient, folder: Path) -> None:
    answer = put(client, {"id": "b", "text": "milk"}, {"id": 7, "text": "honey", "title": "T", "year": 2024})
    assert (answer.status_code, answer.json()["documents"]) == (200, 2)
    assert answer.json()["generation"] >= 2  # the service may have noticed the change by itself, too
    assert found(client) == ["7", "a"]
    assert Index.open(folder).read(["7"]) == [Document("7", "honey", "T", {"year": 2024})]
    assert put(client, {"id": "b", "text": "milk"}).json()["documents"] == 1  # as often as one likes
    assert found(client, "milk") == ["b"]
    assert client.get("/ready").json()["index"]["documents"] == 4


def test_deleting_is_idempotent(client: TestClient, folder: Path) -> None:
    assert client.delete("/documents/a", headers=KEY).json()["documents"] == 1
    assert client.delete("/documents/a", headers=KEY).json()["documents"] == 0
    put(client, {"id": "a/b#1", "text": "honey"})
    assert client.delete("/documents/a%2Fb%231", headers=KEY).json()["documents"] == 1
    assert found(client) == ["b"]
    assert len(Index.open(folder)) == 2


def test_ids_are_those_that_files_have_and_name_documents(client: TestClient, folder: Path) -> None:
    assert put(client, {"id": "notes/plan für 🎉.md", "title": "T", "text": "wax", "year": 2024}).status_code == 200
    assert found(client, "wax") == ["b", "notes/plan%20für%20🎉.md"]
    expected = {"id": "notes/plan%20für%20🎉.md", "title": "T", "text": "wax", "fields": {"year": 2024}}
    for path in ("notes/plan für 🎉.md", "notes/plan%20für%20🎉.md", "notes/plan%2520für%2520🎉.md"):
        answer = client.get(f"/documents/{path}")
        assert (answer.status_code, answer.json()) == (200, expected)
    assert client.get("/documents/nowhere").json()["error"] == "no document with this id is in the index"
    assert client.delete("/documents/notes/plan für 🎉.md", headers=KEY).json()["documents"] == 1


def test_requests_that_wait_are_written_together_in_their_order(folder: Path) -> None:
    service = service_module.Service(Sources(folder))
    new = Document("n", "honey")
    results = service.holder.write([[new], ["n"], ["a"], ["a"], [Document("a", "milk")], ["nowhere"], [new]])
    assert [count for count, _ in results] == [1, 1, 1, 0, 1, 0, 1]
    index = Index.open(folder)
    assert len(index) == 4
    assert index.texts(["n", "a"]) == ["honey", "milk"]
    assert len(index.segments) <= 2
    service.stop()


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 422, "the body has no documents; expected a JSON object per line"),
        (b"{", 400, "line 1: the body is not JSON"),
        (b'{"id": "x", "text": "a"}\n{"id": "y"}', 422, "line 2: text: Field required"),
        (b'{"id": "", "text": "a"}', 422, "line 1: id.constrained-str: String should have at least 1 character"),
        (b'{"id": "x", "text": 5}', 422, "line 1: text: Input should be a valid string"),
        (b'["x"]', 422, "line 1: the body is a JSON list; expected an object"),
        (b'{"id": 1, "text": ""}\n' * 6, 422, "documents: 6 items; the limit is 5"),
        (json.dumps({"id": "x", "text": "a" * 100_001}).encode(), 422, "documents.0.text: 100,001 characters"),
    ],
)
def test_a_wrong_body_changes_nothing(client: TestClient, folder: Path, body: bytes, status: int, message: str) -> None:
    answer = client.put("/documents", content=body, headers=KEY)
    assert answer.status_code == status
    assert answer.json()["message"].startswith(message)
    assert len(Index.open(folder)) == 3


def test_writing_needs_its_own_key(folder: Path) -> None:
    with opened(Sources(folder)) as client:
        assert put(client, {"id": "x", "text": "honey"}).status_code == 403
        assert client.delete("/documents/a", headers=KEY).status_code == 403
    with opened(Sources(folder), key="reader", writing_key="writer") as client:
        reader = {"Authorization": "Bearer reader"}
        assert put(client, {"id": "x", "text": "honey"}, headers=reader).status_code == 401
        assert put(client, {"id": "x", "text": "honey"}, headers={}).status_code == 401
        assert put(client, {"id": "x", "text": "honey"}).status_code == 200
        for headers, status in ((reader, 200), (KEY, 200), ({}, 401)):
            assert client.post("/search", json={"query": "honey"}, headers=headers).status_code == status
    assert len(Index.open(folder)) == 4


def test_a_folder_in_use_is_a_refusal_to_try_again(client: TestClient, folder: Path) -> None:
    from rankwell.core.locks import lock

    with lock(folder, wait=False):
        answer = put(client, {"id": "x", "text": "honey"})
    assert (answer.status_code, answer.headers["retry-after"]) == (409, "1")
    assert answer.json()["message"].startswith("could not write: another process is working in")
    assert put(client, {"id": "x", "text": "honey"}).status_code == 200


def test_changes_of_other_processes_are_served_without_a_restart(client: TestClient, folder: Path) -> None:
    Index.open(folder).update({"a": "milk", "n": "honey honey"})
    wait_until(lambda: found(client) == ["n", "b"])
    Index.open(folder).merge()
    wait_until(lambda: client.get("/ready").json()["index"]["segments"] == 1)
    assert found(client) == ["n", "b"]
    shutil.move(folder, folder.with_name("moved"))  # what is served stays
    assert found(client) == ["n", "b"]


def test_searches_are_filtered_and_return_the_fields_they_ask_for(client: TestClient) -> None:
    assert found(client, filter="year >= 2015") == ["b"]
    assert found(client, filter={"tags": "y"}) == ["b"]
    assert found(client, filter="not lang = 'en'") == ["a"]
    assert found(client, **{"from": 1}) == ["a"]
    assert found(client, query="+honey -milk", syntax=True, filter="lang = 'en'") == ["b"]
    assert found(client, query='"honey honey"', syntax=True) == []
    answer = client.post("/search", json={"query": "honey", "fields": ["year"]}).json()
    assert {row["id"]: row["fields"] for row in answer["results"]} == {
        "a": {"year": 2014},
        "b": {"year": 2016},
    }
    assert client.get("/ready").json()["index"]["fields"] == ["lang", "tags", "year"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"filter": "year >="}, "filter, character 8: expected a number"),
        ({"filter": {"price": 3}}, "filter: no document in the index"),
        ({"query": 'a "b', "syntax": True}, "query, character 3: a quotation mark that is not closed"),
        ({"fields": ["price"]}, "fields: no document has a field 'price'; fields: lang, tags, year"),
        ({"filter": "x" * 100_001}, "filter: 100,001 characters; the limit is 100,000"),
        ({"query": None, "fitler": "year > 3"}, "fitler: there is no such field (known: query, model"),
        ({"offset": 3}, "offset: there is no such field (known: query, model"),
    ],
)
def test_fields_that_are_wrong_or_unknown_are_refused_by_name(
    client: TestClient, more: dict[str, Any], message: str
) -> None:
    answer = client.post("/search", json={"query": "honey", **more})
    assert answer.status_code == 422
    assert answer.json()["message"].startswith(message)


def test_searches_go_on_while_documents_are_written(client: TestClient) -> None:
    problems: list[Any] = []
    stop = threading.Event()

    def search() -> None:
        while not stop.is_set():
            answer = client.post("/search", json={"query": "honey"})
            if answer.status_code != 200 or not {"a", "b"} <= {row["id"] for row in answer.json()["results"]}:
                problems.append(answer.text)

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        statuses = {put(client, {"id": f"n{n % 5}", "text": f"honey {n}"}).status_code for n in range(12)}
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert (statuses, problems) == ({200}, [])


def test_a_hybrid_system_encodes_what_is_put(tmp_path: Path, folder: Path, tiny_bi_encoder: Path) -> None:
    system = System(FirstStage(Index.open(folder), encoder=tiny_bi_encoder, share=0.5)).save(tmp_path / "system")
    sources = Sources(system.folder, computing=Computing("cpu"), is_system=True)
    with opened(sources, writing_key="writer") as client:
        assert put(client, {"id": "n", "text": "honey wax bees"}).status_code == 200
        rows = client.post("/search", json={"query": "honey wax bees", "k": 1, "stages": "hybrid"}).json()["results"]
        assert rows[0]["id"] == "n"
    expected = System.open(system.folder, device="cpu").search("honey wax bees", k=1)
    assert (expected[0].docid, pytest.approx(rows[0]["score"])) == ("n", expected[0].score)
