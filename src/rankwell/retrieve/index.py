"""The index: a folder of immutable segments and one small file, ``index.json``, that names those in use.

A build writes a new segment under a temporary name, renames it, then replaces ``index.json``. If it is killed at any
point, ``index.json`` still names complete segments only, and the next build removes the leftovers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import InputError, RankwellError, excerpt, folder_error
from rankwell.core.files import TEMPORARY_PREFIX, atomic_folder, remove_leftovers
from rankwell.core.locks import lock
from rankwell.core.manifest import Manifest, check_seal, write_sealed
from rankwell.core.progress import track
from rankwell.corpus.analyser import Analyzer, read_analyzer
from rankwell.corpus.formats.texts import Expansion, blame_line
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.records import Document, Query, Ranking, Run, TermWeights
from rankwell.corpus.sources import Source, resolve_documents, resolve_queries
from rankwell.corpus.store import DocumentStore, NumberedDocuments, RepeatedIdError, document_batches
from rankwell.retrieve.bm25 import BM25, DEFAULT_BM25, Hits, search_segments
from rankwell.retrieve.builder import SegmentBuilder, check_end, take_record
from rankwell.retrieve.numbering import NumberedRun, join_hits
from rankwell.retrieve.segment import Segment

INDEX_VERSION = 1
QUERIES_AT_A_TIME = 256
_FORMAT = "rankwell-index"
_SEGMENT_NAME = re.compile(r"segment-\d{4,}")


class Index:
    """A searchable collection.

    >>> index = Index.build(["Bees make honey.", "Tea is hot."])
    >>> index.search("how do bees make honey?").docids
    ('0',)
    """

    _temporary: tempfile.TemporaryDirectory[str] | None = None
    """The folder of an index that was built without one; it is deleted with the index."""

    def __init__(self, folder: Path, analyzer: Analyzer, segments: Sequence[Segment], manifest: Mapping[str, Any]):
        self.folder = folder
        self.analyzer = analyzer
        self.segments = tuple(segments)
        self.manifest = manifest
        self.documents = NumberedDocuments([segment.store for segment in segments], f"in the index {folder}")

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Index:
        """Open an index for searching. Only a few small files are read; the rest is memory-mapped."""
        folder = Path(folder)
        description = _read_description(folder)
        segments = [Segment(folder / name) for name in description["segments"]]
        hashes = description["manifest"].get("data")
        for segment in segments:
            if isinstance(hashes, dict) and hashes.get(segment.folder.name, segment.data_hash) != segment.data_hash:
                raise InputError(segment.folder, None, "not the segment that index.json describes")
        analyzer = read_analyzer(description.get("analyzer"), str(folder / "index.json"))
        return cls(folder, analyzer, segments, description["manifest"])

    @classmethod
    def build(
        cls,
        documents: Source,
        folder: str | os.PathLike[str] | None = None,
        *,
        analyzer: Analyzer | None = None,
        weights: Iterable[TermWeights] | None = None,
        expansions: Iterable[Expansion] | None = None,
        store: bool = True,
        append: bool = False,
        overwrite: bool = False,
        prepare: Callable[[DocumentStore], object] | None = None,
    ) -> Index:
        """Index ``documents`` into ``folder``, or into a temporary one that lasts as long as the index.

        ``documents`` is a file, a folder or a name of a data set, or Python objects: texts, ``{id: text}``, dicts with
        fields, a pandas frame, documents (:func:`~rankwell.corpus.sources.resolve_documents`).
        ``store`` also stores the texts, for re-ranking and display. ``append`` adds a segment to an existing index,
        ``overwrite`` replaces it; without either, an existing index is an error. ``weights`` replace the documents'
        term frequencies, by word, with any positive numbers. ``expansions`` are queries whose terms are counted with
        each document's but not stored in its text. Both must be in the order of the documents. ``prepare`` stores more
        beside the new texts, such as vectors, before they become part of the index.
        """
        if weights is not None and expansions is not None:
            raise RankwellError("weights and expansions cannot be combined; add the expansions to the weights first")
        temporary_folder = tempfile.TemporaryDirectory(prefix="rankwell-") if folder is None else None
        folder = Path(folder or str(temporary_folder and temporary_folder.name))
        documents = resolve_documents(documents)
        exists = (folder / "index.json").exists()
        if exists and not (append or overwrite):
            raise RankwellError(
                f"{folder} holds an index already; add to it with --append or replace it with --overwrite"
            )
        if append and overwrite:
            raise RankwellError("append and overwrite cannot be combined")
        if not exists:
            refuse_foreign_folder(folder)
        with lock(folder, wait=False):
            remove_leftovers(folder)
            current = cls.open(folder) if append and exists else None
            if current and analyzer and analyzer != current.analyzer:
                raise RankwellError(f"{folder} was built with another analyser; --append must use the same one")
            analyzer = current.analyzer if current else (analyzer or Analyzer.english())
            old = {segment.folder.name: segment.data_hash for segment in current.segments} if current else {}
            name = _next_segment_name(folder)
            with atomic_folder(folder / name) as temporary:
                builder = SegmentBuilder(temporary, analyzer, store=store)
                try:
                    _fill(builder, documents, weights, expansions, current)
                except RepeatedIdError as error:
                    raise error.within(documents) from None
                builder.finish()
            segments = {**old, name: builder.data_hash()}
            if prepare is not None:
                prepare(Segment(folder / name).store)
            options = {"store": store, "weighted": weights is not None, "expanded": expansions is not None}
            write_description(folder, analyzer, segments, **options)
            _remove_unused(folder, segments)
        index = cls.open(folder)
        index._temporary = temporary_folder
        return index

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Guard work that adds to the folder, such as vectors: raises if the index was rebuilt in the meantime."""
        self._check_current()
        try:
            yield
        except (OSError, RankwellError) as error:
            self._check_current(error)
            raise
        self._check_current()

    def _check_current(self, cause: Exception | None = None) -> None:
        try:
            data = dict(_read_description(self.folder)["manifest"]["data"])
        except (InputError, KeyError, TypeError, ValueError):
            data = {}
        if dict(self.manifest.get("data", {})).items() <= data.items():
            return
        for segment in self.segments:
            if not (segment.folder / "segment.json").exists():  # written into a segment that had been removed
                shutil.rmtree(segment.folder, ignore_errors=True)
        raise RankwellError(f"{self.folder} was rebuilt while it was being opened; try again") from cause

    def __len__(self) -> int:
        return len(self.documents)

    def __reduce__(self) -> tuple[Any, ...]:
        # By its folder: another process opens the same files.
        return Index.open, (self.folder.absolute(),)

    @property
    def terms(self) -> int:
        """The number of distinct terms."""
        if len(self.segments) == 1:
            return len(self.segments[0].terms)
        union = Lexicon()
        for segment in self.segments:
            union.add_all(segment.terms)
        return len(union)

    def __repr__(self) -> str:
        parts = len(self.segments)
        return f"Index({str(self.folder)!r}, {len(self):,} documents, {parts} segment{'s' * (parts != 1)})"

    @overload
    def search(self, queries: str, bm25: BM25 = DEFAULT_BM25, *, k: int = 1000, threads: int = 1) -> Ranking: ...
    @overload
    def search(
        self,
        queries: Source,
        bm25: BM25 = DEFAULT_BM25,
        *,
        k: int = 1000,
        threads: int = 1,
        name: str = "BM25",
    ) -> Run: ...
    def search(
        self,
        queries: Source,
        bm25: BM25 = DEFAULT_BM25,
        *,
        k: int = 1000,
        threads: int = 1,
        name: str = "BM25",
    ) -> Run | Ranking:
        """The best ``k`` documents of each query; queries without results are left out.

        ``queries`` is a question as a string, which gives its ranking, or else queries, texts, ``{id: text}`` or the
        path of a file, which give a run. Document ids are looked up only for the rankings that are read.
        """
        if isinstance(queries, str):
            return self.rank(queries, bm25, k=k)
        queries = resolve_queries(queries)
        batches = []
        for start in track(range(0, len(queries), QUERIES_AT_A_TIME), "searching", unit="batches"):
            batch = queries[start : start + QUERIES_AT_A_TIME]
            terms = self.analyzer.terms_batch([query.text for query in batch])
            batches.append((batch, self.search_terms(terms, bm25, k=k, threads=threads)))
        return NumberedRun(batches, self.documents, name=name)

    def search_terms(self, queries: Sequence[Sequence[str]], bm25: BM25, *, k: int = 1000, threads: int = 1) -> Hits:
        """The best ``k`` documents of each query, given as its terms, as arrays; :meth:`docids` names them."""
        parts = search_segments(self.segments, queries, bm25, k=k, threads=threads)
        return parts[0] if len(parts) == 1 else join_hits(self.documents, parts, k)

    def rank(self, text: str, bm25: BM25 = DEFAULT_BM25, *, k: int = 10) -> Ranking:
        """The best ``k`` documents for one query."""
        if not isinstance(text, str):
            raise RankwellError(
                f'expected a question, as in index.rank("how do bees keep warm"), found {excerpt(repr(text))}'
            )
        return self.search([Query("q", text)], bm25, k=k).get("q", Ranking.of([], []))

    def docids(self, numbers: NDArray[np.integer]) -> list[str]:
        """The ids of documents given by number."""
        return self.documents.docids(numbers)

    @property
    def has_texts(self) -> bool:
        """Whether the texts of all documents are stored."""
        return all(segment.store.has_texts for segment in self.segments)

    def text(self, docid: str) -> str:
        """The text of a document as it is ranked, its title first, if the index was built with texts."""
        return self.texts([docid])[0]

    def texts(self, docids: Sequence[str]) -> list[str]:
        """The texts of several documents."""
        return self.documents.texts(self.documents.numbers(docids))

    def read(self, docids: Sequence[str]) -> list[Document]:
        """Several documents, with title and text apart."""
        return self.documents.read(self.documents.numbers(docids))

    def check(self) -> None:
        """Read the whole index. Raises if a file is damaged."""
        for segment in self.segments:
            segment.check()

    def leftovers(self) -> set[Path]:
        """Segments that an interrupted build left; the next one removes them."""
        with suppress(FileNotFoundError):  # another index takes its place
            return set(_segment_folders(self.folder)) - {segment.folder for segment in self.segments}
        return set()

    def __contains__(self, docid: object) -> bool:
        return any(docid in segment.store for segment in self.segments)


def _fill(
    builder: SegmentBuilder,
    documents: Iterable[Document],
    weights: Iterable[TermWeights] | None,
    expansions: Iterable[Expansion] | None,
    current: Index | None,
) -> None:
    vectors = None if weights is None else iter(weights)
    queries = None if expansions is None else iter(expansions)
    for docids, texts, titles in document_batches(track(documents, "indexing", unit="documents")):
        for segment in current.segments if current else ():
            known = segment.store.docids.find(docids) >= 0
            if known.any():
                repeated = docids[int(known.argmax())]
                problem = f"document {repeated!r} is in the index already; --append takes new documents only"
                raise blame_line(documents, repeated, problem)
        if vectors is not None:
            taken = [take_record(vectors, docid, "weights").weights for docid in docids]
            builder.add_weighted(docids, texts, taken, titles=titles)
        elif queries is not None:
            added = [" ".join(take_record(queries, docid, "expansions").queries) for docid in docids]
            builder.add_texts(docids, texts, added, titles=titles)
        else:
            builder.add_texts(docids, texts, titles=titles)
    if vectors is not None:
        check_end(vectors, "weights")
    if queries is not None:
        check_end(queries, "expansions")


def refuse_foreign_folder(folder: Path) -> None:
    """Raise unless a folder is missing, empty or left over from an interrupted build."""
    if folder.exists() and not (folder.is_dir() and all(map(_is_index_file, folder.iterdir()))):
        raise RankwellError(f"{folder} exists and is not an index; choose another name")


def _is_index_file(path: Path) -> bool:
    name = path.name
    return name == "lock" or name.startswith(TEMPORARY_PREFIX) or bool(_SEGMENT_NAME.fullmatch(name))


def _segment_folders(folder: Path) -> list[Path]:
    """All segments, whether in use or not."""
    return [path for path in folder.iterdir() if _SEGMENT_NAME.fullmatch(path.name)]


def _next_segment_name(folder: Path) -> str:
    taken = [int(path.name.removeprefix("segment-")) for path in _segment_folders(folder)]
    return f"segment-{max(taken, default=0) + 1:04d}"


def _remove_unused(folder: Path, used: Collection[str]) -> None:
    for path in _segment_folders(folder):
        if path.name not in used:
            shutil.rmtree(path, ignore_errors=True)


def analyzer_json(analyzer: Analyzer) -> dict[str, Any]:
    """An analyser as ``index.json`` and its manifest hold it."""
    return {**analyzer.model_dump(mode="json"), "stop_words": sorted(analyzer.stop_words)}


def write_description(
    folder: Path, analyzer: Analyzer, segments: Mapping[str, str], *, store: bool, weighted: bool, expanded: bool
) -> None:
    """Write ``index.json``, which makes these segments of ``folder``, given with their hashes, the index."""
    settings = analyzer_json(analyzer)
    config = {"analyzer": settings, "store": store, "weighted": weighted, "expanded": expanded}
    description = {
        "format": _FORMAT,
        "version": INDEX_VERSION,
        "analyzer": settings,
        "segments": list(segments),
        "manifest": Manifest("index", config, segments).as_dict(),
    }
    write_sealed(folder / "index.json", description)


def is_index(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds an index."""
    return os.path.isfile(os.path.join(folder, "index.json"))  # Path.is_file raises if the name is too long


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / "index.json"
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        make = "make an index with `rankwell index`"
        raise folder_error(folder, "not an index (it has no index.json)", make) from None
    except (OSError, ValueError, RecursionError):
        raise InputError(path, None, "not the description of an index") from None
    if not isinstance(description, dict) or description.get("format") != _FORMAT:
        raise InputError(path, None, "not the description of an index")
    if (version := description.get("version")) != INDEX_VERSION:
        problem = f"an index of version {version}; this rankwell reads version {INDEX_VERSION}: build it again"
        raise InputError(path, None, problem)
    check_seal(path, description)
    names = description.get("segments")
    if not isinstance(names, list) or not names or not all(_SEGMENT_NAME.fullmatch(str(name)) for name in names):
        raise InputError(path, None, "names no segments")
    if not isinstance(description.get("manifest"), dict):
        raise InputError(path, None, "has no manifest")
    return description
