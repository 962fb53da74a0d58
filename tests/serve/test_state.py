"""Hybrid search and blends in ``/search`` are what a system makes of the same shares."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("torch")


from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Document, Query
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.checkpoints import names
from rankwell.models.devices import EXACT
from rankwell.rank.defaults import UNFITTED
from rankwell.rank.fusion import Shares
from rankwell.rank.passage_vectors import PassageVectors
from rankwell.rank.system import System
from rankwell.retrieve.index import Index
from rankwell.serve import state
from rankwell.serve.state import Holder, Sources, default_models

from .conftest import opened, wait_until

QUERY = "bogue in the river"
THREE = Shares(model=0.3, similarity=0.5, first=0.2, normalise="z-score")


def started(
    index: Path | None,
    models: tuple[Path, ...],
    shares: Shares | None = None,
    encoder: Path | None = None,
    hybrid: float | None = None,
) -> Any:
    options = {"shares": shares, "hybrid": hybrid} | ({"encoder": encoder} if encoder else {})
    return opened(Sources(index, tuple(map(str, models)), search=options))


def search(client: Any, **body: Any) -> dict[str, float]:
    answer = client.post("/search", json={"query": QUERY, "k": 20, "depth": 20, **body}).json()
    return {row["id"]: row["score"] for row in answer["results"]}


def system_scores(index: Path, model: Path, shares: Shares, **options: Any) -> dict[str, float]:
    system = System.of_index(index, ranker=model, shares=shares, depth=20, precision="fp32", **options)
    return dict(system.search([Query("1", QUERY)], 20)["1"])


def test_three_shares_are_those_of_a_system(served_index: Path, tiny_checkpoint: Path, tiny_bi_encoder: Path) -> None:
    with started(served_index, (tiny_checkpoint,), THREE, tiny_bi_encoder) as client:
        found = search(client)
        told = client.get("/ready").json()["blend"]
    encoder = BiEncoder.from_pretrained(str(tiny_bi_encoder))
    expected = system_scores(served_index, tiny_checkpoint, THREE, encoder=tiny_bi_encoder)
    assert list(found) == list(expected)
    assert found == pytest.approx(expected, abs=1e-4)
    assert told == {"weights": {"model": 0.3, "similarity": 0.5, "bm25": 0.2}, "normalise": "z-score"}
    # All vectors were made before the first request.
    assert all(PassageVectors.is_complete(segment.store, encoder) for segment in Index.open(served_index).segments)


def test_two_shares_need_no_bi_encoder(served_index: Path, tiny_checkpoint: Path) -> None:
    shares = Shares(model=0.3, first=0.7)
    with started(served_index, (tiny_checkpoint,), shares) as client:
        found = search(client)
        told = client.get("/ready").json()["blend"]["weights"]
    expected = system_scores(served_index, tiny_checkpoint, shares)
    assert list(found) == list(expected)
    assert found == pytest.approx(expected, abs=1e-5)
    assert told == {"bm25": 0.7, "model": 0.3}


def test_probabilities_and_given_texts_stay_the_models_own(
    served_index: Path, tiny_checkpoint: Path, tiny_bi_encoder: Path
) -> None:
    body = {"query": QUERY, "documents": ["a fish in the river", "money in the bank"]}
    with started(served_index, (tiny_checkpoint,), THREE, tiny_bi_encoder) as client:
        blended = client.post("/search", json={"query": QUERY, "k": 20, "depth": 20}).json()["results"]
        given = client.post("/rerank", json=body).json()["results"]
        nothing = client.post("/search", json={"query": "zzzz"}).json()["results"]
    with started(served_index, (tiny_checkpoint,)) as client:
        plain = client.post("/search", json={"query": QUERY, "k": 20, "depth": 20}).json()["results"]
        assert client.post("/rerank", json=body).json()["results"] == given
        assert client.get("/ready").json()["blend"] is None
    assert [row["id"] for row in blended] != [row["id"] for row in plain]
    own = {row["id"]: row["probability"] for row in plain}
    assert {row["id"]: row["probability"] for row in blended} == pytest.approx(own, abs=1e-6)
    assert nothing == []


@pytest.mark.parametrize("hybrid", [None, 0.5])
def test_requests_at_once_are_answered_as_one_by_one(
    hybrid: float | None, served_index: Path, tiny_checkpoint: Path, tiny_bi_encoder: Path
) -> None:
    queries = ["bees in winter", "money and insurance", "a warm river", "the city of london"] * 4
    with started(served_index, (tiny_checkpoint,), THREE, tiny_bi_encoder, hybrid) as client:
        alone = [search(client, query=query) for query in queries]
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda query: search(client, query=query), queries))
    assert [pytest.approx(one, abs=1e-4) for one in alone] == together


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_candidates_are_those_of_hybrid_search(
    share: float, served_index: Path, tiny_checkpoint: Path, tiny_bi_encoder: Path
) -> None:
    with started(served_index, (tiny_checkpoint,), encoder=tiny_bi_encoder, hybrid=share) as client:
        answer = client.post("/search", json={"query": QUERY, "k": 20, "depth": 5}).json()
        ready = client.get("/ready").json()
    system = System.of_index(served_index, hybrid=share, encoder=tiny_bi_encoder)
    expected = system.search([Query("1", QUERY)], 20)["1"]
    assert [row["id"] for row in answer["first"]] == list(expected.docids)
    assert {row["id"] for row in answer["results"][:5]} == set(expected.docids[:5])
    assert answer["ms"]["bm25"] is None
    assert answer["ms"]["hybrid"] > 0
    assert (ready["hybrid"], ready["blend"]) == (share, None)


@pytest.mark.parametrize("few", [80, 79])
def test_an_index_that_nobody_said_how_to_search(
    few: int, served_index: Path, tiny_twin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "SHIPPED", tiny_twin)
    monkeypatch.setattr("rankwell.serve.state.UNFITTED", replace(UNFITTED, few=few))
    index = shutil.copytree(served_index, tmp_path / "index", ignore=shutil.ignore_patterns("vectors-*"))
    unasked = Sources(index, default_models(index, "torch"), reranks=False)

    def found(sources: Sources, **body: Any) -> tuple[str, list[str]]:
        with opened(sources) as client:
            answer = client.post("/search", json={"query": QUERY, "k": 20, **body}).json()
            assert client.get("/ready").json()["reranks"] is (answer["stages"] == "both" and not body)
        return answer["stages"], [row["id"] for row in answer["results"]]

    system = System.of_index(index, hybrid=UNFITTED.share, computing=EXACT)
    if few < len(system.index):  # whose vectors would take long, or too long
        monkeypatch.setattr("rankwell.serve.state.UNFITTED", replace(UNFITTED, few=few, many=few))
        assert found(unasked)[0] == "both"
        assert not list(index.rglob("vectors-*"))
        monkeypatch.setattr("rankwell.serve.state.UNFITTED", replace(UNFITTED, few=few, many=few + 1))
        with opened(unasked) as client:
            assert client.post("/search", json={"query": QUERY}).status_code == 200
            wait_until(lambda: client.get("/ready").json()["hybrid"] == UNFITTED.share)
    by_both = list(system.search([Query("1", QUERY)], 20)["1"].docids)
    assert found(unasked) == ("hybrid", by_both)
    stages, reranked = found(unasked, model="tiny", depth=20)
    assert (stages, set(reranked)) == ("both", set(by_both))
    assert found(replace(unasked, search={"hybrid": UNFITTED.share})) == ("hybrid", by_both)
    asked = replace(unasked, reranks=True)
    assert found(asked)[0] == "both"
    with opened(asked) as client:
        assert client.get("/ready").json()["hybrid"] is None


def test_what_finds_is_called_what_it_is(served_index: Path, tiny_checkpoint: Path, tiny_bi_encoder: Path) -> None:
    with started(served_index, (tiny_checkpoint,), Shares(model=0.6, first=0.4), tiny_bi_encoder, hybrid=0.5) as client:
        ready = client.get("/ready").json()
        found = client.post("/search", json={"query": QUERY, "stages": "hybrid"}).json()
        plain = client.post("/search", json={"query": QUERY, "stages": "bm25"}).json()
        only = client.post("/search", json={"query": QUERY, "stages": "rerank"}).json()
    assert ready["stages"] == ["hybrid", "bm25", "rerank", "both"]
    assert ready["blend"]["weights"] == {"hybrid": 0.4, "model": 0.6}
    assert (found["stages"], found["first"], len(found["results"])) == ("hybrid", None, 10)
    # Whoever asks for BM25 is given BM25.
    expected = Index.open(served_index).rank(QUERY, k=10)
    assert [(row["id"], row["score"]) for row in plain["results"]] == [*expected]
    assert (plain["first"], plain["ms"]["hybrid"]) == (None, None)
    assert (only["first"], len(only["results"])) == (None, 10)
    with started(served_index, (), encoder=tiny_bi_encoder, hybrid=0.5) as client:
        assert client.get("/ready").json()["stages"] == ["hybrid", "bm25"]
        assert client.post("/search", json={"query": QUERY}).json()["stages"] == "hybrid"


def test_a_service_of_bm25_alone_says_nothing_of_hybrid_search(served_index: Path, tiny_checkpoint: Path) -> None:
    with started(served_index, (tiny_checkpoint,)) as client:
        answer = client.post("/search", json={"query": QUERY}).json()
        refused = client.post("/search", json={"query": QUERY, "stages": "hybrid"})
    assert "hybrid" not in answer["ms"]
    assert (refused.status_code, refused.json()["error_type"]) == (409, "unavailable")
    assert "--hybrid" in refused.json()["message"]


def test_who_wants_more_is_not_given_less(served_index: Path, tiny_bi_encoder: Path) -> None:
    bodies = [
        {"query": query, "k": k, "depth": 1, "stages": stages, "highlight": False}
        for query, k in (("bees", 3), (QUERY, 5), ("a warm river", 3), ("city", 1000)) * 3
        for stages in ("hybrid", "bm25")
    ]

    def ask(body: dict[str, Any]) -> list[str]:
        return [row["id"] for row in client.post("/search", json=body).json()["results"]]

    with started(served_index, (), encoder=tiny_bi_encoder, hybrid=0.5) as client, ThreadPoolExecutor(8) as pool:
        alone = [ask(body) for body in bodies]
        assert list(pool.map(ask, bodies)) == alone
    assert [len(docids) for docids in alone[:6:2]] == [3, 5, 3]


def test_both_share_one_bi_encoder(served_index: Path, tiny_checkpoint: Path, tiny_bi_encoder: Path) -> None:
    with started(served_index, (tiny_checkpoint,), THREE, tiny_bi_encoder, 0.5) as client:
        found = search(client)
    expected = system_scores(served_index, tiny_checkpoint, THREE, encoder=tiny_bi_encoder, hybrid=0.5)
    assert found == pytest.approx(expected, abs=1e-4)


def build(folder: Path, count: int) -> Path:
    Index.build((Document(f"d{n}", f"{QUERY} {n}") for n in range(count)), folder, overwrite=True)
    return folder


@pytest.fixture
def replaced_when(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], None]:
    """Has an index built anew by someone else at a moment when it is being opened."""

    def at(index: Path, moment: str) -> None:
        owner, name = {
            "at first": (BiEncoder, "from_pretrained"),
            "tokens": (Tokenizer, "encode"),
            "vectors": (BiEncoder, "encode_tokens"),
        }[moment]
        real = getattr(owner, name)

        def first(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(owner, name, real)
            build(index, 20)
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, first)

    return at


@pytest.mark.parametrize("moment", ["at first", "tokens", "vectors"])
def test_an_index_that_is_replaced_while_its_vectors_are_made(
    moment: str, replaced_when: Any, tiny_bi_encoder: Path, tmp_path: Path
) -> None:
    index = build(tmp_path / "index", 30)
    replaced_when(index, moment)
    with pytest.raises(RankwellError, match=r"index was rebuilt while it was being opened; try again$"):
        started(index, (), encoder=tiny_bi_encoder, hybrid=0.5)
    # Nothing is left of what was written where the old one was, and the new one can be served.
    assert [path.name for path in index.glob("segment-*")] == ["segment-0002"]
    with started(index, (), encoder=tiny_bi_encoder, hybrid=0.5) as client:
        assert client.get("/ready").json()["index"]["documents"] == 20


def test_an_index_that_is_replaced_while_it_is_reloaded(
    replaced_when: Any, tiny_bi_encoder: Path, tmp_path: Path
) -> None:
    index = build(tmp_path / "index", 30)
    with opened(Sources(index, (), search={"hybrid": 0.5, "encoder": tiny_bi_encoder}), key="k") as client:
        client.headers["Authorization"] = "Bearer k"
        before = client.post("/search", json={"query": QUERY}).json()
        build(index, 40)
        replaced_when(index, "vectors")
        refused = client.post("/reload")
        assert (refused.status_code, refused.json()["error_type"]) == (409, "reload_failed")
        assert refused.json()["message"].endswith("was rebuilt while it was being opened; try again")
        after = client.post("/search", json={"query": QUERY}).json()
        assert (after["generation"], after["results"]) == (1, before["results"])
        assert client.post("/reload").json()["index"]["documents"] == 20


def test_an_index_that_grows_meanwhile_is_served_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tiny_bi_encoder: Path, tmp_path: Path
) -> None:
    index = build(tmp_path / "index", 30)
    real = BiEncoder.encode_tokens

    def encode(*arguments: Any) -> Any:
        monkeypatch.setattr(BiEncoder, "encode_tokens", real)
        Index.build([Document("new", "a new one")], index, append=True)
        return real(*arguments)

    monkeypatch.setattr(BiEncoder, "encode_tokens", encode)
    with started(index, (), encoder=tiny_bi_encoder, hybrid=0.5) as client:
        assert client.get("/ready").json()["index"]["documents"] == 30


def test_hybrid_search_needs_an_index(tiny_checkpoint: Path, tiny_bi_encoder: Path) -> None:
    with pytest.raises(RankwellError, match="hybrid search needs an index"):
        started(None, (tiny_checkpoint,), encoder=tiny_bi_encoder, hybrid=0.5)


def test_a_blend_needs_an_index_and_a_model(served_index: Path, tiny_checkpoint: Path) -> None:
    shares = Shares(model=0.5, first=0.5)
    for index, models in ((None, (tiny_checkpoint,)), (served_index, ())):
        with pytest.raises(RankwellError, match="needs an index and a model"):
            started(index, models, shares)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--encoder", "x"], "--encoder needs --blend or --hybrid"),
        (["--blend", "0.8", "--fuse", "0.4"], "that sum to at most 1"),
        (["--fuse", "1.5"], "a weight of 1.5 for the first stage"),
        (["--hybrid", "0"], "a weight of 0 for the bi-encoder"),
    ],
)
def test_shares_are_checked_before_anything_is_opened(
    rankwell: Callable[..., Any], options: list[str], problem: str
) -> None:
    assert problem in rankwell("serve", "nowhere", *options).complaint


@pytest.mark.parametrize(
    ("words", "seconds", "depth"),
    # Pairs of 50 tokens: 10 of the query, 3 of the template. Of 2,048 tokens in so many seconds, as many fit into one.
    # A document of 1,000 words is read in three windows of 512 tokens.
    [(37, 0.4, 100), (37, 0.8, 50), (37, 2, 20), (37, 4, 10), (37, 8, 5), (37, 9, 3), (370, 0.4, 10), (1000, 0.4, 3)],
)
def test_a_service_re_ranks_what_its_model_reads_in_a_second(
    words: int, seconds: float, depth: int, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankwell.serve.state.reading_time", lambda model: (2048, seconds))
    index = Index.build((Document(f"d{n}", "honey " * words) for n in range(40)), tmp_path / "index")
    with started(index.folder, (tiny_checkpoint,)) as client:
        assert client.post("/search", json={"query": QUERY}).json()["depth"] == depth


def test_a_reload_gives_the_memory_of_the_old_state_back(served_index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much comes back depends on the process: `bench/long_haul.py --reloads` measures it."""
    given: list[int] = []
    holder = Holder(Sources(served_index, reranks=False))
    monkeypatch.setattr(state, "_give_memory_back", lambda: given.append(holder.state.generation))
    holder.reload().result()
    holder.reload().result()
    assert given == [2, 3]
