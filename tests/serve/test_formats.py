"""Requests in the formats of other services get answers that their clients can read, with the ranker's own scores."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwell.cli.serve import read_aliases
from rankwell.core.errors import RankwellError
from rankwell.models.bi_encoder import BiEncoder
from rankwell.rank.ranker import Ranker
from rankwell.serve.state import Sources, open_state

from .conftest import opened

QUERY, TEXTS = "how do bees keep warm", ["The cluster shivers.", "Tea.", "A hive in winter."]


@pytest.fixture(scope="module")
def encoder_folder(tiny_bi_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bi-encoder under a name that no ranker has."""
    return Path(shutil.copytree(tiny_bi_encoder, tmp_path_factory.mktemp("models") / "finder"))


@pytest.fixture(scope="module")
def client(sources: Sources, encoder_folder: Path) -> Iterator[Any]:
    search = {"hybrid": 0.5, "encoder": encoder_folder}
    aliases = {"rerank-v3.5": "tiny", "text-embedding-3-small": "finder"}
    with opened(replace(sources, search=search, aliases=aliases), page=None) as client:
        yield client


@pytest.fixture(scope="module")
def expected(tiny_checkpoint: Path) -> list[tuple[int, float]]:
    found = Ranker.from_pretrained(tiny_checkpoint).rank(QUERY, TEXTS, activation="probability")
    return [(row["corpus_id"], row["score"]) for row in found]


def check(rows: list[dict[str, Any]], score: str, expected: list[tuple[int, float]]) -> None:
    assert [row["index"] for row in rows] == [number for number, _ in expected]
    np.testing.assert_allclose([row[score] for row in rows], [value for _, value in expected], atol=1e-6)


def test_coheres_answer_counts_tokens_as_its_clients_expect(client: Any, expected: Any) -> None:
    answer = client.post("/v2/rerank", json={"query": QUERY, "documents": TEXTS, "model": "rerank-v3.5"}).json()
    check(answer["results"], "relevance_score", expected)
    tokens = answer["meta"]["tokens"]
    assert tokens["input_tokens"] == answer["usage"]["total_tokens"] > 10
    assert tokens["output_tokens"] == 0
    assert answer["model"] == "tiny"


def test_voyages_format_is_known_by_its_top_k(client: Any, expected: Any) -> None:
    body = {"query": QUERY, "documents": TEXTS, "model": "rerank-2.5", "top_k": 2, "truncation": True}
    answer = client.post("/v1/rerank", json={**body, "return_documents": True}).json()
    assert answer["object"] == "list"
    check(answer["data"], "relevance_score", expected[:2])
    assert [row["document"] for row in answer["data"]] == [TEXTS[number] for number, _ in expected[:2]]
    check(client.post("/v1/rerank", json={**body, "top_k": None}).json()["data"], "relevance_score", expected)


def test_mixedbreads_format(client: Any, expected: Any) -> None:
    answer = client.post(
        "/v1/reranking", json={"query": QUERY, "input": TEXTS, "top_k": 2, "return_input": True}
    ).json()
    check(answer["data"], "score", expected[:2])
    assert answer["data"][0]["input"] == TEXTS[expected[0][0]]
    assert answer["top_k"] == 2


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_vllms_scores_are_in_the_order_of_the_texts(client: Any, expected: Any, path: str) -> None:
    answer = client.post(path, json={"text_1": QUERY, "text_2": TEXTS, "model": "tiny"}).json()
    check(answer["data"], "score", sorted(expected))
    one = client.post(path, json={"text_1": QUERY, "text_2": TEXTS[0]}).json()["data"]
    check(one, "score", [pair for pair in expected if pair[0] == 0])
    assert client.post(path, json={"text_2": TEXTS}).status_code == 422


def test_openais_embeddings_are_the_bi_encoders_vectors(client: Any, encoder_folder: Path) -> None:
    encoder = BiEncoder.from_pretrained(encoder_folder)
    vectors = encoder.encode_documents(TEXTS)
    answer = client.post("/v1/embeddings", json={"input": TEXTS, "model": "text-embedding-3-small"}).json()
    np.testing.assert_allclose([row["embedding"] for row in answer["data"]], vectors, atol=1e-6)
    packed = client.post("/v1/embeddings", json={"input": TEXTS[0], "encoding_format": "base64"}).json()["data"]
    found = np.frombuffer(base64.b64decode(packed[0]["embedding"]), "<f4")
    np.testing.assert_allclose(found, vectors[0], atol=1e-6)
    many = client.post("/v1/embeddings", json={"input": TEXTS * 20, "input_type": "query"}).json()["data"]
    np.testing.assert_allclose([row["embedding"] for row in many], encoder.encode_queries(TEXTS * 20), atol=1e-6)
    named = client.post("/v1/embeddings", json={"input": TEXTS, "model": "anything"})
    assert (named.status_code, named.json()["model"]) == (200, "finder")
    cut = client.post("/v1/embeddings", json={"input": TEXTS, "dimensions": 2, "user": "me"})
    assert (cut.status_code, cut.json()["message"].split(" (")[0]) == (422, "dimensions: there is no such field")
    np.testing.assert_allclose(client.post("/embed", json={"inputs": TEXTS}).json(), vectors, atol=1e-6)  # TEI's


def test_an_instruction_changes_the_queries_of_a_bi_encoder_whose_prompt_has_one(
    client: Any, sources: Sources, encoder_folder: Path, tmp_path: Path
) -> None:
    path, told = "config_sentence_transformers.json", "Find tea"
    folder = Path(shutil.copytree(encoder_folder, tmp_path / "told"))
    (folder / path).write_text('{"prompts": {"query": "Instruct: Find honey\\nQuery: "}}')
    encoder = BiEncoder.from_pretrained(folder)
    plain, expected = encoder.encode_queries(TEXTS), encoder.encode_queries(TEXTS, told)
    np.testing.assert_array_equal(
        expected,
        BiEncoder.from_pretrained(folder, query_prompt=f"Instruct: {told}\nQuery: ").encode_queries(TEXTS),
    )
    assert np.abs(plain - expected).max() > 1e-3
    with opened(replace(sources, search={"hybrid": 1.0, "encoder": folder}), page=None) as told_client:

        def scores(**more: str) -> dict[str, float]:
            body = {"query": QUERY, "k": 100, "stages": "hybrid", **more}
            return {row["id"]: row["score"] for row in told_client.post("/search", json=body).json()["results"]}

        body = {"input": TEXTS, "input_type": "query"}
        asked = told_client.post("/v1/embeddings", json={**body, "instruction": told}).json()["data"]
        np.testing.assert_allclose([row["embedding"] for row in asked], expected, atol=1e-6)
        tei = {"inputs": TEXTS, "prompt_name": "query"}
        np.testing.assert_allclose(told_client.post("/embed", json=tei).json(), plain, atol=1e-6)
        asked = told_client.post("/embed", json={**tei, "instruction": told}).json()
        np.testing.assert_allclose(asked, expected, atol=1e-6)
        before, after = scores(), scores(instruction=told)
        assert before == scores()  # other requests do not see it
        vectors = encoder.encode_documents(told_client.app.state.service.state.index.texts(list(after)))
        similar = vectors @ encoder.encode_queries([QUERY], told)[0]
        np.testing.assert_allclose(list(after.values()), similar, atol=2e-3)  # vectors are stored in 16 bits
        assert max(abs(after[docid] - before[docid]) for docid in after if docid in before) > 1e-3
        answers = [
            told_client.post("/v1/embeddings", json={"input": TEXTS, "instruction": told}),
            told_client.post("/v1/embeddings", json={**body, "instruction": "honey " * 600}),
            told_client.post("/search", json={"query": QUERY, "instruction": told, "stages": "bm25"}),
            client.post("/v1/embeddings", json={**body, "instruction": told}),
            client.post("/search", json={"query": QUERY, "instruction": told, "stages": "both"}),
        ]
    assert [answer.status_code for answer in answers] == [422] * 5
    assert [answer.json()["message"].split(";")[0].split("'")[0] for answer in answers] == [
        "instruction: documents take none",
        "instruction: the prompt ",
        "instruction: not taken by BM25",
        "instruction: not taken by finder",
        "instruction: not taken by finder or tiny",
    ]
    with pytest.raises(RankwellError, match="the model's prompt of queries has no place for one"):
        BiEncoder.from_pretrained(encoder_folder).encode_queries(TEXTS, told)


def test_without_a_bi_encoder_there_are_no_embeddings(sources: Sources) -> None:
    with opened(sources, page=None) as client:
        answer = client.post("/v1/embeddings", json={"input": "bees"})
    assert (answer.status_code, answer.json()["error_type"]) == (409, "unavailable")


def test_models_and_aliases_are_listed(client: Any) -> None:
    names = [model["id"] for model in client.get("/v1/models").json()["data"]]
    assert names == ["tiny", "finder", "rerank-v3.5", "text-embedding-3-small"]
    info = client.get("/info").json()
    assert info["model_id"] == "tiny"
    assert "reranker" in info["model_type"]


def test_an_alias_names_a_model_that_is_served(sources: Sources) -> None:
    assert read_aliases(["a=b", "c=d"]) == {"a": "b", "c": "d"}
    for wrong in ("a", "=b", "a="):
        with pytest.raises(RankwellError, match="expected NAME=MODEL"):
            read_aliases([wrong])
    with pytest.raises(RankwellError, match="alias a: no model called b is served"):
        open_state(replace(sources, aliases={"a": "b"}))
