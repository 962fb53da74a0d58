"""``/openapi.json`` and ``/docs``: the API described, and a page of it that asks no other host for anything."""

from __future__ import annotations

import json
from html import escape
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from rankwell.serve.shapes import CohereRerank, Explain, Search, TeiRerank

_ERROR = {
    "type": "object",
    "required": ["error", "error_type", "message", "request_id"],
    "properties": {name: {"type": "string"} for name in ("error", "error_type", "message", "request_id")},
}
_REFUSALS = {
    400: "Not JSON, or not UTF-8.",
    401: "No key, or not the right one.",
    403: "This service has no key, or is not for pages of this host.",
    404: "No such path, model or document.",
    405: "This path does not take this method.",
    408: "The body took too long to come.",
    409: "This service cannot do that: it lacks an index or a model.",
    413: "The body has too many bytes.",
    421: "This service is not for hosts of this name (Host).",
    422: "A field is missing, of the wrong kind, or beyond a limit.",
    429: "The queue is full; Retry-After says when to come back.",
    503: "The service is about to stop.",
    504: "The deadline has passed.",
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": line, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    for status, line in _REFUSALS.items()
}
_BODIES = {"/rerank": (CohereRerank, TeiRerank), "/search": (Search,), "/explain": (Explain,)}
STYLE = (
    ":root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}"
    "body{max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "pre{overflow:auto;padding:.75rem;border:1px solid #8886;border-radius:.4rem;font-size:.8rem}h2{margin-top:2rem}"
    "code{font-family:ui-monospace,monospace}"
)


def describe_api(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI description: the framework's, with the bodies, which the service reads itself."""
    described: dict[str, Any] = get_openapi(title="rankwell", version=version("rankwell"), routes=app.routes)
    shapes = [(shape, "validation") for own in _BODIES.values() for shape in own]
    _, schemas = models_json_schema(shapes, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    components = described.setdefault("components", {}).setdefault("schemas", {})
    components |= {**schemas.get("$defs", {}), "Error": _ERROR}
    for path, own in _BODIES.items():
        choices = [{"$ref": f"#/components/schemas/{shape.__name__}"} for shape in own]
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
        for method, own in methods.items():
            parts.append(
                f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(own.get('description', ''))}</p>"
            )
            if body := own.get("requestBody"):
                schema = body["content"]["application/json"]["schema"]
                for choice in schema.get("anyOf", [schema]):
                    name = choice["$ref"].rsplit("/", 1)[-1]
                    shown = json.dumps(described["components"]["schemas"][name], indent=2, ensure_ascii=False)
                    parts.append(f"<h3>{escape(name)}</h3><pre>{escape(shown)}</pre>")
    rows = "".join(f"<li><code>{status}</code> {escape(line)}</li>" for status, line in _REFUSALS.items())
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>rankwell: API</title>'
    return (
        f'<!doctype html><html lang="en"><head>{head}<link rel="stylesheet" href="/docs.css"></head>'
        f"<body><h1>rankwell</h1>{''.join(parts)}<h2>Refusals</h2><ul>{rows}</ul>"
        '<p><a href="/openapi.json">openapi.json</a></p></body></html>'
    )
