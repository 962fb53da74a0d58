"""Whatever a body holds, the answer is an answer or a refusal: never a failure of the service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankwell.serve.formats import Limits
from rankwell.serve.state import Sources

from .conftest import opened

QUICK = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
PATHS = st.sampled_from(["/rerank", "/search", "/explain"])
TEXT = st.text(max_size=80)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
ANYTHING = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))
VALID = {
    "query": st.text(min_size=1, max_size=80),
    "documents": st.lists(TEXT | st.fixed_dictionaries({"text": TEXT}), max_size=4),
    "texts": st.lists(TEXT, max_size=4),
    "top_n": st.integers(1, 5),
    "k": st.integers(1, 600),
    "from": st.integers(1, 600),
    "depth": st.integers(1, 600),
    "stages": st.sampled_from(["bm25", "rerank", "both"]),
    "type": st.sampled_from(["auto", "none", "numeric"]),
    "model": st.sampled_from(["tiny", None]),
    "document": TEXT,
    "id": st.sampled_from(["d1", "d2", "x"]),
    "layer": st.integers(1, 3),
    "head": st.sampled_from(["mean", 1, 9]),
    "attention": st.sampled_from(["full", "strm", "strict", "exact_match"]),
    "timeout_ms": st.integers(1000, 10**9),
    "raw_scores": st.booleans(),
    "truncate": st.booleans(),
    "highlight": st.booleans(),
}
# Mostly what is expected, with a few values that may be anything: so the odd value gets far before it is noticed.
BODIES = st.builds(
    lambda valid, odd: {**valid, **odd},
    st.fixed_dictionaries({"query": VALID["query"]}, optional={k: v for k, v in VALID.items() if k != "query"}),
    st.dictionaries(st.sampled_from(sorted(VALID)), ANYTHING, max_size=2),
)
REFUSALS = {400, 404, 409, 413, 422}


@pytest.fixture(scope="module")
def client(sources: Sources) -> Iterator[Any]:
    with opened(sources, Limits(body_bytes=1 << 16), page=None) as client:
        yield client


def check(answer: Any) -> int:
    found = answer.json()
    assert answer.status_code == 200 or answer.status_code in REFUSALS
    if answer.status_code != 200:
        assert found["error"]
        assert "\n" not in found["error"]
    return int(answer.status_code)


@QUICK
@given(path=PATHS, body=BODIES)
def test_bodies_of_our_fields_with_any_values(client: Any, path: str, body: dict[str, Any]) -> None:
    assert check(client.post(path, content=json.dumps(body))) in {200, *REFUSALS}


@QUICK
@given(
    path=PATHS,
    query=st.text(min_size=1, max_size=60),
    texts=st.lists(st.text(max_size=200), min_size=1, max_size=5),
)
def test_any_text_is_taken(client: Any, path: str, query: str, texts: list[str]) -> None:
    shape = {"/rerank": {"texts": texts, "return_text": True}, "/search": {}, "/explain": {"document": texts[0]}}
    answer = client.post(path, json={"query": query, **shape[path]})
    assert check(answer) == 200
    if path == "/rerank":
        assert sorted(row["text"] for row in answer.json()) == sorted(texts)


@QUICK
@given(path=PATHS, raw=st.binary(max_size=200))
def test_any_bytes_are_refused_or_answered(client: Any, path: str, raw: bytes) -> None:
    assert check(client.post(path, content=raw)) in REFUSALS


@pytest.mark.parametrize("path", ["/rerank", "/search", "/explain"])
@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"null", 422),
        (b"[]", 422),
        (b'"text"', 422),
        (b"[" * 20_000, 400),
        (b'{"query": ' + b'{"a":' * 5000, 400),
        (b'{"query": NaN}', 400),
        (b'{"query": "\xff"}', 400),
        (b'{"query": "\\ud83d", "texts": ["a"]}', 400),
        (b"\xef\xbb\xbf{}", 400),
        (b'{"query": 1e400}', 422),
        (b" " * 70_000, 413),
        (b'{"query": "' + b"a" * 60_000 + b'", "texts": ["b"], "document": "b"}', 422),
    ],
)
def test_malformed_and_huge_bodies(client: Any, path: str, raw: bytes, status: int) -> None:
    assert check(client.post(path, content=raw)) == status


@pytest.mark.parametrize(
    "text",
    [
        "\x00",
        "\u202e\u200d\u0301",
        "👩‍👩‍👧‍👦" * 20,
        "ß" * 500,
        "İ" * 300,
        "\ufeff",
        "ﷺ" * 100,
        "a\u0300" * 400,
        "\r\n\t",
        "[SEP] [CLS]",
    ],
)
def test_unicode_that_often_breaks_things(client: Any, text: str) -> None:
    for path, body in (
        ("/rerank", {"texts": [text, "bees"]}),
        ("/search", {}),
        ("/explain", {"document": text, "attention": "strm"}),
    ):
        assert check(client.post(path, json={"query": text, **body})) == 200
