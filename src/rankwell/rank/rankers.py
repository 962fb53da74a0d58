"""The interface of all rankers, and which kind a folder holds.

A new kind is a class with the methods of :class:`AnyRanker`, a ``from_pretrained``, and ``options``, the names of what
that takes; it is registered as ``NAME`` in :data:`RANKERS`. A folder is of that kind if it holds ``NAME.json``, or if
its ``rankwell.json`` has the template ``NAME``. Encoders trained for late interaction are of the kind ``words``. All
other folders hold cross-encoders.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rankwell.core.arrays import Scores
from rankwell.core.errors import MissingExtraError, RankwellError
from rankwell.core.registry import Registry
from rankwell.corpus.records import Query, Run
from rankwell.corpus.sources import Source
from rankwell.inputs.templates import Template, TruncationReport
from rankwell.inputs.windows import Windows
from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.names import find_model
from rankwell.models.devices import DEFAULT_COMPUTING, Computing
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

    @property
    def takes_types(self) -> bool:
        """Whether it reads the queries' types."""
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

    def predict(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """Score (query, document) pairs."""
        ...

    def rank(self, query: str, documents: Source, top_k: int | None = None) -> list[dict[str, Any]]:
        """The documents, best first, each with its ``corpus_id`` and ``score``."""
        ...

    def store_tokens(self, texts: Texts) -> None:
        """Tokenise all documents of an index or store and save the tokens there, if the ranker can reuse them."""
        ...


WORDS = "words"
"""The kind of bi-encoders that re-rank by their word vectors."""
RANKERS: Registry[Any] = Registry("ranker", {WORDS: "rankwell.rank.word_ranker"})
"""The kinds of rankers besides the cross-encoder."""


def kind_of(model: str | Path) -> str | None:
    """The kind of ranker in a folder, which may be given by a model's name; None for a cross-encoder."""
    folder = find_model(model)
    if (name := _kind_by_file(folder)) is not None:
        return name
    try:
        checkpoint = describe(folder)
        if checkpoint.compares_words:
            return WORDS
        template = (checkpoint.ranker or {}).get("template")
    except (OSError, RankwellError):
        return None  # loading the folder says what is wrong with it
    name = template.get("name") if isinstance(template, dict) else None
    return name if name in RANKERS else None


def _kind_by_file(folder: Path) -> str | None:
    return next((name for name in RANKERS if (folder / f"{name}.json").is_file()), None)


def check_options(model: str | Path, kind: str | None, **options: object) -> None:
    """Raise for the first option that is set but that the kind of ranker does not have; ``auto`` is not set."""
    known = None if kind is None else RANKERS[kind].options
    for option, value in options.items():
        if value not in (None, {}, DEFAULT_COMPUTING.precision) and known is not None and option not in known:
            raise RankwellError(f"{model}: {kind} rankers have no option {option.replace('_', '-')}")


def check_cross_encoder(folder: Path) -> None:
    """Raise if a folder holds a model that no engine of pairs can load."""
    if (kind := _kind_by_file(folder)) is not None:
        raise RankwellError(
            f"{folder} is a ranker of the kind {kind}, not a cross-encoder; open it with rankwell.open_ranker"
        )


def open_encoder(name: str | Path, computing: Computing) -> BiEncoder:
    """Open a bi-encoder."""
    try:
        from rankwell.models.bi_encoder import BiEncoder
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "torch", "models", "a bi-encoder") from None
    precision, trusted = computing.precision or "auto", computing.trust_remote_code
    return BiEncoder.from_pretrained(name, device=computing.device, precision=precision, trust_remote_code=trusted)


def queries_by_id(run: Run, queries: Sequence[Query], depth: int = 1) -> dict[str, Query]:
    """The queries by id. Raises if the run has results for any other query, or if the depth is less than 1."""
    if depth < 1:
        raise RankwellError(f"the depth must be at least 1, not {depth}")
    by_qid = {query.qid: query for query in queries}
    missing = next((qid for qid in run if qid not in by_qid), None)
    if missing is not None:
        raise RankwellError(f"the run has results for query {missing!r}, which is not among the queries")
    return by_qid
