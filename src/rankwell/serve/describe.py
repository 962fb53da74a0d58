"""``/openapi.json`` and ``/docs``: the description of the API, and a self-contained page of it."""

from __future__ import annotations

import json
from html import escape
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from rankwell.serve.bodies import CohereRerank, Explain, Search, TeiRerank

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
    409: "Unavailable: the service has no index or no model for it.",
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
_BODIES = {"/rerank": (CohereRerank, TeiRerank), "/search": (Search,), "/explain": (Explain,)}
STYLE = (
    ":root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}"
    "body{max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "pre{overflow:auto;padding:.75rem;border:1px solid #8886;border-radius:.4rem;font-size:.8rem}h2{margin-top:2rem}"
    "code{font-family:ui-monospace,monospace}"
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
        described["paths"][path]["post"]["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return described


def docs_page(described: dict[str, Any]) -> str:
    """The description as a plain page."""
    parts = []
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            about = escape(operation.get("description", ""))
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{about}</p>")
            if body := operation.get("requestBody"):
                schema = body["content"]["application/json"]["schema"]
                for choice in schema.get("anyOf", [schema]):
                    name = choice["$ref"].rsplit("/", 1)[-1]
                    shown = json.dumps(described["components"]["schemas"][name], indent=2, ensure_ascii=False)
                    parts.append(f"<h3>{escape(name)}</h3><pre>{escape(shown)}</pre>")
    rows = "".join(f"<li><code>{status}</code> {escape(line)}</li>" for status, line in _ERRORS.items())
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>rankwell: API</title>'
    return (
        f'<!doctype html><html lang="en"><head>{head}<link rel="stylesheet" href="/docs.css"></head>'
        f"<body><h1>rankwell</h1>{''.join(parts)}<h2>Errors</h2><ul>{rows}</ul>"
        '<p><a href="/openapi.json">openapi.json</a></p></body></html>'
    )
