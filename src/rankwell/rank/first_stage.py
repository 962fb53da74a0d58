"""First stages: how the candidates of a query are found, by BM25, a bi-encoder or both, and the folder that records it.

``first-stage.json`` names the index and the bi-encoder relative to its own folder, so that all of them can be moved
together; neither has to lie in the folder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.manifest import read_object, write_json
from rankwell.corpus.filters import FilterSource
from rankwell.corpus.records import Query, Run
from rankwell.models.devices import DEFAULT_COMPUTING, Computing
from rankwell.rank.fusion import Shares
from rankwell.rank.rankers import VectorSearch, open_encoder
from rankwell.retrieve.bm25 import BM25, DEFAULT_BM25
from rankwell.retrieve.index import Index

if TYPE_CHECKING:
    from rankwell.rank.dense import DenseRanker

FIRST_STAGE = "first-stage.json"
VERSION = 1
Encoder = str | Path


@dataclass(frozen=True, eq=False)
class FirstStage:
    """An index to search with BM25, a bi-encoder or both.

    ``share`` is the bi-encoder's: 0 searches with BM25 alone, 1 with the bi-encoder alone, anything between with both.
    ``encoder`` is a folder or a name; it is opened when it is first needed, and searches its ``vectors`` in one of
    the ways of :class:`~rankwell.rank.dense.DenseRanker`.

    >>> first = FirstStage(Index.open("index"), encoder="rankwell-mini", share=0.7)       # doctest: +SKIP
    >>> first.search([Query("q", "how do bees keep warm")], k=10)                         # doctest: +SKIP
    """

    index: Index
    bm25: BM25 = DEFAULT_BM25
    encoder: Encoder | None = None
    share: float = 0.0
    _: KW_ONLY
    vectors: VectorSearch = "auto"
    computing: Computing = DEFAULT_COMPUTING

    def __post_init__(self) -> None:
        if self.share:
            Shares.hybrid(self.share)
            if self.encoder is None:
                raise RankwellError(f"a share of {self.share:g} for a bi-encoder, but no bi-encoder is given")

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
        index = self.index.filtered(filter)
        if syntax:
            name = "BM25" if not self.share else "hybrid"
            return index.search_each(
                queries, lambda view, some: self.with_index(view).search(some, k, threads=threads), name=name
            )
        if not self.share:
            return index.search(queries, self.bm25, k=k, threads=threads)
        from rankwell.rank.dense import search_hybrid

        return search_hybrid(index, self.dense, queries, self.share, self.bm25, k=k, threads=threads)

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
            return [vectors.folder for vectors in self.dense.prepare(self.index.documents.stores)]

    def save(self, folder: Path) -> None:
        """Write ``first-stage.json``. Index and bi-encoder stay where they are."""
        record = {
            "version": VERSION,
            "index": _relative(self.index.folder, folder),
            "bm25": asdict(self.bm25),
            "encoder": None if self.encoder is None else _place(self.encoder, folder),
            "share": self.share,
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
            share, bm25 = float(record["share"]), BM25(**record["bm25"])
        except (KeyError, TypeError, ValueError):
            raise InputError(path, None, "not the record of a first stage") from None
        return cls(Index.open(folder / index), bm25, _find(encoder, folder), share, computing=computing)

    def describe(self) -> dict[str, Any]:
        """BM25's parameters and, if it has a bi-encoder, its share: for tables and manifests."""
        bm25 = {name: value for name, value in asdict(self.bm25).items() if value is not None}
        return bm25 if self.encoder is None else {**bm25, "hybrid": self.share}


def _relative(path: Path, folder: Path) -> str:
    """A path from ``folder``, starting with a dot, which tells it from the name of a model."""
    return os.path.join(".", os.path.relpath(path, folder))


def _place(encoder: Encoder, folder: Path) -> str:
    return _relative(Path(encoder), folder) if isinstance(encoder, Path) or Path(encoder).is_dir() else encoder


def _find(encoder: str | None, folder: Path) -> Encoder | None:
    return folder / encoder if encoder is not None and encoder.startswith(".") else encoder
