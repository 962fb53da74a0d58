"""A served system answers as it does in Python."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("torch")
from rankwell.corpus.records import Query, Run
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.checkpoints.folders import load_checkpoint, save_checkpoint
from rankwell.models.devices import Computing
from rankwell.rank.first_stage import EVERYTHING, FirstStage
from rankwell.rank.fusion import Shares
from rankwell.rank.system import System
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index
from rankwell.serve import server
from rankwell.serve.state import Sources

from .conftest import opened

QUERY = "bogue in the river"
TUNED = BM25(k1=2.0, b=0.1)


@pytest.mark.parametrize(
    ("encoded", "shares"),
    [
        (False, None),
        (False, Shares(model=0.6, first=0.4)),
        (True, Shares(model=0.5, similarity=0.3, first=0.2, normalise="z-score")),
    ],
)
def test_first_stage_depth_and_shares_are_the_systems(
    served_index: Path, tiny_checkpoint: Path, tiny_bi_encoder: Path, tmp_path: Path, encoded: bool, shares: Shares
) -> None:
    first = FirstStage(Index.open(served_index), TUNED, *((tiny_bi_encoder, 0.6) if encoded else ()))
    system = System(first, ranker=tiny_checkpoint, depth=7, shares=shares).save(tmp_path / "system")
    with opened(Sources(tmp_path / "system", computing=Computing("cpu", "fp32"), is_system=True)) as client:
        answer = client.post("/search", json={"query": QUERY, "k": 7}).json()
        ready = client.get("/ready").json()
    expected = system.search(QUERY, k=7)
    assert [row["id"] for row in answer["results"]] == [result.docid for result in expected]
    assert [row["score"] for row in answer["results"]] == pytest.approx([result.score for result in expected], abs=1e-4)
    assert answer["depth"] == ready["depth"] == 7
    assert ready["hybrid"] == (0.6 if encoded else None)


def test_answers_say_which_words_met(
    served_index: Path, tiny_bi_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = System(FirstStage(Index.open(served_index), TUNED, tiny_bi_encoder, 0.6, 0.5)).save(tmp_path / "system")
    with opened(Sources(tmp_path / "system", computing=Computing("cpu", "fp32"), is_system=True)) as client:
        encode, passes = BiEncoder.encode_queries, list[Any]()
        monkeypatch.setattr(
            BiEncoder, "encode_queries", lambda *given, **more: passes.append(given) or encode(*given, **more)
        )
        answer = client.post("/search", json={"query": QUERY, "k": 3, "words": True}).json()
        assert [texts for _, texts, *_ in passes] == [[QUERY]]  # search, word vectors and explanation share one pass
        plain = client.post("/search", json={"query": QUERY, "k": 3, "stages": "bm25"}).json()
        assert client.get("/ready").json()["words"] == 0.5
    assert [row["id"] for row in answer["results"]] == [result.docid for result in system.search(QUERY, k=3)]
    for document in answer["results"]:
        assert [met["query"] for met in document["words"]] == QUERY.split()[:1] * 2 + QUERY.split()[1:]  # bog ##ue
        assert all(met["document"] for met in document["words"])
    assert "words" not in plain["results"][0]
    with opened(Sources(served_index, computing=Computing("cpu", "fp32"))) as client:
        refused = client.post("/search", json={"query": QUERY, "words": True})
    assert refused.status_code == 409
    assert refused.json()["message"] == "this service has no word vectors; serve a system that uses them"


@pytest.mark.filterwarnings("ignore::rankwell.core.errors.Notice")
def test_the_precision_is_the_re_rankers_and_the_vectors_stay(
    served_index: Path, tiny_checkpoint: Path, tiny_bi_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankwell.models.devices.CPU_INFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text("Features\t: fp asimd asimddp\n")  # on this CPU vectors are in int8
    first = FirstStage(Index.open(served_index), TUNED, tiny_bi_encoder, 0.6, computing=Computing("cpu"))
    system = System(first, ranker=tiny_checkpoint).save(tmp_path / "system")
    before = sorted(system.folder.rglob("*"))
    assert any(path.name.startswith("vectors-") for path in before)
    with opened(Sources(system.folder, computing=Computing("cpu", "fp32"), is_system=True)) as client:
        assert client.post("/search", json={"query": QUERY}).status_code == 200
        assert client.get("/models").json()["models"][0]["precision"] == "fp32"
    assert sorted(system.folder.rglob("*")) == before


def test_a_system_without_a_re_ranker_needs_no_advice(served_index: Path, tmp_path: Path) -> None:
    system = System(FirstStage(Index.open(served_index), TUNED)).save(tmp_path / "system")
    with opened(Sources(tmp_path / "system", computing=Computing(None, "auto"), is_system=True)) as client:
        answer = client.post("/search", json={"query": QUERY, "k": 5}).json()
        assert client.get("/ready").json()["note"] is None
        refused = client.post("/rerank", json={"query": QUERY, "documents": ["a text"]})
    assert refused.status_code == 409
    assert refused.json()["message"] == "this system has no re-ranker; `rankwell serve INDEX` has one"
    assert [row["id"] for row in answer["results"]] == [result.docid for result in system.search(QUERY, k=5)]


def test_queries_have_types_by_the_rules_in_both(served_index: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    question = "how many bees in the river"
    model, tokenizer, config = load_checkpoint(tiny_checkpoint)
    save_checkpoint(tmp_path / "typed", model, tokenizer, config.changed({"template": {"name": "typed"}}))
    first = FirstStage(Index.open(served_index), computing=Computing("cpu"))
    system = System(first, ranker=tmp_path / "typed", computing=Computing(precision="fp32")).save(tmp_path / "system")
    with opened(Sources(tmp_path / "system", computing=Computing("cpu", "fp32"), is_system=True)) as client:
        answer = client.post("/search", json={"query": question, "k": 7}).json()
    assert answer["type"] == "numeric"
    expected = [result.score for result in system.search(question, k=7)]
    assert [row["score"] for row in answer["results"]] == pytest.approx(expected, abs=1e-4)


def test_a_reload_finds_what_models_the_system_has_now(
    served_index: Path, tiny_checkpoint: Path, tiny_bi_encoder: Path, tmp_path: Path
) -> None:
    folder, first = tmp_path / "system", FirstStage(Index.open(served_index))
    hybrid = FirstStage(Index.open(served_index), TUNED, tiny_bi_encoder, 0.6)
    System(first).save(folder)
    with opened(Sources(folder, computing=Computing("cpu", "fp32"), is_system=True), key="k") as client:
        client.headers["Authorization"] = "Bearer k"
        service = client.app.state.service
        for system, reranks, batch in ((System(hybrid, ranker=tiny_checkpoint), True, 64), (System(first), False, 1)):
            shutil.rmtree(folder)
            system.save(folder)
            assert client.post("/reload").json()["reranker"] is reranks
            assert (client.post("/search", json={"query": QUERY}).json()["first"] is not None) is reranks
            assert service._searches.size((service.state, "bm25", 10, EVERYTHING)) == batch
            engines = [model.ranker.engine.tokens_at_once for model in service.state.models.values()]
            assert service.engine.limit == max([1 << 17, *(16 * tokens for tokens in engines)])


def test_a_system_is_served_whole_or_not_at_all(
    rankwell: Callable[..., Any], served_index: Path, tmp_path: Path
) -> None:
    System(FirstStage(Index.open(served_index))).save(tmp_path / "system")
    assert rankwell("serve", "system", "--hybrid", "0.5").complaint == "--hybrid does not go with a system"
    assert "not an index (it has no index.json)" in rankwell("serve", tmp_path, "--port", "0").complaint


def test_an_index_is_served_by_the_options(
    rankwell: Callable[..., Any], served_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Sources] = []

    def record(sources: Sources, *_: object) -> SimpleNamespace:
        served.append(sources)
        return SimpleNamespace(unfinished=False)

    monkeypatch.setattr(server, "serve", record)
    assert rankwell("serve", served_index, "--model", "none", "--hybrid", "0.5", "--port", "0").code == 0
    assert served[0].index == served_index
    assert (served[0].is_system, served[0].search["hybrid"]) == (False, 0.5)


@pytest.mark.parametrize("shares", [Shares(model=0.6, first=0.4), Shares(0.5, 0.3, 0.2, "z-score")], ids=str)
def test_an_engine_s_scores_count_by_the_weight_of_a_first_stage(
    served_index: Path, tiny_checkpoint: Path, tiny_bi_encoder: Path, tmp_path: Path, shares: Shares
) -> None:
    index = Index.open(served_index)
    system = System(FirstStage(index, TUNED, tiny_bi_encoder, 0.6), ranker=tiny_checkpoint, shares=shares)
    system.save(tmp_path / "system")
    given = {"d3": 9.5, "d1": 7.0, "d8": 2.5, "d5": 1.0}
    texts = index.texts(list(given))
    body = {"query": QUERY, "documents": texts, "scores": list(given.values())}
    with opened(Sources(tmp_path / "system", computing=Computing("cpu", "fp32"), is_system=True)) as client:
        joined = client.post("/rerank", json=body).json()["results"]
        alone = client.post("/rerank", json={**body, "scores": None}).json()["results"]
        wrong = client.post("/rerank", json={**body, "scores": [1.0]})
    expected = system.rerank(Run.from_scores({"q": given}), [Query("q", QUERY)])["q"]
    assert [list(given)[row["index"]] for row in joined] == list(expected.docids)
    assert [row["relevance_score"] for row in joined] == pytest.approx(
        expected.scores.tolist(),
        abs=1e-3,  # stored vectors are in 16 bits
    )
    assert [row["relevance_score"] for row in alone] != [row["relevance_score"] for row in joined]
    assert wrong.status_code == 422
    assert wrong.json()["message"] == "scores: 1 for 4 documents; expected one for each"


def test_an_engine_s_scores_without_a_weight_are_refused(
    served_index: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    System(FirstStage(Index.open(served_index)), ranker=tiny_checkpoint).save(tmp_path / "system")
    with opened(Sources(tmp_path / "system", computing=Computing("cpu", "fp32"), is_system=True)) as client:
        refused = client.post("/rerank", json={"query": QUERY, "documents": ["a text"], "scores": [1.0]})
    assert refused.status_code == 422
    assert refused.json()["message"].startswith("scores: this service gives the scores of another engine no weight")
