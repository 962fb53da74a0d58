"""One search, whoever asks: commands, Python and the service give the same documents and scores."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("fastapi")
from fastapi.testclient import TestClient

from rankwell import sample
from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.formats import read_queries, read_run, write_queries, write_run
from rankwell.corpus.records import Document, Query, Ranking, Run
from rankwell.models.devices import Computing
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.fusion import Shares
from rankwell.rank.system import System
from rankwell.retrieve.index import Index
from rankwell.serve.api import create_app
from rankwell.serve.service import Service
from rankwell.serve.state import Sources
from rankwell.training.fit.split import only

Call = Callable[..., Any]
EXACT = Computing("cpu", "fp32")
AS_TYPED = ("--device", "cpu", "--precision", "fp32")
K, DEPTH, CLOSE = 15, 10, 1e-4
FILTER = "year >= 2005"


@pytest.fixture(scope="module")
def asked() -> list[Query]:
    data = open_dataset(sample.FOLDER)
    return [*data.queries("dev"), *data.queries("train")][:200]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    documents = [
        Document(document.docid, document.text, document.title, metadata={"year": 2000 + number % 12})
        for number, document in enumerate(open_dataset(sample.FOLDER).documents())
    ]
    folder = tmp_path_factory.mktemp("one") / "index"
    Index.build(documents[:200], folder)
    return Index.build(documents[200:], folder, append=True)


KINDS = {
    "BM25": (0.0, 0.0, False, None),
    "hybrid": (0.6, 0.0, False, None),
    "words": (0.6, 0.4, False, None),
    "re-ranked": (0.6, 0.4, True, None),
    "fused": (0.6, 0.0, True, Shares(model=0.5, similarity=0.3, first=0.2)),
}


@pytest.fixture(scope="module", params=KINDS)
def system(
    request: pytest.FixtureRequest,
    index: Index,
    tiny_bi_encoder: Path,
    tiny_checkpoint: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> System:
    share, words, reranks, shares = KINDS[request.param]
    encoder = tiny_bi_encoder if share else None
    first = FirstStage(index, encoder=encoder, share=share, words=words, computing=Computing("cpu"))
    ranker = tiny_checkpoint if reranks else None
    made = System(first, ranker=ranker, depth=DEPTH, shares=shares, computing=EXACT)
    return made.save(tmp_path_factory.mktemp("one") / "system")


@pytest.fixture(scope="module")
def client(system: System) -> Iterator[TestClient]:
    sources = Sources(system.folder, computing=EXACT, is_system=True)
    with TestClient(create_app(Service(sources))) as client:
        yield client


def assert_equal(found: Run, expected: Run) -> None:
    """The same documents with the same scores, but for the last digits: a batch of other queries rounds otherwise."""
    assert found.keys() == expected.keys()
    for qid, ranking in expected.items():
        np.testing.assert_allclose(found[qid].scores, ranking.scores, atol=CLOSE, err_msg=qid)
        scores, last = dict(ranking), ranking.scores[-1]
        for docid, score in found[qid]:
            assert abs(scores.get(docid, last) - score) < CLOSE, (qid, docid)


@pytest.mark.parametrize("filter", [None, FILTER])
def test_every_way_to_search_gives_the_same(
    rankwell: Call, client: TestClient, system: System, asked: list[Query], tmp_path: Path, filter: str | None
) -> None:
    expected = system.search(asked, K, filter=filter)
    assert len(expected) > 190
    write_queries(asked, tmp_path / "queries.tsv")
    chosen = () if filter is None else ("--filter", filter)
    done = rankwell("search", system.folder, "queries.tsv", "-k", K, "--out", "out.run", *AS_TYPED, *chosen)
    assert done.code == 0, done.err
    assert_equal(read_run(tmp_path / "out.run"), expected)

    served: dict[str, Ranking] = {}
    alone = asked if system.ranker is None else asked[::3]  # re-ranked one by one, they take long
    for query in alone:
        body = {"query": query.text, "k": K, "filter": filter}
        answer = client.post("/search", json={name: value for name, value in body.items() if value}).json()
        if rows := answer["results"]:
            served[query.qid] = Ranking.of([row["id"] for row in rows], [row["score"] for row in rows])
    deepest = K if system.ranker is None else DEPTH  # the service shows what was re-ranked
    assert_equal(Run(served), only(expected, alone).head(deepest))


def test_re_ranking_by_a_system_gives_the_same(
    rankwell: Call, system: System, asked: list[Query], tmp_path: Path
) -> None:
    if system.ranker is None:
        question = rankwell("rerank", asked[0].text, "--model", system.folder)
        assert question.complaint.endswith("is a system without a re-ranker; `rankwell search` uses it")
        return
    for query in asked[:2]:
        done = rankwell("rerank", query.text, "--model", system.folder, "--json", *AS_TYPED)
        assert done.code == 0, done.err
        answers = json.loads(done.out)["results"]
        best = system.search(query.text, DEPTH)
        expected = Ranking.of([answer.docid for answer in best], [answer.score for answer in best])
        shown = Ranking.of([answer["id"] for answer in answers], [answer["score"] for answer in answers])
        assert_equal(Run({"q": shown}), Run({"q": expected}))

    first = system.first_stage.search(asked, K)
    write_run(first, tmp_path / "first.run")
    write_queries(asked, tmp_path / "queries.tsv")
    named = "--queries", "queries.tsv", "--model", system.folder, "--out", "out.run", *AS_TYPED
    assert rankwell("rerank", "first.run", *named).code == 0
    expected = system.search(asked, K)
    assert_equal(read_run(tmp_path / "out.run"), expected)


def test_queries_may_differ_in_their_syntax(rankwell: Call, system: System, index: Index, tmp_path: Path) -> None:
    queries = [Query("1", '+glass "cold be" -arch'), Query("2", "saffron styl*"), Query("3", "stone -glass")]
    expected = system.search(queries, K, syntax=True)
    write_queries(queries, tmp_path / "queries.tsv")
    done = rankwell("search", system.folder, "queries.tsv", "-k", K, "--out", "out.run", "--syntax", *AS_TYPED)
    assert done.code == 0, done.err
    assert_equal(read_run(tmp_path / "out.run"), expected)
    assert [query.text for query in read_queries(tmp_path / "queries.tsv")] == [query.text for query in queries]
    for query in queries:
        alone = system.search([query], K, syntax=True)
        assert_equal(alone, Run({qid: expected[qid] for qid in alone}))
    assert "glass" not in " ".join(index.texts(expected["3"].docids)).lower().split()
