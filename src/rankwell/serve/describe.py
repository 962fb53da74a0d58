"""``/openapi.json`` and ``/docs``: the description of the API, and a self-contained page of it."""

from __future__ import annotations

import json
import re
from html import escape
from importlib.metadata import version
from typing import Any

import numpy as np
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from rankwell.retrieve.index import Index
from rankwell.serve.formats import (
    CohereRerank,
    EmbeddingsRequest,
    Event,
    Explain,
    MixedbreadRerank,
    NewDocument,
    ScoreRequest,
    Search,
    TeiEmbed,
    TeiRerank,
    VoyageRerank,
)

_ERROR = {
    "type": "object",
    "required": ["error", "error_type", "message", "request_id"],
    "properties": {name: {"type": "string"} for name in ("error", "error_type", "message", "request_id")},
}
_ERRORS = {
    400: "Not JSON, or not UTF-8.",
    401: "Missing or wrong key.",
    403: "The service has no key, or the origin is not allowed.",
    404: "No such path, model or document.",
    405: "Method not allowed.",
    408: "The body took too long to arrive.",
    409: "Unavailable: the service has no index or no model for it, or could not write.",
    413: "The body is too large.",
    421: "Unknown host name (Host).",
    422: "A field is missing, has the wrong type, or is beyond a limit.",
    429: "The queue is full; Retry-After says when to try again.",
    503: "The service is shutting down.",
    504: "The deadline has passed.",
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": line, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    for status, line in _ERRORS.items()
}
_BODIES: dict[str, dict[type[BaseModel], dict[str, Any]]] = {
    "/rerank": {
        CohereRerank: {"query": "how do bees keep warm", "documents": ["The cluster shivers.", "Tea."], "top_n": 1},
        TeiRerank: {"query": "how do bees keep warm", "texts": ["The cluster shivers.", "Tea."]},
        VoyageRerank: {"query": "how do bees keep warm", "documents": ["The cluster shivers.", "Tea."], "top_k": 1},
    },
    "/v1/reranking": {MixedbreadRerank: {"query": "how do bees keep warm", "input": ["The cluster shivers.", "Tea."]}},
    "/score": {ScoreRequest: {"text_1": "how do bees keep warm", "text_2": ["The cluster shivers.", "Tea."]}},
    "/v1/embeddings": {EmbeddingsRequest: {"input": ["The cluster shivers."]}},
    "/embed": {TeiEmbed: {"inputs": ["The cluster shivers."]}},
    "/search": {Search: {"query": "how do bees keep warm", "k": 3}},
    "/events": {Event: {"query_id": "4f0c…", "event_attributes": {"object": {"object_id": "d7"}}}},
    "/explain": {Explain: {"query": "how do bees keep warm", "document": "The cluster shivers."}},
    "/documents": {NewDocument: {"id": "doc-3", "text": "The cluster shivers.", "year": 2024}},
}
"""What each path accepts, with an example."""
SEARCH_PARAMETERS = [
    {"name": "q", "in": "query", "required": True, "schema": {"type": "string"}},
    {"name": "k", "in": "query", "schema": {"type": "integer"}},
    {"name": "filter", "in": "query", "schema": {"type": "string"}},
]
"""Those of a search by its address that most people need."""
STYLE = (
    ":root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}"
    "body{max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere;padding:.75rem;border:1px solid #8886;border-radius:.4rem"
    ";font-size:.8rem}h2{margin-top:2rem;overflow-wrap:anywhere}code{font-family:ui-monospace,monospace}table{border-collapse:collapse;font-size:.9rem}"
    "td,th{padding:.25rem .75rem .25rem 0;text-align:left;vertical-align:top;border-bottom:1px solid #8883}"
    "@media(max-width:40rem){table{font-size:.75em}td,th{padding-right:.4rem;overflow-wrap:anywhere;min-width:3.2rem}td:first-child{min-width:6rem}}"
)


def describe_api(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI description: FastAPI's, plus the request bodies, which the service reads itself."""
    described: dict[str, Any] = get_openapi(title="rankwell", version=version("rankwell"), routes=app.routes)
    bodies = [(body, "validation") for accepted in _BODIES.values() for body in accepted]
    _, schemas = models_json_schema(bodies, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    components = described.setdefault("components", {}).setdefault("schemas", {})
    components |= {**schemas.get("$defs", {}), "Error": _ERROR}
    for path, accepted in _BODIES.items():
        choices = [{"$ref": f"#/components/schemas/{body.__name__}"} for body in accepted]
        schema = choices[0] if len(choices) == 1 else {"anyOf": choices}
        described["paths"][path]["put" if path == "/documents" else "post"]["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return described


def docs_page(described: dict[str, Any], address: str) -> str:
    """The description as a plain page: each path with a command to try, and the fields of its body."""
    schemas = described["components"]["schemas"]
    examples = {body.__name__: example for accepted in _BODIES.values() for body, example in accepted.items()}
    parts = []
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            about = escape(operation.get("description", ""))
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{about}</p>")
            if method == "get":
                parts.append(_command(address + path + "?q=bees" * ("parameters" in operation)))
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            for choice in body.get("anyOf", [body] if body else []):
                name = choice["$ref"].rsplit("/", 1)[-1]
                parts.append(_command(address + path, examples[name]) + _fields(schemas[name]))
    errors = "".join(_row(f"<code>{status}</code>", escape(line)) for status, line in _ERRORS.items())
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>rankwell: API</title>'
    return (
        f'<!doctype html><html lang="en"><head>{head}<link rel="stylesheet" href="/docs.css"></head>'
        "<body><h1>rankwell API</h1>"
        '<p><a href="/">Search page</a> · <a href="/openapi.json">OpenAPI description</a></p>'
        "<p>Bodies are JSON. If the service has a key, add <code>-H 'Authorization: Bearer KEY'</code>.</p>"
        f"{''.join(parts)}<h2>Errors</h2><table>{errors}</table></body></html>"
    )


def _command(url: str, body: dict[str, Any] | None = None) -> str:
    """A curl command for this address."""
    data = "" if body is None else f" -d '{json.dumps(body, ensure_ascii=False)}'"
    return f"<pre>curl {escape(f'{url}{data}')}</pre>"


def _fields(schema: dict[str, Any]) -> str:
    rows = []
    for name, field in schema["properties"].items():
        default = "required" if name in schema.get("required", ()) else json.dumps(field.get("default"))
        about = field.get("description", "")
        rows.append(_row(f"<code>{escape(name)}</code>", *map(escape, (_kind(field), default, about))))
    head = "<tr><th>field</th><th>type</th><th>default</th><th></th></tr>"
    return f"<p>{escape(schema['description'])}</p><table>{head}{''.join(rows)}</table>"


def _row(*cells: str) -> str:
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _kind(field: dict[str, Any]) -> str:
    """The type of a field in words."""
    if choices := field.get("anyOf"):
        return " or ".join(dict.fromkeys(_kind(choice) for choice in choices if choice.get("type") != "null"))
    if options := field.get("enum") or ([field["const"]] if "const" in field else None):
        return " or ".join(f"“{option}”" for option in options)
    if "$ref" in field:
        return '{"text": …}'
    if field.get("type") == "array":
        return f"list of {_kind(field['items'])}"
    name = str(field.get("type", ""))
    return {"integer": "whole number", "boolean": "true or false"}.get(name, name)


# Example queries for the page


QUERIES, LOOKED_AT = 4, 200
QUESTION = re.compile(r"(?:(?<=[.!?]\s)|(?<=\n)|^)[^\W\d_][^.!?\n]{10,80}\?")


def example_queries(index: Index) -> list[str]:
    """Titles of a few documents; if there are none, questions that documents hold."""
    if not index.has_texts or not len(index):
        return []
    numbers = index.documents.live_numbers()[np.linspace(0, len(index) - 1, LOOKED_AT).astype(np.int64)]
    documents = index.documents.read(np.unique(numbers))
    titles = [document.title for document in documents if len(document.title.split()) > 1 and len(document.title) < 60]
    questions = [match[0] for document in documents if (match := QUESTION.search(document.text[:2000]))]
    examples = list(dict.fromkeys(titles or questions))
    return examples[:: max(1, len(examples) // QUERIES)][:QUERIES]
