"""Haystack: a ranker of documents, and a retriever over an index or system."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from haystack import Document, component

from rankwell.rank.ranker import Ranker
from rankwell.rank.system import System, open_searchable


@component
class RankwellRanker:
    """Orders documents by p(relevant), which becomes their score. ``model`` is a checkpoint folder or a name;
    ``options`` are those of :meth:`Ranker.from_pretrained`.

    Everything given is plain, so a pipeline with this component can be written to YAML; the model is loaded when the
    pipeline warms up.
    """

    def __init__(self, model: str, top_k: int | None = None, options: dict[str, Any] | None = None):
        self.model = model
        self.top_k = top_k
        self.options = options
        self._ranker: Ranker | None = None

    def warm_up(self) -> None:
        """Load the model, once."""
        if self._ranker is None:
            self._ranker = Ranker.from_pretrained(self.model, **(self.options or {}))

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, list[Document]]:
        """The best documents first; ``top_k`` goes before the component's own."""
        self.warm_up()
        assert self._ranker is not None
        if not documents:
            return {"documents": []}
        texts = [document.content or "" for document in documents]
        most = self.top_k if top_k is None else top_k
        rows = self._ranker.rank(query, texts, most, activation="probability")
        return {"documents": [replace(documents[row["corpus_id"]], score=row["score"]) for row in rows]}


@component
class RankwellRetriever:
    """The best ``top_k`` documents of an index or a system. ``options`` are ``hybrid``, ``encoder`` and ``device``."""

    def __init__(self, folder: str, top_k: int = 10, options: dict[str, Any] | None = None):
        self.folder = folder
        self.top_k = top_k
        self.options = options
        self._system: System | None = None

    def warm_up(self) -> None:
        """Open the folder, once."""
        if self._system is None:
            self._system = open_searchable(self.folder, **(self.options or {}))

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, top_k: int | None = None, filters: dict[str, Any] | str | None = None
    ) -> dict[str, list[Document]]:
        """Search; ``top_k`` overrides the component's own. ``filters`` are a text or a dict of rankwell's."""
        self.warm_up()
        assert self._system is not None
        answers = self._system.search(query, self.top_k if top_k is None else top_k, filter=filters)
        found = [Document(id=a.docid, content=a.contents, score=a.score, meta=dict(a.metadata)) for a in answers]
        return {"documents": found}
