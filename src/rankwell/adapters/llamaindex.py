"""LlamaIndex: a postprocessor that re-ranks nodes, and a retriever over an index or system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode

from rankwell.rank.ranker import Ranker
from rankwell.rank.system import open_searchable


class RankwellRerank(BaseNodePostprocessor):
    """Orders nodes by p(relevant), which becomes their score, and keeps ``top_n``.

    ``model`` is a checkpoint folder or a name; ``options`` are those of :meth:`Ranker.from_pretrained`.
    """

    model: str
    top_n: int | None = None
    _ranker: Ranker = PrivateAttr()

    def __init__(self, model: str | Path, top_n: int | None = None, **options: Any):
        super().__init__(model=str(model), top_n=top_n)
        self._ranker = Ranker.from_pretrained(model, **options)

    @classmethod
    def class_name(cls) -> str:
        """The name that LlamaIndex stores."""
        return "RankwellRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None or not nodes:
            return nodes
        texts = [node.node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
        rows = self._ranker.rank(query_bundle.query_str, texts, self.top_n, activation="probability")
        return [NodeWithScore(node=nodes[row["corpus_id"]].node, score=row["score"]) for row in rows]


class RankwellRetriever(BaseRetriever):
    """The best ``top_k`` documents of an index or a system among those that ``filter`` selects.

    ``options`` are ``hybrid``, ``encoder`` and ``device``.
    """

    def __init__(self, folder: str | Path, top_k: int = 10, filter: str | dict[str, Any] | None = None, **options: Any):
        super().__init__()
        self._system = open_searchable(folder, **options)
        self._top_k, self._filter = top_k, filter

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [
            NodeWithScore(
                node=TextNode(id_=answer.docid, text=answer.contents, metadata=dict(answer.metadata)),
                score=answer.score,
            )
            for answer in self._system.search(query_bundle.query_str, self._top_k, filter=self._filter)
        ]
