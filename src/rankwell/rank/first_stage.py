"""First stages: how the candidates of a query are found, by BM25, a bi-encoder or both, and the folder that records it.

``first-stage.json`` names the index and the bi-encoder relative to its own folder, so that all of them can be moved
together; neither has to lie in the folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.manifest import read_object, write_json
from rankwell.corpus.filters import FilterSource
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.corpus.store import DocumentStore
from rankwell.models.devices import DEFAULT_COMPUTING, Computing
from rankwell.rank.fusion import Shares, before_rest, fuse
from rankwell.rank.models import Models
from rankwell.rank.rankers import VectorSearch
from rankwell.rank.texts import Texts
from rankwell.retrieve.bm25 import BM25, DEFAULT_BM25
from rankwell.retrieve.index import QUERIES_AT_A_TIME, Index
from rankwell.retrieve.syntax import find_exact, plain_text

if TYPE_CHECKING:
    from rankwell.rank.dense import DenseRanker, EncodedQueries

FIRST_STAGE = "first-stage.json"
VERSION = 2
WORDS_DEPTH = 100
"""The documents of each query that word vectors re-rank."""
Encoder = str | Path


@dataclass(frozen=True)
class Scope:
    """What one request adds to a search: among which documents, how queries are read, and what the encoder is told.

    ``filter`` selects documents by their metadata; with ``syntax``, queries may have phrases in quotes, ``+word``,
    ``-word`` and ``prefix*``; ``instruction`` takes the place of that in the bi-encoder's prompt of queries.
    ``signals`` are those of relevance to return with the documents, and ``min_relevance`` is the least to return.
    """

    filter: FilterSource | None = None
    syntax: bool = False
    instruction: str | None = None
    signals: tuple[str, ...] = ()
    min_relevance: float = 0.0

    def plain(self, queries: Sequence[Query]) -> Sequence[Query]:
        """The queries as models read them."""
        return [replace(query, text=plain_text(query.text)) for query in queries] if self.syntax else queries


EVERYTHING = Scope()


class Finder:
    """What first stages share: a bi-encoder with its share, and the weight of its word vectors."""

    encoder: Encoder | None
    share: float
    words: float
    vectors: VectorSearch
    computing: Computing
    models: Models
    words_depth = WORDS_DEPTH

    def __post_init__(self) -> None:
        if self.share:
            Shares.hybrid(self.share)
        if not 0 <= self.words <= 1:
            raise RankwellError(f"a weight of {self.words:g} for word vectors; expected a number from 0 to 1")
        if self.encodes and self.encoder is None:
            named = (
                f"weight of {self.share:g} for a bi-encoder" if self.share else f"weight of {self.words:g} for words"
            )
            raise RankwellError(f"a {named}, but no bi-encoder is given")

    @property
    def texts(self) -> Texts:
        """The documents' texts."""
        raise NotImplementedError

    @property
    def encodes(self) -> bool:
        """Whether a search needs the bi-encoder."""
        return bool(self.share or self.words)

    @property
    def dense(self) -> DenseRanker:
        """The bi-encoder, opened when it is first needed."""
        if self.encoder is None:
            raise RankwellError("this first stage has no bi-encoder")
        return self.models.dense(self.encoder, self.vectors, self.computing)

    def encode(
        self, queries: Sequence[Query], scope: Scope = EVERYTHING, *, needed: bool = False
    ) -> EncodedQueries | None:
        """The queries as the bi-encoder reads them, if a search needs it; with their words only if they are few."""
        if not (needed or self.encodes):
            return None
        words = bool(self.words) and len(queries) <= QUERIES_AT_A_TIME
        return self.dense.encode(scope.plain(queries), words=words, instruction=scope.instruction)

    def search(
        self,
        queries: Sequence[Query],
        k: int = 1000,
        scope: Scope = EVERYTHING,
        *,
        threads: int = 1,
        encoded: EncodedQueries | None = None,
    ) -> Run:
        """The best ``k`` documents of each query within the ``scope``.

        ``encoded`` are the queries as :meth:`encode` reads them, if they are needed for more than this.
        """
        if not self.words or k < 1:
            read = self.encode(queries, scope) if encoded is None else encoded
            return self._find(queries, k, scope, threads, read)
        rankings, name = dict[str, Ranking](), "BM25"
        for begin in range(0, len(queries), QUERIES_AT_A_TIME):  # word vectors are large
            some = queries[begin : begin + QUERIES_AT_A_TIME]
            read = encoded if encoded is not None and encoded.words else self.encode(some, scope)
            run = self._find(some, max(k, self.words_depth), scope, threads, read)
            rankings |= self.add_words(run, some, read).head(k)
            name = run.name
        return Run(rankings, name=name)

    def _find(
        self, queries: Sequence[Query], k: int, scope: Scope, threads: int, encoded: EncodedQueries | None
    ) -> Run:
        """The best documents before word vectors re-rank them."""
        raise NotImplementedError

    def add_words(self, run: Run, queries: Sequence[Query], encoded: EncodedQueries | None = None) -> Run:
        """A run whose best documents are in the order of its scores and those of the word vectors, by their weight."""
        if not self.words:
            return run
        top = run.head(self.words_depth)
        words = self.dense.compare_words(top, queries, self.texts, encoded)
        weights = Shares.beside_model(first=1 - self.words, normalise="z-score")
        return Run(before_rest(fuse({"first": top, "model": words}, weights), run), name=run.name)


@dataclass(frozen=True, eq=False)
class FirstStage(Finder):
    """An index to search with BM25, a bi-encoder or both.

    ``share`` is the bi-encoder's: 0 searches with BM25 alone, 1 with the bi-encoder alone, anything between with both.
    ``words`` is the weight of its word vectors, by which the best 100 documents are re-ranked; 0 does without.
    ``encoder`` is a folder or a name; it is opened when it is first needed, and searches its ``vectors`` in one of
    the ways of :class:`~rankwell.rank.dense.DenseRanker`.

    >>> first = FirstStage(Index.open("index"), encoder="rankwell-mini", share=0.7)       # doctest: +SKIP
    >>> first.search([Query("q", "how do bees keep warm")], k=10)                         # doctest: +SKIP
    """

    index: Index
    bm25: BM25 = DEFAULT_BM25
    encoder: Encoder | None = None
    share: float = 0.0
    words: float = 0.0
    _: KW_ONLY
    vectors: VectorSearch = "auto"
    computing: Computing = DEFAULT_COMPUTING
    models: Models = field(default_factory=Models, repr=False)
    """What is open; shared by all that :func:`~dataclasses.replace` makes of this."""

    @property
    def texts(self) -> Index:
        """The index, which stores the texts."""
        return self.index

    def _find(
        self, queries: Sequence[Query], k: int, scope: Scope, threads: int, encoded: EncodedQueries | None
    ) -> Run:
        def search(index: Index, queries: Sequence[Query]) -> Run:
            if not self.share:
                return index.search(queries, self.bm25, k=k, threads=threads)
            from rankwell.rank.dense import search_hybrid

            weights = self.share, self.bm25
            return search_hybrid(index, self.dense, queries, *weights, k=k, threads=threads, encoded=encoded)

        index = self.index.filtered(scope.filter)
        if not scope.syntax:
            run, parts = search(index, queries), (index.segments, index.documents, index.analyzer)
            exact = find_exact(*parts, queries, self.bm25, k) if self.share else {}
            return before_rest(Run(exact, name=run.name), run).head(k) if exact else run
        return index.search_each(queries, search, name="hybrid" if self.share else "BM25")

    def prepare(self) -> list[Path]:
        """Compute the vectors that are missing; returns the folders that hold them."""
        if self.encoder is None:
            return []
        # This may take long, and another process may rebuild the index meanwhile.
        with self.index.unchanged():
            return self.prepare_stores(self.index.documents.stores)

    def prepare_stores(self, stores: Sequence[DocumentStore]) -> list[Path]:
        """Like :meth:`prepare`, for the documents of some stores."""
        stored = [self.dense.words(store) for store in stores] if self.words else []  # makes the vectors, too
        return [part.folder for words in stored for part in (words, words.vectors)] + [
            vectors.folder for vectors in self.dense.prepare(stores)
        ]

    @property
    def preparation(self) -> Callable[[DocumentStore], object] | None:
        """What computes the vectors of new documents before they become part of the index."""
        return None if self.encoder is None else lambda store: self.prepare_stores([store])

    def save(self, folder: Path) -> None:
        """Write ``first-stage.json``. Index and bi-encoder stay where they are."""
        record = {
            "version": VERSION,
            "index": _relative(self.index.folder, folder),
            "bm25": asdict(self.bm25),
            "encoder": None if self.encoder is None else _place(self.encoder, folder),
            "share": self.share,
            "words": self.words,
        }
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / FIRST_STAGE, record)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], computing: Computing = DEFAULT_COMPUTING) -> Self:
        """Open what :meth:`save` wrote."""
        folder = Path(folder)
        path = folder / FIRST_STAGE
        try:
            record = read_object(path)
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(folder, None, f"not a first stage (it has no {FIRST_STAGE})") from None
        version = record.get("version")
        if version != VERSION:
            raise InputError(path, None, f"a first stage of version {version}, expected {VERSION}")
        try:
            index, encoder = str(record["index"]), record["encoder"]
            share, words, bm25 = float(record["share"]), float(record["words"]), BM25(**record["bm25"])
        except (KeyError, TypeError, ValueError):
            raise InputError(path, None, "not the record of a first stage") from None
        return cls(Index.open(folder / index), bm25, _encoder(encoder, folder), share, words, computing=computing)

    def describe(self) -> dict[str, Any]:
        """BM25's parameters and, if it has a bi-encoder, its share and weight: for tables and manifests."""
        bm25 = {name: value for name, value in asdict(self.bm25).items() if value is not None}
        words = {"words": self.words} if self.words else {}
        return bm25 if self.encoder is None else {**bm25, "hybrid": self.share, **words}


@dataclass(frozen=True, eq=False)
class GivenRun(Finder):
    """A run from elsewhere as a first stage: what it lists for a query is what is found.

    ``texts`` are those of its documents. The bi-encoder re-ranks the first ``depth`` of each query as in a
    :class:`FirstStage`, with the run in the place of BM25.
    """

    run: Run
    documents: Texts
    encoder: Encoder | None = None
    share: float = 0.0
    words: float = 0.0
    _: KW_ONLY
    depth: int = WORDS_DEPTH
    vectors: VectorSearch = "auto"
    computing: Computing = DEFAULT_COMPUTING
    models: Models = field(default_factory=Models, repr=False)

    @property
    def texts(self) -> Texts:
        """The texts of the run's documents."""
        return self.documents

    @property
    def words_depth(self) -> int:  # type: ignore[override]
        """The documents of each query that word vectors re-rank."""
        return min(self.depth, WORDS_DEPTH)

    def _find(
        self, queries: Sequence[Query], k: int, scope: Scope, threads: int, encoded: EncodedQueries | None
    ) -> Run:
        run = Run({query.qid: self.run[query.qid] for query in queries if query.qid in self.run}, name=self.run.name)
        if self.share:
            top = run.head(self.depth)
            similarity = self.dense.rerank(top, queries, self.documents, depth=self.depth, encoded=encoded)
            run = before_rest(fuse({"first": top, "similarity": similarity}, Shares.hybrid(self.share)), run)
        return run.head(k)


def _relative(path: Path, folder: Path) -> str:
    """A path from ``folder``, starting with a dot, which tells it from the name of a model."""
    return os.path.join(".", os.path.relpath(path, folder))


def _place(encoder: Encoder, folder: Path) -> str:
    return _relative(Path(encoder), folder) if isinstance(encoder, Path) or Path(encoder).is_dir() else encoder


def _encoder(encoder: str | None, folder: Path) -> Encoder | None:
    return folder / encoder if encoder is not None and encoder.startswith(".") else encoder
