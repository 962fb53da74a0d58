"""Rankers inside other toolkits: the real packages, and the ranker itself as the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from rankwell.corpus.records import Document
from rankwell.rank.ranker import Ranker
from rankwell.rank.system import open_searchable
from rankwell.retrieve.index import Index

QUERY = "how do bees keep warm in winter"
TEXTS = [
    "the bank has money",
    "bees keep the hive warm in winter",
    "a fish in the river",
    "honey is food for bees",
    "the city of london",
]


@pytest.fixture(scope="module")
def probabilities(ranker: Ranker) -> list[float]:
    scores = [float(ranker.predict([(QUERY, text)], activation="probability")[0]) for text in TEXTS]
    assert len(set(scores)) == len(scores)
    assert scores != sorted(scores, reverse=True)  # so an adapter that does nothing is found out
    return scores


@pytest.fixture(scope="module")
def order(probabilities: list[float]) -> list[int]:
    return sorted(range(len(TEXTS)), key=lambda i: -probabilities[i])


class TestLangChain:
    @pytest.fixture(autouse=True)
    def _package(self) -> None:
        pytest.importorskip("langchain_core")

    def test_documents_come_best_first_with_their_scores(
        self, tiny_checkpoint: Path, order: list[int], probabilities: list[float]
    ) -> None:
        from langchain_core.documents import Document

        from rankwell.adapters.langchain import RankwellCompressor

        given = [Document(page_content=text, metadata={"number": n}) for n, text in enumerate(TEXTS)]
        compressor = RankwellCompressor.from_pretrained(tiny_checkpoint, top_n=3)
        found = compressor.compress_documents(given, QUERY)
        assert [document.metadata["number"] for document in found] == order[:3]
        assert [document.page_content for document in found] == [TEXTS[i] for i in order[:3]]
        expected = [probabilities[i] for i in order[:3]]
        assert [document.metadata["relevance_score"] for document in found] == pytest.approx(expected, abs=1e-6)
        assert all("relevance_score" not in document.metadata for document in given)

    def test_nothing_in_nothing_out(self, ranker: Ranker) -> None:
        from rankwell.adapters.langchain import RankwellCompressor

        assert RankwellCompressor(ranker=ranker).compress_documents([], QUERY) == []


class TestHaystack:
    @pytest.fixture(autouse=True)
    def _package(self) -> None:
        pytest.importorskip("haystack")

    def test_a_pipeline_orders_documents_and_survives_being_written_down(
        self, tiny_checkpoint: Path, order: list[int], probabilities: list[float]
    ) -> None:
        from haystack import Document, Pipeline

        from rankwell.adapters.haystack import RankwellRanker

        given = [Document(content=text, meta={"number": n}) for n, text in enumerate(TEXTS)]
        pipeline = Pipeline()
        pipeline.add_component("ranker", RankwellRanker(str(tiny_checkpoint), top_k=4))
        # Haystack makes a reader say which modules a written pipeline may load: that stays the reader's choice.
        again = Pipeline.loads(pipeline.dumps(), allowed_modules=["rankwell.adapters.haystack"])
        for own in (pipeline, again):
            found = own.run({"ranker": {"query": QUERY, "documents": given}})["ranker"]["documents"]
            assert [document.meta["number"] for document in found] == order[:4]
            assert [document.score for document in found] == pytest.approx(
                [probabilities[i] for i in order[:4]], abs=1e-6
            )
        assert all(document.score is None for document in given)

    def test_a_number_given_at_run_time_goes_first(self, tiny_checkpoint: Path, order: list[int]) -> None:
        from haystack import Document

        from rankwell.adapters.haystack import RankwellRanker

        ranker = RankwellRanker(str(tiny_checkpoint), top_k=4)
        documents = [Document(content=text, meta={"number": n}) for n, text in enumerate(TEXTS)]
        assert [d.meta["number"] for d in ranker.run(QUERY, documents, top_k=1)["documents"]] == order[:1]
        assert ranker.run(QUERY, [])["documents"] == []


class TestPyTerrier:
    @pytest.fixture(autouse=True)
    def _package(self) -> None:
        pytest.importorskip("pyterrier")

    def test_each_query_gets_the_models_scores_and_ranks(self, ranker: Ranker) -> None:
        import pandas as pd

        from rankwell.adapters.pyterrier import RankwellTransformer

        queries = {"1": QUERY, "2": "what is the cost of car insurance"}
        rows = [
            {"qid": qid, "query": query, "docno": f"d{n}", "text": text, "score": -float(n), "rank": n}
            for qid, query in queries.items()
            for n, text in enumerate(TEXTS)
        ]
        given = pd.DataFrame(rows)
        before = given.copy()
        found = RankwellTransformer(ranker)(given)
        pd.testing.assert_frame_equal(given, before)
        for qid, query in queries.items():
            own = found[found["qid"] == qid].sort_values("rank")
            scores = ranker.predict([(query, text) for text in TEXTS])
            order = sorted(range(len(TEXTS)), key=lambda i: -scores[i])
            assert own["docno"].tolist() == [f"d{i}" for i in order]
            assert own["rank"].tolist() == list(range(len(TEXTS)))
            assert own["score"].tolist() == pytest.approx([float(scores[i]) for i in order], abs=1e-5)

    def test_it_composes_and_says_which_column_is_missing(self, ranker: Ranker) -> None:
        import pandas as pd
        import pyterrier as pt

        from rankwell.adapters.pyterrier import RankwellTransformer

        frame = pd.DataFrame([{"qid": "1", "query": QUERY, "docno": f"d{n}", "text": t} for n, t in enumerate(TEXTS)])
        best = (RankwellTransformer(ranker) % 2)(frame)
        assert sorted(best["rank"]) == [0, 1]
        assert len(RankwellTransformer(ranker)(frame.head(0))) == 0
        with pytest.raises(pt.validate.InputValidationError, match="text"):
            RankwellTransformer(ranker)(frame.drop(columns="text"))


class TestLlamaIndex:
    @pytest.fixture(autouse=True)
    def _package(self) -> None:
        pytest.importorskip("llama_index.core")

    def test_nodes_come_best_first_with_their_scores(
        self, tiny_checkpoint: Path, order: list[int], probabilities: list[float]
    ) -> None:
        from llama_index.core.schema import NodeWithScore, TextNode

        from rankwell.adapters.llamaindex import RankwellRerank

        nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in TEXTS]
        found = RankwellRerank(tiny_checkpoint, top_n=3).postprocess_nodes(nodes, query_str=QUERY)
        assert [node.node.get_content() for node in found] == [TEXTS[i] for i in order[:3]]
        assert [node.score for node in found] == pytest.approx([probabilities[i] for i in order[:3]], abs=1e-6)
        assert all(node.score == 0.0 for node in nodes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters") / "index"
    Index.build([Document(f"d{n}", text) for n, text in enumerate(TEXTS)], folder)
    return folder


@pytest.fixture(scope="module")
def hits(folder: Path) -> list[tuple[str, float]]:
    hits = list(Index.open(folder).rank(QUERY, k=2))
    assert len(hits) == 2
    return hits


class TestRetrievers:
    """Each toolkit's retriever returns what the index itself finds; with a share for a bi-encoder, what both find."""

    def test_langchain(self, folder: Path, hits: list[tuple[str, float]]) -> None:
        pytest.importorskip("langchain_core")
        from rankwell.adapters.langchain import RankwellRetriever

        found = RankwellRetriever.open(folder, k=2).invoke(QUERY)
        assert [(document.metadata["id"], document.metadata["score"]) for document in found] == hits
        assert [document.page_content for document in found] == [TEXTS[int(docid[1:])] for docid, _ in hits]

    def test_haystack(self, folder: Path, hits: list[tuple[str, float]]) -> None:
        pytest.importorskip("haystack")
        from rankwell.adapters.haystack import RankwellRetriever

        found = RankwellRetriever(str(folder)).run(QUERY, top_k=2)["documents"]
        assert [(document.id, document.score) for document in found] == hits

    def test_llama_index(self, folder: Path, hits: list[tuple[str, float]]) -> None:
        pytest.importorskip("llama_index.core")
        from rankwell.adapters.llamaindex import RankwellRetriever

        found = RankwellRetriever(folder, top_k=2).retrieve(QUERY)
        assert [(node.node.node_id, node.score) for node in found] == hits

    def test_an_index_is_searched_by_meaning_too_and_a_system_in_its_own_way(
        self, folder: Path, tiny_bi_encoder: Path, tmp_path: Path
    ) -> None:
        hybrid = open_searchable(folder, hybrid=0.5, encoder=str(tiny_bi_encoder))
        assert len(hybrid.search(QUERY, 5)) == 5  # BM25 alone finds fewer
        hybrid.save(tmp_path / "system")
        assert open_searchable(tmp_path / "system").search(QUERY, 5) == hybrid.search(QUERY, 5)
