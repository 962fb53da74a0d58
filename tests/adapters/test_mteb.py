"""MTEB's own harness on toy tasks: the same figures as sentence-transformers' models, and as rankwell's evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

mteb = pytest.importorskip("mteb", reason="pip install mteb")
datasets = pytest.importorskip("datasets")
sentence_transformers = pytest.importorskip("sentence_transformers")

from mteb.abstasks.retrieval import AbsTaskRetrieval  # noqa: E402
from mteb.abstasks.task_metadata import TaskMetadata  # noqa: E402

from rankwell import evaluate  # noqa: E402
from rankwell.adapters.mteb import RankwellEncoder, RankwellReranker, RankwellSystem  # noqa: E402
from rankwell.corpus.records import Document, Query, Ranking, Run  # noqa: E402
from rankwell.rank.first_stage import FirstStage  # noqa: E402
from rankwell.rank.fusion import Shares  # noqa: E402
from rankwell.rank.system import System  # noqa: E402
from rankwell.retrieve.index import Index  # noqa: E402

TEXTS = {
    "d1": "bees keep the hive warm in winter",
    "d2": "a bank pays interest on money",
    "d3": "a fish swims in the cold river",
    "d4": "honey is food for bees and people",
    "d5": "the city of london has a river",
    "d6": "insurance of a car costs money",
}
QUERIES = {"q1": "how do bees keep warm", "q2": "money in a bank", "q3": "river in london"}
RELEVANT = {"q1": {"d1": 1, "d4": 1}, "q2": {"d2": 1}, "q3": {"d5": 1}}
CANDIDATES = {"q1": ["d3", "d1", "d4", "d6"], "q2": ["d6", "d2", "d5"], "q3": ["d5", "d3", "d1"]}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """MTEB looks models up on the hub, where these are not."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def make_task(kind: str) -> Any:
    """A task of the type Retrieval or Reranking."""

    class Toy(AbsTaskRetrieval):  # type: ignore[misc]
        metadata = TaskMetadata(
            type=kind,
            name=f"Toy{kind}",
            main_score="ndcg_at_10",
            description="a toy",
            dataset={"path": "toy", "revision": "1"},
            eval_langs=["eng-Latn"],
            eval_splits=["test"],
        )

        def load_data(self, num_proc: int | None = None, **_: Any) -> None:
            split = {
                "queries": datasets.Dataset.from_list([{"id": q, "text": text} for q, text in QUERIES.items()]),
                "corpus": datasets.Dataset.from_list([{"id": d, "text": text} for d, text in TEXTS.items()]),
                "relevant_docs": RELEVANT,
                "top_ranked": CANDIDATES if kind == "Reranking" else None,
            }
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return Toy()


def figures(model: Any, kind: str) -> dict[str, float]:
    """What MTEB measures, without the counts and names."""
    result = mteb.evaluate(model, make_task(kind), cache=None, show_progress_bar=False)
    (scores,) = result.task_results[0].scores["test"]
    return {name: value for name, value in scores.items() if name.startswith(("ndcg_at", "map_at", "mrr_at"))}


@pytest.mark.parametrize("kind", ["Retrieval", "Reranking"])
def test_a_bi_encoder(tiny_bi_encoder: Path, kind: str) -> None:
    expected = figures(sentence_transformers.SentenceTransformer(str(tiny_bi_encoder), device="cpu"), kind)
    found = figures(RankwellEncoder(tiny_bi_encoder, device="cpu", precision="fp32"), kind)
    assert found == pytest.approx(expected, abs=1e-6)
    assert 0 < expected["ndcg_at_10"] < 1


def test_a_ranker(tiny_models: Any, tmp_path: Path) -> None:
    folder = tiny_models.make("bert", tmp_path / "ranker")
    expected = figures(sentence_transformers.CrossEncoder(str(folder), device="cpu"), "Reranking")
    found = figures(RankwellReranker(folder, device="cpu"), "Reranking")
    assert found == pytest.approx(expected, abs=1e-6)
    assert 0 < expected["ndcg_at_10"] < 1


@pytest.mark.parametrize("ranked", [False, True])
def test_a_system(tiny_checkpoint: Path, tiny_bi_encoder: Path, tmp_path: Path, ranked: bool) -> None:
    """It was fitted to other documents; on those of the task it searches and ranks as a system of its parts does."""
    other = Index.build([Document("x", "tea and coffee"), Document("y", "honey")], tmp_path / "other")
    parts: dict[str, Any] = {"ranker": tiny_checkpoint, "depth": 3, "shares": Shares(0.7, first=0.3)} if ranked else {}
    System(FirstStage(other, encoder=tiny_bi_encoder, share=0.5), **parts).save(tmp_path / "system")
    here = Index.build([Document(docid, text) for docid, text in TEXTS.items()], tmp_path / "here")
    first = FirstStage(here, encoder=tiny_bi_encoder, share=0.5)
    system = System(first, **parts)
    queries = [Query(qid, text) for qid, text in QUERIES.items()]

    def measured(run: Run) -> float:
        return float(evaluate(RELEVANT, run, "nDCG@10").mean["nDCG@10"])

    adapter = RankwellSystem(tmp_path / "system", device="cpu")
    assert figures(adapter, "Retrieval")["ndcg_at_10"] == pytest.approx(measured(system.search(queries, 6)), abs=1e-5)
    found = first.search(queries, 6)
    kept = {qid: [docid for docid in ranking.docids if docid in CANDIDATES[qid]] for qid, ranking in found.items()}
    scores = {qid: dict(zip(found[qid].docids, found[qid].scores.tolist(), strict=True)) for qid in found}
    chosen = Run({qid: Ranking.of(ids, [scores[qid][docid] for docid in ids]) for qid, ids in kept.items()})
    expected = System(first, **{**parts, "depth": 4}).rerank(chosen, queries) if ranked else chosen
    assert figures(adapter, "Reranking")["ndcg_at_10"] == pytest.approx(measured(expected), abs=1e-5)
