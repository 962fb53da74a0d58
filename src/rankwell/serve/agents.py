"""Search as tools of agents, in the Model Context Protocol: ``search`` and ``get``, over a running service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import ToolAnnotations
from pydantic import Field
from starlette.applications import Starlette

from rankwell.core.errors import InputError
from rankwell.rank.answers import Match, snippet
from rankwell.serve.bodies import LOG, ApiError, validated
from rankwell.serve.formats import Answer, Search
from rankwell.serve.service import Service

PATH = "/mcp"
EXCERPT = 600
"""Characters of each text that a search returns; ``get`` returns all."""
_READS = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)


def tools_of(service: Service) -> MCPServer[Any]:
    """The tools over a service, whose limits hold for them."""
    system = service.state.system
    fields = ", ".join(system.index.documents.fields) if system is not None else ""
    server: MCPServer[Any] = MCPServer(
        "rankwell",
        version=version("rankwell"),
        instructions=f"Searches {service.ready()['index']['documents']:,} documents. Metadata to filter by: "
        f"{fields or 'none'}. Scores compare documents of one query only; relevance, if there is one, all.",
        log_level="WARNING",
    )

    async def search(
        query: Annotated[str, Field(description="A question, or words to look for.")],
        k: Annotated[int, Field(description="How many documents.", ge=1)] = 10,
        filter: Annotated[
            str | None, Field(description="Only documents whose metadata match: year >= 2015 and lang = 'de'.")
        ] = None,
        min_relevance: Annotated[
            float | None,
            Field(description="Only documents that are relevant with this probability, from 0 to 1.", ge=0, le=1),
        ] = None,
    ) -> dict[str, Any]:
        """The documents that answer a query, best first, with excerpts; ``get`` has a document's whole text."""
        asked = {"query": query, "k": k, "filter": filter, "min_relevance": min_relevance}
        answer = await _answer(service, lambda end: service.search(validated(Search, asked), end, {}))
        return {name: answer[name] for name in ("did_you_mean", "nothing")} | {
            "results": [_excerpt(row) for row in answer["results"]]
        }

    async def get(id: Annotated[str, Field(description="The id of a result.")]) -> dict[str, Any]:
        """A document by its id: title, text and metadata."""

        async def read(end: float) -> Answer:
            return await asyncio.to_thread(service.document, id)

        return await _answer(service, read)

    for tool in (search, get):
        server.tool(annotations=_READS)(tool)
    return server


def application_of(service: Service) -> Starlette:
    """The tools over HTTP, for an application whose gate checks keys, hosts and origins."""
    return tools_of(service).streamable_http_app(
        streamable_http_path=PATH,
        stateless_http=True,  # nothing is held between two calls
        json_response=True,
        max_request_body_size=service.limits.body_bytes,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )


async def _answer(service: Service, work: Callable[[float], Coroutine[Any, Any, Answer]]) -> Answer:
    """What the service answers within its deadline; its refusals are errors that the agent can read."""
    seconds = service.limits.default_timeout_ms / 1000
    try:
        async with asyncio.timeout(seconds):
            return await work(time.monotonic() + seconds)
    except ApiError as error:
        raise ToolError(error.message) from None
    except TimeoutError:
        raise ToolError(f"no answer within {seconds:g} seconds") from None
    except InputError as error:  # a damaged file, which the log names
        LOG.error("damaged", extra={"about": {"damaged": str(error)}})
        raise ToolError("the index is damaged; the server's log names the file") from None


def _excerpt(row: Answer) -> Answer:
    text = row["text"] or ""
    begin, end = snippet(text, [Match(**match) for match in row["matches"]], EXCERPT)
    excerpt = "… " * (begin > 0) + text[begin:end] + " …" * (end < len(text))
    return {name: row[name] for name in ("id", "score", "relevance", "title", "fields")} | {"text": excerpt}
