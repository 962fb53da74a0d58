"""The interface of all rankers, and opening whichever kind a folder holds."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rankwell.core.errors import MissingExtraError, RankwellError
from rankwell.core.types import Scores
from rankwell.corpus.records import Query, Run
from rankwell.corpus.sources import Source
from rankwell.inputs.templates import Template, TruncationReport
from rankwell.inputs.windows import Windows
from rankwell.models.checkpoints.names import DEFAULT, find_model
from rankwell.models.devices import Precision
from rankwell.rank.ranker_kinds import kind_of
from rankwell.rank.texts import Texts

if TYPE_CHECKING:
    from rankwell.models.bi_encoder import BiEncoder

VectorSearch = Literal["auto", "exact", "compressed"]
"""How a bi-encoder finds documents; see :class:`~rankwell.rank.dense.DenseRanker`."""


class Reranker(Protocol):
    """Anything that reorders candidates by their texts: a ranker of any kind, or a cluster of workers."""

    @property
    def truncation(self) -> TruncationReport:
        """Counts of what was truncated so far."""
        ...

    def rerank(self, run: Run, queries: Sequence[Query], texts: Texts, *, depth: int = 1000) -> Run:
        """Re-rank the first ``depth`` candidates of each query."""
        ...


class AnyRanker(Reranker, Protocol):
    """The interface of every kind of ranker."""

    windows: Windows | None
    """How long documents are split into windows; ``None`` if they are truncated."""

    @property
    def template(self) -> Template | None:
        """How query and document form a sequence; ``None`` if the ranker has no template."""
        ...

    @property
    def takes_types(self) -> bool:
        """Whether the ranker reads the queries' types."""
        ...

    def predict(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """Score (query, document) pairs."""
        ...

    def rank(self, query: str, documents: Source, top_k: int | None = None) -> list[dict[str, Any]]:
        """The documents, best first, each with its ``corpus_id`` and ``score``."""
        ...

    def store_tokens(self, texts: Texts) -> None:
        """Tokenise all documents of an index or store and save the tokens there, if the ranker can reuse them."""
        ...


def open_ranker(
    model: str | Path = DEFAULT,
    *,
    backend: str = "torch",
    device: str | None = None,
    precision: Precision | None = None,
    trust_remote_code: bool = False,
    **options: Any,
) -> AnyRanker:
    """Open a ranker of any kind.

    ``options`` are those of :meth:`Ranker.from_pretrained <rankwell.rank.ranker.Ranker.from_pretrained>`. Raises for
    options that the kind does not support.
    """
    folder = find_model(model, code=trust_remote_code)
    kind = kind_of(folder)
    options |= {"trust_remote_code": True} if trust_remote_code else {}
    computing = {"backend": backend if backend != "torch" else None, "device": device, "precision": precision}
    options |= {option: value for option, value in computing.items() if value is not None}
    kind.check(folder, **options)
    if kind.takes is not None:
        options = {option: value for option, value in options.items() if option in kind.takes}
    module, _, name = kind.home.partition(":")
    ranker: AnyRanker = getattr(import_module(module), name).from_pretrained(folder, **options)
    if ranker.template is not None:
        ranker.template.require("query", "document")
    return ranker


def open_encoder(
    name: str | Path, device: str | None, precision: Precision | None = None, *, trust_remote_code: bool = False
) -> BiEncoder:
    """Open a bi-encoder; without a precision it chooses its own (``auto``)."""
    try:
        from rankwell.models.bi_encoder import BiEncoder
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "torch", "models", "a bi-encoder") from None
    return BiEncoder.from_pretrained(
        name, device=device, precision=precision or "auto", trust_remote_code=trust_remote_code
    )


def queries_by_id(run: Run, queries: Sequence[Query]) -> dict[str, Query]:
    """The queries by id. Raises if the run has results for any other query."""
    by_qid = {query.qid: query for query in queries}
    missing = next((qid for qid in run if qid not in by_qid), None)
    if missing is not None:
        raise RankwellError(f"the run has results for query {missing!r}, which is not among the queries")
    return by_qid
