"""An agent's session over MCP, with the official SDK's client: find, filter, get, nothing fits, errors that help."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from rankwell.corpus.records import Document
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.relevance import Calibration
from rankwell.rank.system import System
from rankwell.retrieve.index import Index
from rankwell.serve.formats import Limits
from rankwell.serve.service import Service
from rankwell.serve.state import Sources

mcp = pytest.importorskip("mcp")
Session = Callable[[Any], Awaitable[Any]]
LONG = "Smoke calms bees. " + "The keeper waits. " * 100


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    documents = [
        Document("bees", "The bees keep warm in the hive.", "Winter", {"year": 2019}),
        Document("tea", "A warm drink.", "Tea", {"year": 2021}),
        Document("smoke", LONG, "", {"year": 2022}),
    ]
    return Index.build(documents, tmp_path_factory.mktemp("agents") / "index").folder


@pytest.fixture(scope="module")
def service(index: Path) -> Iterator[Service]:
    served = Service(Sources(index), Limits(query_characters=50, k=20))
    served.start()
    yield served
    served.stop()


def session(service: Service, talk: Session) -> Any:
    from rankwell.serve.agents import tools_of

    async def run() -> Any:
        async with mcp.Client(tools_of(service)) as client:
            return await talk(client)

    return asyncio.run(run())


def call(service: Service, tool: str, **arguments: Any) -> Any:
    async def talk(client: Any) -> Any:
        return await client.call_tool(tool, arguments)

    return session(service, talk)


def ids(result: Any) -> list[str]:
    return [row["id"] for row in result.structured_content["results"]]


def test_there_are_two_tools_that_only_read(service: Service) -> None:
    async def talk(client: Any) -> Any:
        return (await client.list_tools()).tools

    tools = session(service, talk)
    assert [tool.name for tool in tools] == ["search", "get"]
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
    assert list(tools[0].input_schema["properties"]) == ["query", "k", "filter", "min_relevance"]


def test_an_agent_finds_filters_and_gets(service: Service) -> None:
    assert ids(call(service, "search", query="how do bees keep warm", k=2)) == ["bees", "tea"]
    assert ids(call(service, "search", query="warm", filter="year > 2020")) == ["tea"]
    document = call(service, "get", id="bees").structured_content
    assert document == {
        "id": "bees",
        "title": "Winter",
        "text": "The bees keep warm in the hive.",
        "fields": {"year": 2019},
    }


def test_a_search_returns_excerpts_and_get_the_whole_text(service: Service) -> None:
    [found] = call(service, "search", query="smoke").structured_content["results"]
    assert found["text"].startswith("Smoke calms bees. The keeper waits.")
    assert found["text"].endswith(" …")
    assert len(found["text"]) < 700 < len(call(service, "get", id="smoke").structured_content["text"])


def test_a_fitted_system_returns_what_is_relevant_enough(index: Path, tmp_path: Path) -> None:
    own = Calibration(("words", "score"), (-3.0, 5.0, 0.1, -0.3), queries=60, documents=3)
    system = System(FirstStage(Index.open(index)), relevance=own).save(tmp_path / "system")
    served = Service(Sources(system.folder, is_system=True))
    served.start()
    rated = call(served, "search", query="bees keep warm").structured_content["results"]
    assert [row["id"] for row in rated] == ["bees", "tea", "smoke"]
    assert rated[0]["relevance"] > 0.5 > rated[1]["relevance"]
    assert ids(call(served, "search", query="bees keep warm", min_relevance=0.5)) == ["bees"]
    none = call(served, "search", query="warm quarks and gluons", min_relevance=0.5).structured_content
    assert (none["results"], none["nothing"][:13]) == ([], "nothing fits:")
    served.stop()


def test_where_nothing_fits_the_answer_says_why(service: Service) -> None:
    answer = call(service, "search", query="zugzwang").structured_content
    assert answer["results"] == []
    assert answer["nothing"] == "no document has a word of this question"


@pytest.mark.parametrize(
    ("tool", "arguments", "problem"),
    [
        ("search", {"query": "bees", "filter": "colour = 'red'"}, "has a field 'colour'"),
        ("search", {"query": "bees", "k": 21}, "k + from: 21; the limit is 20"),
        ("search", {"query": "bees " * 20}, "query: 100 characters; the limit is 50"),
        ("search", {"query": "bees", "k": 0}, "greater than or equal to 1"),
        ("get", {"id": "nowhere"}, "no document with this id is in the index"),
    ],
)
def test_an_error_says_what_to_change(service: Service, tool: str, arguments: dict[str, Any], problem: str) -> None:
    result = call(service, tool, **arguments)
    assert result.is_error
    assert problem in result.content[0].text


def test_calls_leave_nothing_behind(service: Service) -> None:
    async def talk(client: Any) -> list[int]:
        sizes = []
        for count in (100, 100, 100):
            for number in range(count):
                await client.call_tool("search", {"query": f"bees {number}"})
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
        return sizes

    tracemalloc.start()
    sizes = session(service, talk)
    tracemalloc.stop()
    assert sizes[-1] - sizes[0] < 200_000, sizes


ENVIRONMENT = dict(os.environ)
COMMAND = ["-m", "rankwell", "mcp"]


def test_over_stdio_the_command_talks_to_its_agent_alone(index: Path) -> None:
    async def run() -> Any:
        started = mcp.StdioServerParameters(command=sys.executable, args=[*COMMAND, str(index)], env=ENVIRONMENT)
        async with mcp.Client(started) as client:
            return await client.call_tool("search", {"query": "warm tea"})

    assert ids(asyncio.run(run()))[0] == "tea"


def test_over_http_the_service_s_rule_for_keys_holds(index: Path) -> None:
    command = [sys.executable, *COMMAND, str(index), "--port", "0", "--key", "secret"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stderr is not None
        url = next(line.split()[3].rstrip(",") for line in process.stderr if "serving at" in line) + "/mcp"
        try:
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            accept = {"Accept": "application/json, text/event-stream"}
            assert httpx2.post(url, json=ping, headers=accept).status_code == 401

            async def run() -> Any:
                from mcp.client.streamable_http import streamable_http_client

                keyed = httpx2.AsyncClient(headers={"Authorization": "Bearer secret"})
                async with keyed, mcp.Client(streamable_http_client(url, http_client=keyed)) as client:
                    return await client.call_tool("search", {"query": "bees"})

            assert ids(asyncio.run(run()))[0] == "bees"
        finally:
            process.terminate()
        assert process.wait(60) == 0
