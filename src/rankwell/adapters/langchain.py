"""LangChain: a compressor that re-ranks retrieved documents, and a retriever over an index or system."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun, Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict

from rankwell.rank.ranker import Ranker
from rankwell.rank.system import System, open_searchable


class RankwellCompressor(BaseDocumentCompressor):
    """Orders documents by p(relevant), which goes into their metadata as ``relevance_score``, and keeps ``top_n``."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    ranker: Ranker
    top_n: int | None = None

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, top_n: int | None = None, **options: Any) -> RankwellCompressor:
        """With the ranker of a checkpoint; ``options`` are those of :meth:`Ranker.from_pretrained`."""
        return cls(ranker=Ranker.from_pretrained(folder, **options), top_n=top_n)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        """The best documents first; those given are left as they are."""
        texts = [document.page_content for document in documents]
        rows = self.ranker.rank(query, texts, self.top_n, activation="probability") if texts else []
        ranked = [(documents[row["corpus_id"]], {"relevance_score": row["score"]}) for row in rows]
        return [document.model_copy(update={"metadata": {**document.metadata, **score}}) for document, score in ranked]


class RankwellRetriever(BaseRetriever):
    """The best ``k`` documents of an index or a system; id and score are in their metadata, beside their own.

    ``filter`` restricts them, as a text or a dict such as ``{"year": {"$gte": 2015}}``.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    system: System
    k: int = 10
    filter: str | dict[str, Any] | None = None

    @classmethod
    def open(
        cls, folder: str | Path, *, k: int = 10, filter: str | dict[str, Any] | None = None, **options: Any
    ) -> RankwellRetriever:
        """Search a folder; ``options`` are ``hybrid``, ``encoder`` and ``device``."""
        return cls(system=open_searchable(folder, **options), k=k, filter=filter)

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return [
            Document(page_content=a.contents, id=a.docid, metadata={**a.metadata, "id": a.docid, "score": a.score})
            for a in self.system.search(query, self.k, filter=self.filter)
        ]
