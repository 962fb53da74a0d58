"""The API answers what the ranker, the index and the explanation say."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Document, Query
from rankwell.rank.explain import explain
from rankwell.rank.ranker import Ranker
from rankwell.rank.texts import make_tokens
from rankwell.retrieve.index import Index
from rankwell.serve import state
from rankwell.serve.formats import Limits
from rankwell.serve.service import Service
from rankwell.serve.state import Sources

from .conftest import opened

QUERY = "how do bees keep warm in winter"
TEXTS = [
    *("The bees cluster.", "A bogus fish in the river.", "Running a bank in London", "bees warm", "winter honey"),
    *("insurance", "a café in the city of London", "numeric money", "how warm", "Bogue and honey."),
    "",
    "ünïcode 🐝 and 漢字",
    "bees " * 700,
]


@pytest.fixture(scope="module")
def client(sources: Sources) -> Iterator[Any]:
    with opened(sources, page=None) as client:
        yield client


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_coheres_shape_is_the_rankers_order(client: Any, ranker: Ranker, path: str) -> None:
    documents: list[Any] = [*TEXTS[:-1], {"text": TEXTS[-1], "id": 7}]
    body = {"query": QUERY, "documents": documents, "top_n": 5, "return_documents": True, "model": "tiny"}
    body["max_tokens_per_doc"] = 4096
    answer = client.post(path, json=body).json()
    expected = ranker.rank(QUERY, TEXTS, 5, return_documents=True, activation="probability")
    assert [row["index"] for row in answer["results"]] == [row["corpus_id"] for row in expected]
    assert [row["document"] for row in answer["results"]] == [{"text": row["text"]} for row in expected]
    found = [row["relevance_score"] for row in answer["results"]]
    np.testing.assert_allclose(found, [row["score"] for row in expected], atol=1e-6)
    assert answer["model"] == "tiny"
    assert answer["meta"]["truncated"] == 0


@pytest.mark.parametrize("raw", [False, True])
def test_teis_shape_is_the_rankers_order(client: Any, ranker: Ranker, raw: bool) -> None:
    body = {"query": QUERY, "texts": TEXTS, "raw_scores": raw, "return_text": True}
    answer = client.post("/rerank", json=body).json()
    expected = ranker.rank(QUERY, TEXTS, return_documents=True, activation=None if raw else "probability")
    assert [(row["index"], row["text"]) for row in answer] == [(row["corpus_id"], row["text"]) for row in expected]
    np.testing.assert_allclose([row["score"] for row in answer], [row["score"] for row in expected], atol=1e-6)


def test_texts_come_back_only_when_asked_for(client: Any) -> None:
    tei = client.post("/rerank", json={"query": QUERY, "texts": TEXTS[:3]}).json()
    assert client.post("/rerank", json={"query": QUERY, "texts": TEXTS[:3], "top_n": 2}).json() == tei[:2]  # LiteLLM's
    cohere = client.post("/rerank", json={"query": QUERY, "documents": TEXTS[:3]}).json()
    assert all(row.keys() == {"index", "score"} for row in tei)
    assert all(row.keys() == {"index", "relevance_score"} for row in cohere["results"])


def test_long_texts_are_cut_only_on_request(client: Any, tiny_checkpoint: Path) -> None:
    long = "bees keep warm " * 300 + " the river bank " * 150
    body = {"query": QUERY, "documents": [long, "tea"], "raw_scores": True}
    whole = client.post("/rerank", json=body).json()
    cut = client.post("/rerank", json={**body, "truncate": True}).json()
    assert (whole["meta"]["truncated"], cut["meta"]["truncated"]) == (0, 1)
    assert whole["meta"]["tokens"]["input_tokens"] > 1000 > cut["meta"]["tokens"]["input_tokens"]
    expected = Ranker.from_pretrained(tiny_checkpoint, windows=None).predict([(QUERY, long)])[0]
    found = next(row["relevance_score"] for row in cut["results"] if row["index"] == 0)
    assert found == pytest.approx(float(expected), abs=1e-6)


def test_a_search_shows_both_rankings_and_what_moved(client: Any, ranker: Ranker, served_index: Path) -> None:
    index = Index.open(served_index)
    query = "warm bees in a numeric hive"
    body = {"query": query, "k": 5, "from": 3, "depth": 20}
    answer = client.post("/search", json=body).json()
    first = index.search([Query("q", query)], k=20)
    second = ranker.rerank(first, [Query("q", query)], index)["q"]
    before, after = first["q"].docids, second.docids
    assert [row["id"] for row in answer["first"]] == list(before[3:8])
    assert [row["id"] for row in answer["results"]] == list(after[3:8])
    np.testing.assert_allclose([row["score"] for row in answer["results"]], second.scores[3:8], atol=1e-6)
    np.testing.assert_allclose([row["score"] for row in answer["first"]], first["q"].scores[3:8], rtol=1e-6)
    for name, place in (("first", 3), ("results", 3)):
        for rank, row in enumerate(answer[name], place + 1):
            assert row["rank"] == rank
            assert (row["before"], row["after"]) == (before.index(row["id"]) + 1, after.index(row["id"]) + 1)
            assert row["moved"] == row["before"] - row["after"]
    assert all(row["text"] == index.text(row["id"]) for name in ("first", "results") for row in answer[name])
    assert answer["candidates"] == len(before) == 20


def test_pages_join_to_the_whole_ranking(client: Any) -> None:
    body = {"query": QUERY, "depth": 30, "highlight": False}
    pages = [client.post("/search", json={**body, "k": 10, "from": place}).json() for place in (0, 10, 20, 30)]
    whole = client.post("/search", json={**body, "k": 40}).json()
    joined = [row["id"] for page in pages for row in page["results"]]
    assert joined == [row["id"] for row in whole["results"]]
    assert len(set(joined)) == len(joined) == 30
    deeper = [row for row in whole["first"] if row["after"] is None]
    assert len(whole["first"]) == 40
    assert len(deeper) == 10


@pytest.mark.parametrize(("stages", "empty"), [("bm25", "rerank"), ("rerank", "first")])
def test_only_the_stages_asked_for_are_run(client: Any, stages: str, empty: str) -> None:
    answer = client.post("/search", json={"query": QUERY, "stages": stages}).json()
    assert (answer["first"], len(answer["results"])) == (None, 10)
    assert answer["ms"].get(empty) is None
    assert all(row["moved"] is None for row in answer["results"])


def test_a_query_that_matches_nothing_has_no_results(client: Any) -> None:
    answer = client.post("/search", json={"query": "zzzz"}).json()
    assert (answer["first"], answer["results"], answer["candidates"]) == ([], [], 0)
    assert (answer["nothing"], answer["did_you_mean"]) == ("no document has a word of this question", None)
    misspelt = client.post("/search", json={"query": "wintr"}).json()
    assert (misspelt["did_you_mean"], misspelt["nothing"]) == ("winter", None)


def test_stored_tokens_give_the_same_answer(tmp_path: Path, tiny_checkpoint: Path, ranker: Ranker) -> None:
    index = Index.build([Document(f"x{n}", text) for n, text in enumerate(TEXTS[:6])], tmp_path / "index")
    answers = []
    for _ in range(2):
        with opened(Sources(tmp_path / "index", (str(tiny_checkpoint),))) as client:
            answers.append([client.post("/search", json={"query": q}).json()["results"] for q in ("bees", "zzzz")])
        make_tokens(index, ranker.tokenizer)
    assert [row["id"] for row in answers[0][0]] == [row["id"] for row in answers[1][0]]
    assert answers[0][1] == answers[1][1] == []


def test_matches_and_split_words_are_spans_of_the_text(tmp_path: Path, tiny_checkpoint: Path) -> None:
    text = "🐝 Running bees, a Bogue; the cafés run the hive"
    Index.build([Document("x", text)], tmp_path / "index")
    with opened(Sources(tmp_path / "index", (str(tiny_checkpoint),))) as client:
        answer = client.post("/search", json={"query": "bogue runs in the hive"}).json()
    own = answer["results"][0]
    assert [(text[m["begin"] : m["end"]], m["term"]) for m in own["matches"]] == [
        ("Running", 1),
        ("Bogue", 0),
        ("run", 1),
        ("hive", 2),
    ]
    split = {text[s["begin"] : s["end"]]: s["pieces"] for s in own["split_words"]}
    assert split["Bogue"] == ["bog", "##ue"]
    assert "hive" not in split
    assert answer["query_split_words"][0] == {"begin": 0, "end": 5, "pieces": ["bog", "##ue"]}
    assert [m["term"] for m in answer["query_matches"]] == [0, 1, 2]


def test_only_the_first_documents_are_highlighted(sources: Sources) -> None:
    with opened(sources, Limits(highlighted=3)) as client:
        answer = client.post("/search", json={"query": "bees", "k": 10, "stages": "bm25"}).json()
    highlighted = [bool(document["matches"]) for document in answer["results"]]
    assert highlighted == [True] * 3 + [False] * 7
    assert answer["query_matches"]


def test_an_explanation_is_that_of_rankwell_explain(client: Any, ranker: Ranker, served_index: Path) -> None:
    text = Index.open(served_index).text("d3")
    body = {"query": QUERY, "id": "d3", "layer": 1, "head": 2, "attention": "strm", "links": 3}
    answer = client.post("/explain", json=body).json()
    own = explain(ranker, QUERY, text, attention="strm")
    for name, value in own.as_dict(1, 2).items():
        assert json.loads(json.dumps(value)) == answer[name], name
    assert answer["open"] == own.open_in(1).astype(int).tolist()
    assert [link["weight"] for link in answer["links"]] == pytest.approx(
        [link.weight for link in own.strongest(1, 2, most=3)], abs=1e-5
    )
    same = client.post("/explain", json={**{k: v for k, v in body.items() if k != "id"}, "document": text}).json()
    assert same["attention"] == answer["attention"]


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/rerank", {"query": "a", "texts": ["b"], "documents": ["b"]}, 422, "expected either"),
        ("/rerank", {"query": "a"}, 422, "expected either"),
        ("/rerank", {"query": "a", "texts": []}, 422, "texts"),
        ("/rerank", {"query": "", "texts": ["b"]}, 422, "query"),
        ("/rerank", {"query": "a", "texts": ["b", 3]}, 422, "texts.1"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, 422, "top_n"),
        ("/rerank", {"query": "a", "texts": ["b"], "instruction": "c"}, 422, "instruction: not taken by tiny"),
        ("/rerank", {"query": "a", "documents": ["b"], "filter": "c = 1"}, 422, "filter: there is no such field"),
        ("/rerank", {"query": "a", "texts": ["b"], "type": "numeric"}, 422, "takes no query type"),
        ("/rerank", {"query": "a", "texts": ["b"], "timeout_ms": 0}, 422, "timeout_ms"),
        ("/search", {"query": "a", "k": 0}, 422, "k"),
        ("/search", {"query": "a", "k": 600, "from": 600}, 422, "1,200"),
        ("/search", {"query": "a", "stages": "all"}, 422, "stages"),
        ("/explain", {"query": "a"}, 422, "expected either"),
        ("/explain", {"query": "a", "id": "nowhere"}, 404, "document"),
        ("/explain", {"query": "a", "document": "b", "layer": 99}, 422, "layer"),
        ("/reload", {}, 403, "key"),
        ("/nowhere", {}, 404, "no such path"),
        ("/health", {}, 405, "method"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(client: Any, path: str, body: Any, status: int, said: str) -> None:
    answer = client.post(path, json=body, headers={"X-Request-Id": "abc-1"})
    found = answer.json()
    assert answer.status_code == status
    assert said in found["error"]
    assert found["error"] == found["message"]
    assert "\n" not in found["error"]
    assert found["request_id"] == answer.headers["x-request-id"] == "abc-1"


def test_limits_are_kept(sources: Sources) -> None:
    limits = Limits(body_bytes=2000, documents=3, text_characters=50, query_characters=20, explained_characters=30)
    with opened(sources, limits) as client:

        def status(**body: Any) -> int:
            return int(client.post("/rerank", json={"query": "a", **body}).status_code)

        assert status(texts=["b"] * 3) == 200
        assert status(texts=["b"] * 4) == 422
        assert status(texts=["b" * 50]) == 200
        assert status(texts=["b" * 51]) == 422
        assert status(query="a" * 21, texts=["b"]) == 422
        assert status(texts=["b"], other="c" * 2000) == 413
        assert client.post("/explain", json={"query": "a", "document": "b" * 31}).status_code == 422
        chunks = iter([b'{"query": "a", "texts": ["', b"b" * 3000, b'"]}'])
        assert client.post("/rerank", content=chunks).status_code == 413


def test_a_service_with_a_key_asks_for_it(sources: Sources, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<!doctype html><title>page</title>")
    (tmp_path / "page.js").write_text("")
    with opened(sources, key="sésame", page=tmp_path) as client:
        body = {"query": "a", "texts": ["b"]}
        assert client.post("/rerank", json=body).status_code == 401
        for wrong in ("Bearer ", "Bearer sesame", "Basic sésame", "sésame"):
            headers = {"Authorization": wrong.encode()}
            assert client.post("/rerank", json=body, headers=headers).status_code == 401
        right = {"Authorization": "Bearer sésame".encode()}
        assert client.post("/rerank", json=body, headers=right).status_code == 200
        assert client.get("/metrics").status_code == client.get("/models").status_code == 401
        for path in ("/", "/page.js", "/health", "/ready", "/docs"):
            assert client.get(path).status_code == 200
        assert client.post("/reload", headers=right).json()["generation"] == 2
        assert client.post("/reload").status_code == 401


def test_other_hosts_pages_are_let_in_only_by_name(sources: Sources) -> None:
    asks = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    with opened(sources) as client:
        assert "access-control-allow-origin" not in client.get("/health", headers=asks).headers
    with opened(sources, origins=("https://a.example",), key="k") as client:
        for answer in (client.get("/health", headers=asks), client.options("/rerank", headers=asks)):
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == "https://a.example"
        assert client.post("/rerank", headers=asks).status_code == 401


@pytest.mark.parametrize(
    ("lacks", "hint"), [(None, ", such as rankwell-mini"), ("it needs torch", " (it needs torch)")]
)
def test_without_a_model_there_is_bm25_and_a_note(
    lacks: str | None, hint: str, served_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "default_lacks", lambda: lacks)
    note = "no re-ranker is served; add one with --model" + hint
    with opened(Sources(served_index)) as client:
        ready = client.get("/ready").json()
        assert (ready["note"], ready["reranker"], ready["stages"]) == (note, False, ["bm25"])
        answer = client.post("/search", json={"query": QUERY}).json()
        assert answer["stages"] == "bm25"
        assert len(answer["results"]) == 10
        for path, body in (("/rerank", {"query": "a", "texts": ["b"]}), ("/search", {"query": "a", "stages": "both"})):
            refused = client.post(path, json=body)
            assert (refused.status_code, refused.json()["error"]) == (409, note)


def test_without_an_index_texts_are_ranked_all_the_same(tiny_checkpoint: Path) -> None:
    with opened(Sources(None, (str(tiny_checkpoint),))) as client:
        assert client.post("/rerank", json={"query": "a", "texts": ["b"]}).status_code == 200
        assert client.post("/search", json={"query": "a"}).status_code == 409
        assert client.post("/explain", json={"query": "a", "id": "b"}).status_code == 409
        assert client.get("/ready").json()["index"] is None


def test_two_models_are_asked_by_name(served_index: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_checkpoint, other)
    (other / "rankwell.json").write_text('{"template": {"name": "typed"}, "attention": "strm"}')
    with opened(Sources(served_index, (str(tiny_checkpoint), str(other)))) as client:
        listed = client.get("/models").json()
        assert (listed["default"], [m["name"] for m in listed["models"]]) == ("tiny", ["tiny", "other"])
        assert [m["typed"] for m in listed["models"]] == [False, True]
        body = {"query": "how many bees are in a hive", "texts": TEXTS[:4], "raw_scores": True}
        unknown = client.post("/rerank", json={"query": "a", "texts": ["b"], "model": "rerank-v3.5"})
        assert (unknown.status_code, unknown.json()["message"]) == (404, "unknown model; available: tiny, other")
        typed = Ranker.from_pretrained(other)
        for label, meant in (("auto", "numeric"), (None, "numeric"), ("none", None), ("person", "person")):
            answer = client.post("/rerank", json={**body, "model": "other", "type": label}).json()
            expected = typed.rank(body["query"], TEXTS[:4], type=meant)
            np.testing.assert_allclose([r["score"] for r in answer], [r["score"] for r in expected], atol=1e-6)
        explained = {"query": body["query"], "document": TEXTS[0], "type": "auto"}
        for name in ("tiny", "other"):  # a model without types is not given what the rules find
            assert client.post("/explain", json={**explained, "model": name}).status_code == 200
        found = [client.post("/search", json={"query": QUERY, "model": name}).json() for name in ("tiny", "other")]
        assert [one["model"] for one in found] == ["tiny", "other"]
        assert [one["type"] for one in found] == [None, "description"]
        assert found[0]["results"] != found[1]["results"]


def test_what_cannot_be_served_is_said_at_the_start(served_index: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(RankwellError, match="nothing to serve"):
        Service(Sources())
    with pytest.raises(RankwellError, match="given twice"):
        Service(Sources(None, (str(tiny_checkpoint),) * 2))
    Index.build([Document("x", "bees")], tmp_path / "bare", store=False)
    with pytest.raises(RankwellError, match="without texts"):
        Service(Sources(tmp_path / "bare", (str(tiny_checkpoint),)))
    duo = tmp_path / "duo"
    shutil.copytree(tiny_checkpoint, duo)
    (duo / "rankwell.json").write_text('{"template": {"name": "duo"}}')
    with pytest.raises(RankwellError, match="duo: the model's template duo reads query and document and other"):
        Service(Sources(None, (str(duo),)))


def test_a_search_by_its_address_is_that_of_a_body(client: Any) -> None:
    body = {"query": QUERY, "k": 3, "from": 1, "stages": "bm25", "highlight": False}
    address = {**body, "q": body["query"], "highlight": "false"}
    del address["query"]
    answers = client.post("/search", json=body).json(), client.get("/search", params=address).json()
    assert [answer.pop("ms") is None for answer in answers] == [False, False]
    assert answers[0] == answers[1]
    assert client.get("/search").json()["error"].startswith("query: ")
    assert client.get("/search?q=bees&k=many").json()["error"].startswith("k: ")
    assert client.get("/search?q=bees&year=2015").json()["error"].startswith("year: ")
    assert client.put("/search").headers["allow"] == "GET, HEAD, POST"


def test_an_index_without_texts_is_searched_by_bm25(tmp_path: Path) -> None:
    Index.build([Document("x", "bees in a hive")], tmp_path / "bare", store=False)
    with opened(Sources(tmp_path / "bare")) as client:
        answer = client.post("/search", json={"query": "hive"}).json()
        nothing = {"title": "", "text": None, "fields": {}, "title_matches": [], "matches": [], "split_words": []}
        assert nothing.items() <= answer["results"][0].items()


def test_a_title_comes_apart_from_the_text(tmp_path: Path) -> None:
    Index.build([Document("x", "They live in a hive.", "Bees in winter")], tmp_path / "index")
    with opened(Sources(tmp_path / "index")) as client:
        own = client.post("/search", json={"query": "winter hive"}).json()["results"][0]
    assert (own["title"], own["text"]) == ("Bees in winter", "They live in a hive.")
    assert [own["title"][m["begin"] : m["end"]] for m in own["title_matches"]] == ["winter"]
    assert [own["text"][m["begin"] : m["end"]] for m in own["matches"]] == ["hive"]


def test_metrics_count_requests_by_known_paths(sources: Sources) -> None:
    with opened(sources) as client:
        for path in ("/health", "/x1", "/x2"):
            client.get(path)
        client.post("/rerank", json={"query": "a", "texts": ["b", "c"]})
        text = client.get("/metrics").text
    assert 'rankwell_requests_total{path="other",status="404"} 2.0' in text
    assert 'rankwell_requests_total{path="/rerank",status="200"} 1.0' in text
    assert "rankwell_sequences_total 2.0" in text
    assert "rankwell_queue_tokens 0.0" in text
    assert "x1" not in text


def test_the_log_holds_numbers_and_no_text(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="rankwell.serve"):
        client.post(
            "/rerank", json={"query": "secretquery", "texts": ["secretbody"] * 2}, headers={"X-Request-Id": "r1"}
        )
        client.post("/rerank", json={"query": "secretquery", "texts": ["secretbody", 5]})
        client.post("/search", json={"query": "secretquery"})
    from rankwell.serve.bodies import JsonLines

    lines = [JsonLines().format(record) for record in caplog.records]
    first = json.loads(lines[0])
    assert (first["request_id"], first["status"], first["pairs"], first["path"]) == ("r1", 200, 2, "/rerank")
    assert {"ms", "tokens", "queue_ms", "bytes", "time"} <= first.keys()
    assert "secret" not in "".join(lines)


def test_the_description_is_whole_and_asks_no_other_host(client: Any) -> None:
    described = client.get("/openapi.json").json()
    names = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(described)))
    assert names <= described["components"]["schemas"].keys()
    assert {"/rerank", "/search", "/explain", "/reload", "/models", "/ready"} <= described["paths"].keys()
    page = client.get("/docs")
    assert "POST /rerank" in page.text
    assert f"curl {client.base_url}/rerank -d" in page.text
    assert re.findall(r"""(?:src|href)=["'](?!/)""", page.text) == []
    assert "default-src 'self'" in page.headers["content-security-policy"]


def test_half_a_surrogate_pair_of_a_document_does_no_harm(tmp_path: Path, tiny_checkpoint: Path) -> None:
    Index.build([Document("x", "bees \ud800 hive")], tmp_path / "index")
    with opened(Sources(tmp_path / "index", (str(tiny_checkpoint),))) as client:
        answer = client.post("/search", json={"query": "hive"})
        assert answer.status_code == 200
        text = answer.json()["results"][0]["text"]
        (match,) = answer.json()["results"][0]["matches"]
        assert text[match["begin"] : match["end"]] == "hive"
        assert client.post("/explain", json={"query": "hive", "id": "x"}).status_code == 200


def test_markdown_is_answered_plain_and_kept_as_it_is(tmp_path: Path) -> None:
    text = "They **shiver** in a [cluster](https://hive.example)."
    Index.build([Document("notes/bees.md", text)], tmp_path / "index")
    with opened(Sources(tmp_path / "index")) as client:
        (row,) = client.post("/search", json={"query": "cluster"}).json()["results"]
        assert row["text"] == "They shiver in a cluster."
        assert [row["text"][m["begin"] : m["end"]] for m in row["matches"]] == ["cluster"]
        assert client.get("/documents/notes/bees.md").json()["text"] == text


def test_limits_must_make_sense() -> None:
    with pytest.raises(RankwellError, match="documents"):
        replace(Limits(), documents=0)
