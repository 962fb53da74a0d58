"""First stages: how the candidates of a query are found, by BM25, a bi-encoder or both, and the folder that records it.

``first-stage.json`` names the index and the bi-encoder relative to its own folder, so that all of them can be moved
together; neither has to lie in the folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.manifest import read_object, write_json
from rankwell.corpus.filters import FilterSource
from rankwell.corpus.records import Query, Run
from rankwell.corpus.store import DocumentStore
from rankwell.models.devices import DEFAULT_COMPUTING, Computing
from rankwell.rank.fusion import Shares, before_rest, fuse
from rankwell.rank.rankers import VectorSearch, open_encoder
from rankwell.retrieve.bm25 import BM25, DEFAULT_BM25
from rankwell.retrieve.index import Index

if TYPE_CHECKING:
    from rankwell.rank.dense import DenseRanker

FIRST_STAGE = "first-stage.json"
VERSION = 2
WORDS_DEPTH = 100
"""The documents of each query that word vectors re-rank."""
Encoder = str | Path


@dataclass(frozen=True, eq=False)
class FirstStage:
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
    def encodes(self) -> bool:
        """Whether a search needs the bi-encoder."""
        return bool(self.share or self.words)

    def search(
        self,
        queries: Sequence[Query],
        k: int = 1000,
        *,
        threads: int = 1,
        filter: FilterSource | None = None,
        syntax: bool = False,
    ) -> Run:
        """The best ``k`` documents of each query among those that ``filter`` and the query's ``syntax`` select."""
        index, deep = self.index.filtered(filter), max(k, WORDS_DEPTH) if self.words and k >= 1 else k
        if syntax:
            name = "BM25" if not self.share else "hybrid"
            return index.search_each(
                queries, lambda view, some: self.with_index(view).search(some, k, threads=threads), name=name
            )
        if not self.share:
            run = index.search(queries, self.bm25, k=deep, threads=threads)
        else:
            from rankwell.rank.dense import search_hybrid

            if self.words:
                self.dense.encode_words([query.text for query in queries])  # and the queries' own vectors
            run = search_hybrid(index, self.dense, queries, self.share, self.bm25, k=deep, threads=threads)
        return self.add_words(run, queries).head(k) if self.words else run

    def add_words(self, run: Run, queries: Sequence[Query]) -> Run:
        """A run whose best documents are in the order of its scores and those of the word vectors, by their weight."""
        if not self.words:
            return run
        top = run.head(WORDS_DEPTH)
        words = self.dense.compare_words(top, queries, self.index)
        weights = Shares.beside_model(first=1 - self.words, normalise="z-score")
        return Run(before_rest(fuse({"first": top, "model": words}, weights), run), name=run.name)

    def with_index(self, index: Index) -> FirstStage:
        """The same first stage, with the bi-encoder that is open, over another version of the index."""
        other = replace(self, index=index)
        if "dense" in vars(self):
            vars(other)["dense"] = self.dense
        return other

    @cached_property
    def dense(self) -> DenseRanker:
        """The bi-encoder."""
        from rankwell.rank.dense import DenseRanker

        if self.encoder is None:
            raise RankwellError("this first stage has no bi-encoder")
        return DenseRanker(open_encoder(self.encoder, self.computing), vectors=self.vectors)

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
        return cls(Index.open(folder / index), bm25, _find(encoder, folder), share, words, computing=computing)

    def describe(self) -> dict[str, Any]:
        """BM25's parameters and, if it has a bi-encoder, its share and weight: for tables and manifests."""
        bm25 = {name: value for name, value in asdict(self.bm25).items() if value is not None}
        words = {"words": self.words} if self.words else {}
        return bm25 if self.encoder is None else {**bm25, "hybrid": self.share, **words}


def _relative(path: Path, folder: Path) -> str:
    """A path from ``folder``, starting with a dot, which tells it from the name of a model."""
    return os.path.join(".", os.path.relpath(path, folder))


def _place(encoder: Encoder, folder: Path) -> str:
    return _relative(Path(encoder), folder) if isinstance(encoder, Path) or Path(encoder).is_dir() else encoder


def _find(encoder: str | None, folder: Path) -> Encoder | None:
    return folder / encoder if encoder is not None and encoder.startswith(".") else encoder
