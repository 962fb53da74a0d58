"""Relevance over HTTP: of what a fitted system finds, and of texts that its re-ranker reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("torch")
from rankwell.core.errors import RankwellError
from rankwell.models.devices import Computing
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.relevance import Calibration
from rankwell.rank.system import System
from rankwell.retrieve.index import Index
from rankwell.serve.state import Sources, open_state

from .conftest import opened

QUERY, STRANGE = "honey in the winter hive", "quark gluon honey boson"
EXACT = Computing("cpu", "fp32")
OF_MODEL = Calibration(("words", "model"), (-3.0, 5.0, 0.4, 0.2, -0.3), queries=60, documents=80)
OF_VECTORS = Calibration(("words", "similarity", "score"), (-3.0, 5.0, 1.0, 0.5, 0.1, -0.3), queries=60, documents=80)


@pytest.fixture(params=["words", "vectors", "model"])
def system(request: pytest.FixtureRequest, served_index: Path, tmp_path: Path) -> System:
    index = Index.open(served_index)
    if request.param == "words":
        own = Calibration(("words", "score"), (-3.0, 5.0, 0.1, -0.3), queries=60, documents=80)
        return System(FirstStage(index), relevance=own).save(tmp_path / "system")
    encoder = request.getfixturevalue("tiny_bi_encoder")
    if request.param == "vectors":
        return System(FirstStage(index, encoder=encoder, share=0.5), relevance=OF_VECTORS).save(tmp_path / "system")
    ranker = request.getfixturevalue("tiny_checkpoint")
    return System(FirstStage(index), ranker=ranker, depth=12, relevance=OF_MODEL).save(tmp_path / "system")


def served(system: System, least: float | None = None) -> Any:
    assert system.folder is not None
    return opened(Sources(system.folder, computing=EXACT, is_system=True, min_relevance=least))


def test_answers_have_the_relevance_that_they_have_in_python(system: System) -> None:
    expected = {answer.docid: answer.relevance for answer in system.search(QUERY, k=10)}
    with served(system) as client:
        whole = client.post("/search", json={"query": QUERY, "k": 10}).json()["results"]
        second = client.get("/search", params={"q": QUERY, "k": 4, "from": 4}).json()["results"]
    assert {row["id"]: row["relevance"] for row in whole} == pytest.approx(expected, abs=2e-3)
    assert [row["relevance"] for row in second] == pytest.approx([row["relevance"] for row in whole[4:8]])


def test_what_fits_too_little_is_left_out_and_if_nothing_fits_it_is_said(system: System) -> None:
    with served(system) as client:
        rated = [row["relevance"] for row in client.get("/search", params={"q": QUERY}).json()["results"]]
        strange = [row["relevance"] for row in client.get("/search", params={"q": STRANGE}).json()["results"]]
        least = (max(rated) + max(strange)) / 2
        assert max(strange) < least < max(rated)
        kept = client.get("/search", params={"q": QUERY, "min_relevance": least}).json()
        none = client.get("/search", params={"q": STRANGE, "min_relevance": least}).json()
    assert [row["relevance"] for row in kept["results"]] == [p for p in rated if p >= least]
    assert kept["nothing"] is None
    assert none["results"] == []
    assert none["candidates"] > 0
    assert none["nothing"].startswith("nothing fits: the relevance of the ")
    assert none["nothing"].endswith(f" documents found is {max(strange):.2f} at most")


def test_the_services_own_least_holds_unless_a_request_has_another(system: System) -> None:
    with served(system, 0.999) as client:
        assert client.get("/ready").json()["min_relevance"] == 0.999
        assert client.get("/search", params={"q": STRANGE}).json()["results"] == []
        body = {"query": STRANGE, "min_relevance": 0}
        assert client.post("/search", json=body).json()["results"] != []


@pytest.mark.parametrize("least", [-0.1, 1.1, "much"])
def test_a_relevance_that_is_no_probability_is_refused(served_index: Path, least: object) -> None:
    with opened(Sources(served_index, computing=EXACT)) as client:
        refused = client.post("/search", json={"query": QUERY, "min_relevance": least})
        assert refused.status_code == 422
        assert refused.json()["message"].startswith("min_relevance")
        assert client.get("/search", params={"q": QUERY, "min_relevance": least}).status_code == 422


def test_an_index_has_none_and_says_so(served_index: Path) -> None:
    with opened(Sources(served_index, computing=EXACT)) as client:
        assert client.get("/search", params={"q": QUERY}).json()["results"][0]["relevance"] is None
        refused = client.post("/search", json={"query": QUERY, "min_relevance": 0.3})
    assert refused.status_code == 409
    assert "only those of a system fitted to 50 judged queries" in refused.json()["message"]
    with pytest.raises(RankwellError, match="cannot tell how relevant its answers are: it is not fitted"):
        open_state(Sources(served_index, computing=EXACT, min_relevance=0.3))


def test_another_ranking_than_the_systems_has_none(served_index: Path, tiny_bi_encoder: Path, tmp_path: Path) -> None:
    first = FirstStage(Index.open(served_index), encoder=tiny_bi_encoder, share=0.5)
    with served(System(first, relevance=OF_VECTORS).save(tmp_path / "system")) as client:
        words = client.post("/search", json={"query": QUERY, "stages": "bm25"}).json()
        refused = client.post("/search", json={"query": QUERY, "stages": "bm25", "min_relevance": 0.3})
    assert {row["relevance"] for row in words["results"]} == {None}
    assert refused.status_code == 409


@pytest.mark.parametrize("raw", [False, True])
def test_texts_that_are_re_ranked_are_rated_by_their_own_words(
    served_index: Path, tiny_checkpoint: Path, tmp_path: Path, raw: bool
) -> None:
    system = System(FirstStage(Index.open(served_index)), ranker=tiny_checkpoint, depth=20, relevance=OF_MODEL)
    system = system.save(tmp_path / "system")
    found = system.search(QUERY, k=10)
    texts = [answer.text for answer in found]
    with served(system) as client:
        body = {"query": QUERY, "documents": texts[::-1], "raw_scores": raw}
        rows = client.post("/rerank", json=body).json()["results"]
        least = sorted(row["relevance"] for row in rows)[5]
        kept = client.post("/rerank", json={**body, "min_relevance": least}).json()["results"]
        tei = client.post("/rerank", json={"query": QUERY, "texts": texts, "min_relevance": 1.0}).json()
    assert [row["relevance"] for row in rows] == pytest.approx([a.relevance for a in found], abs=2e-3)
    assert kept == [row for row in rows if row["relevance"] >= least]
    assert tei == []


def test_texts_are_not_rated_where_no_system_was_fitted(sources: Sources) -> None:
    with opened(sources) as client:
        body = {"query": QUERY, "documents": ["honey"]}
        assert set(client.post("/rerank", json=body).json()["results"][0]) == {"index", "relevance_score"}
        assert client.post("/rerank", json={**body, "min_relevance": 0.5}).status_code == 409
