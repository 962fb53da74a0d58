"""The index: a folder of immutable segments and one small file, ``index.json``, that names those in use.

A build writes a new segment under a temporary name, renames it, then replaces ``index.json``. If it is killed at any
point, ``index.json`` still names complete segments only, and the next build removes the leftovers.

Deleting documents marks them in a new folder, ``deleted-NNNN``, with a bit for each document of a segment, which
``index.json`` names too. An update is both in one step: the new versions are a segment, the old ones are marked. What
was opened before a change stays as it was.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Rows, save_array
from rankwell.core.checksums import TABLE
from rankwell.core.errors import InputError, Notice, RankwellError, excerpt, name_instead
from rankwell.core.files import TEMPORARY_PREFIX, atomic_folder, remove_folders, remove_leftovers
from rankwell.core.locks import lock
from rankwell.core.manifest import file_digest
from rankwell.core.native import allow_uncompiled
from rankwell.core.progress import track
from rankwell.corpus.analyser import Analyzer, read_analyzer
from rankwell.corpus.filters import Filter, FilterSource
from rankwell.corpus.formats.fields import Columns
from rankwell.corpus.formats.texts import Expansion
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.records import Document, Query, Ranking, Run, TermWeights
from rankwell.corpus.sources import Source, resolve_documents, resolve_queries
from rankwell.corpus.store import DocumentStore, NumberedDocuments, RepeatedIdError
from rankwell.corpus.stored_vectors import keep_vectors
from rankwell.retrieve.bm25 import BM25, DEFAULT_BM25, Hits, search_segments
from rankwell.retrieve.builder import SegmentBuilder, fill_segment
from rankwell.retrieve.description import (
    DELETED_NAME,
    SEGMENT_NAME,
    read_description,
    stored_columns,
    write_description,
)
from rankwell.retrieve.merging import merge_segments, read_deleted, worth_merging
from rankwell.retrieve.numbering import NumberedRun, join_hits
from rankwell.retrieve.segment import Segment
from rankwell.retrieve.spelling import find_corrections
from rankwell.retrieve.syntax import allowed_masks, find_exact, parse_syntax, plain_text, scored_prefixes

QUERIES_AT_A_TIME = 256
RARE = 0.01
"""A query with a known word of fewer than this share of the documents is searched as it is typed."""
VIEWS = 16
"""Filters whose results are remembered."""
Prepare = Callable[[DocumentStore], object]
"""Stores more beside new texts before they become part of an index."""
Stamp = tuple[int, int, int]
"""What tells one version of ``index.json`` from another."""


class SearchOptions(TypedDict, total=False):
    """What all kinds of search take besides: see :meth:`Index.search`."""

    threads: int
    filter: FilterSource | None
    syntax: bool


class Index:
    """A searchable collection.

    >>> index = Index.build(["Bees make honey.", "Tea is hot."])
    >>> index.search("how do bees make honey?").docids
    ('0',)
    """

    _temporary: tempfile.TemporaryDirectory[str] | None = None
    """The folder of an index that was built without one; it is deleted with the index."""

    filter: Filter | None = None
    """What restricts searches; :meth:`filtered` sets it."""
    _more: Sequence[str] | None = None
    """Terms that are searched for besides those of a query of the syntax, whose words are not corrected."""
    _stamp: Stamp | None = None
    """The version of ``index.json`` that was opened."""

    if not TYPE_CHECKING:
        __getattr__ = name_instead(get="read([docid]) gives documents", load="Index.open(folder) opens one")

    def __init__(
        self,
        folder: Path,
        analyzer: Analyzer | None = None,
        segments: Sequence[Segment] = (),
        manifest: Mapping[str, Any] | None = None,
    ):
        if analyzer is None or manifest is None:
            raise RankwellError(f"Index.open({str(folder)!r}) opens an index, Index.build(documents) makes one")
        self.folder = folder
        self.analyzer = analyzer
        self.segments = tuple(segments)
        self.manifest = manifest
        self.documents = NumberedDocuments([segment.store for segment in segments], f"in the index {folder}")
        self._views: dict[Filter, Index] = {}

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Index:
        """Open an index for searching. Only a few small files are read; the rest is memory-mapped."""
        return cls._open(Path(folder), ())

    @classmethod
    def _open(cls, folder: Path, known: Sequence[Segment]) -> Index:
        """Open an index, with those of the ``known`` segments that it still has."""
        while True:
            stamp = _stamp(folder)
            description = read_description(folder)
            try:
                index = cls._open_described(folder, description, {(s.folder.name, s.data_hash): s for s in known})
            except (RankwellError, OSError):
                # Another process may have changed the index and removed what was to be opened.
                if stamp == _stamp(folder):
                    raise
                continue
            index._stamp = stamp
            return index

    @classmethod
    def _open_described(
        cls, folder: Path, description: dict[str, Any], known: Mapping[tuple[str, str], Segment]
    ) -> Index:
        data = description["manifest"].get("data")
        hashes = data if isinstance(data, dict) else {}
        segments = [
            known.get((name, str(hashes.get(name)))) or Segment.open(folder / name) for name in description["segments"]
        ]
        for segment in segments:
            if hashes.get(segment.folder.name, segment.data_hash) != segment.data_hash:
                raise InputError(segment.folder, None, "not the segment that index.json describes")
        deleted = {}
        if (name := description.get("deleted")) is not None:
            if hashes.get("deleted") != file_digest(folder / name / TABLE):
                raise InputError(folder / name, None, "not the deleted documents that index.json describes")
            deleted = read_deleted(folder / name, segments)
        segments = [segment.without(deleted.get(segment.folder.name)) for segment in segments]
        analyzer = read_analyzer(description.get("analyzer"), str(folder / "index.json"))
        return cls(folder, analyzer, segments, description["manifest"])

    def refreshed(self) -> Index:
        """This index as it is now: itself if nothing has changed, which takes a few microseconds to see."""
        return self if self._stamp is None or self._stamp == _stamp(self.folder) else self.reopened()

    def reopened(self) -> Index:
        """The index as it is now, as an object of its own that shares the open files."""
        fresh = type(self)._open(self.folder, self.segments)
        fresh._temporary = self._temporary
        return fresh

    @classmethod
    def build(
        cls,
        documents: Source,
        folder: str | os.PathLike[str] | None = None,
        *,
        columns: Columns | None = None,
        analyzer: Analyzer | None = None,
        weights: Iterable[TermWeights] | None = None,
        expansions: Iterable[Expansion] | None = None,
        store: bool = True,
        append: bool = False,
        update: bool = False,
        overwrite: bool = False,
        prepare: Prepare | None = None,
        known: Index | None = None,
    ) -> Index:
        """Index ``documents`` into ``folder``, or into a temporary one that lasts as long as the index.

        ``documents`` is a file, a folder or a name of a data set, or Python objects: texts, ``{id: text}``, dicts with
        fields, a pandas frame, documents (:func:`~rankwell.corpus.sources.resolve_documents`). ``columns`` names the
        fields of a file or frame; those of the index are the default for an update.
        ``store`` also stores the texts, for re-ranking and display. ``append`` adds to an existing index, ``update``
        too, replacing documents with the same ids, and ``overwrite`` replaces it; without any, an existing index is an
        error. Vectors of documents whose texts did not change are kept. ``weights`` replace the documents'
        term frequencies, by word, with any positive numbers. ``expansions`` are queries whose terms are counted with
        each document's but not stored in its text. Both must be in the order of the documents. ``prepare`` stores more
        beside the new texts, such as vectors, before they become part of the index. ``known`` is the index as it
        was opened before.
        """
        if weights is not None and expansions is not None:
            raise RankwellError("weights and expansions cannot be combined; add the expansions to the weights first")
        temporary_folder = tempfile.TemporaryDirectory(prefix="rankwell-") if folder is None else None
        folder = Path(folder or str(temporary_folder and temporary_folder.name))
        exists = (folder / "index.json").exists()
        if isinstance(documents, str | os.PathLike) and exists and not (overwrite or columns):
            columns = stored_columns(folder)
        documents = resolve_documents(documents, columns)
        if exists and not (append or update or overwrite):
            raise RankwellError(
                f"{folder} holds an index already; add to it with --append or --update, or replace it with --overwrite"
            )
        if append + update + overwrite > 1:
            raise RankwellError("append, update and overwrite cannot be combined")
        if not exists:
            refuse_foreign_folder(folder)
        with lock(folder, wait=False):
            remove_leftovers(folder)
            current = (known.refreshed() if known else cls.open(folder)) if exists and not overwrite else None
            if current and analyzer and analyzer != current.analyzer:
                option = "--update" if update else "--append"
                raise RankwellError(f"{folder} was built with another analyser; {option} must use the same one")
            analyzer = current.analyzer if current else (analyzer or Analyzer.english())
            if weights is not None and analyzer.title_weight != 1:
                raise RankwellError("term weights replace counts, so titles have no weight beside them")
            options: dict[str, Any] = {"weighted": weights is not None, "expanded": expansions is not None}
            options |= {"store": store, "columns": asdict(columns) if columns and columns.named else None}
            if current is not None:
                options = _joined_options(folder, current._options(), options)
            name = _next_name(folder, "segment")
            replaced: list[Rows] = []
            with atomic_folder(folder / name) as temporary:
                builder = SegmentBuilder(temporary, analyzer, store=options["store"])
                try:
                    have = None if current is None else current.documents
                    fill_segment(builder, documents, weights, expansions, have, replaced if update else None)
                except RepeatedIdError as error:
                    raise error.within(documents) from None
                builder.finish()
            segment = Segment.open(folder / name)
            if exists and not append:
                with suppress(RankwellError):  # the old index may be damaged, and overwritten for that reason
                    keep_vectors((current or Index.open(folder)).documents, segment.store, renamed=current is None)
            if prepare is not None:
                prepare(segment.store)
            segments = [] if current is None else current._without(np.concatenate([_NONE, *replaced]))
            index = cls._commit(folder, analyzer, [*segments, segment], options)
            if current is not None:
                index = index._tidied(prepare)
        index._temporary = temporary_folder
        return index

    def filtered(self, filter: FilterSource | None) -> Index:
        """This index with searches restricted by metadata; all kinds of search take it in place of the whole one.

        Statistics are those of all documents, so a filter removes results but changes no score.
        """
        parsed = self.documents.resolve_filter(filter)
        if parsed is None:
            return self
        if parsed not in self._views:
            view = self._view([segment.filtered(parsed) for segment in self.segments])
            view.filter = parsed
            if len(self._views) == VIEWS:
                self._views.clear()
            self._views[parsed] = view
        return self._views[parsed]

    def _view(self, segments: Sequence[Segment]) -> Self:
        """The same index with other views of its segments."""
        view = type(self)(self.folder, self.analyzer, segments, self.manifest)
        view.filter, view._stamp, view._temporary = self.filter, self._stamp, self._temporary
        return view

    def check_syntax(self, query: str) -> str:
        """A query of the syntax as models read it. Raises if it is wrong, or has a phrase and texts are not stored."""
        if not self.has_texts and any(clause.kind == "phrase" for clause in parse_syntax(query)):
            raise RankwellError(f"{self.folder} was built without texts, so it cannot be searched for phrases")
        return plain_text(query)

    def search_each(
        self, queries: Sequence[Query], search: Callable[[Index, Sequence[Query]], Run], *, name: str
    ) -> Run:
        """Search for each query of the syntax by itself, in its documents of this index."""
        found: dict[str, Ranking] = {}
        for query in queries:
            text, clauses = self.check_syntax(query.text), parse_syntax(query.text)
            masks = allowed_masks(self.segments, self.analyzer, clauses)
            view = self._view([segment.masked(mask) for segment, mask in zip(self.segments, masks, strict=True)])
            view._more = scored_prefixes(self.segments, self.analyzer, clauses)
            found |= search(view, [replace(query, text=text)])
        return Run(found, name=name)

    def add(self, documents: Source, *, prepare: Prepare | None = None) -> None:
        """Add documents with new ids, as :meth:`build` with ``append`` does; this index then has them, too."""
        self._build(documents, prepare, append=True)

    def update(self, documents: Source, *, prepare: Prepare | None = None) -> None:
        """Add documents, replacing those with the same ids; this index then has them, too."""
        self._build(documents, prepare, update=True)

    def _build(self, documents: Source, prepare: Prepare | None, **how: Any) -> None:
        known = self if self.filter is None else None
        self._become(Index.build(documents, self.folder, store=self.has_texts, prepare=prepare, known=known, **how))

    def delete(self, docids: str | Iterable[str], *, prepare: Prepare | None = None) -> int:
        """Delete a document, or several; ids that are not in the index are ignored. Returns how many were deleted.

        Scores become those of an index without them. ``prepare`` is that of :meth:`build`, for merged segments.
        """
        with lock(self.folder, wait=False):
            remove_leftovers(self.folder)
            current = self.refreshed()
            numbers = np.unique(current.documents.find(docids))
            numbers = numbers[numbers >= 0]
            if len(numbers):
                current = self._commit(self.folder, current.analyzer, current._without(numbers), current._options())
                current = current._tidied(prepare)
        self._become(current)
        return len(numbers)

    def merge(self, *, prepare: Prepare | None = None) -> None:
        """Rewrite all segments as one, without deleted documents. This also happens to some whenever it pays."""
        with lock(self.folder, wait=False):
            remove_leftovers(self.folder)
            current = self.refreshed()
            if len(current.segments) > 1 or current.segments[0].live < len(current.segments[0]):
                current = current._merged(lambda segments: segments, prepare)
            remove_folders(current.leftovers())
        self._become(current)

    @classmethod
    def _commit(
        cls, folder: Path, analyzer: Analyzer, segments: Sequence[Segment], options: Mapping[str, Any]
    ) -> Index:
        """Make these segments the index, with the documents that are marked in them as deleted, and return it.

        Call it while holding the folder's lock.
        """
        # The newest stays even if it is empty, so that its name is not given to another while readers may have it open.
        segments = [segment for segment in segments if segment.live or segment is segments[-1]]
        marked = {s.folder.name: s.store.deleted for s in segments if s.store.deleted is not None and s.live < len(s)}
        name = _next_name(folder, "deleted") if marked else None
        if name is not None:
            with atomic_folder(folder / name) as temporary:
                for segment, deleted in marked.items():
                    save_array(temporary / f"{segment}.npy", np.packbits(deleted))
        hashes = {segment.folder.name: segment.data_hash for segment in segments}
        index = cls(folder, analyzer, segments, write_description(folder, analyzer, hashes, **options, deleted=name))
        index._stamp = _stamp(folder)
        remove_folders(set(_part_folders(folder)) - {folder / part for part in (*hashes, name or "")})
        return index

    def _merged(self, choose: Callable[[Sequence[Segment]], Sequence[Segment]], prepare: Prepare | None) -> Index:
        """This index with the chosen segments rewritten as one. Call it while holding the folder's lock."""
        if not (chosen := [segment for segment in choose(self.segments) if segment.live]):
            return self
        rest = [segment for segment in self.segments if segment not in chosen]
        try:
            merged = merge_segments(chosen, self.folder / _next_name(self.folder, "segment"), self.analyzer)
            if prepare is not None:
                prepare(merged.store)
            return self._commit(self.folder, self.analyzer, [*rest, merged], self._options())
        except (OSError, RankwellError):
            remove_folders(self.leftovers())
            raise

    def _tidied(self, prepare: Prepare | None) -> Index:
        """This index with segments merged if it pays. What changed is complete, so a failure is only a notice."""
        try:
            return self._merged(worth_merging, prepare)
        except (OSError, RankwellError) as error:
            warnings.warn(f"{self.folder} was changed, but its segments were not merged: {error}", Notice, stacklevel=4)
            return self

    def _become(self, other: Index) -> None:
        self.segments, self.manifest, self.documents = other.segments, other.manifest, other.documents
        self._stamp, self._views = other._stamp, {}

    def _without(self, numbers: Rows) -> list[Segment]:
        """The segments with these documents marked as deleted, too."""
        owners = np.searchsorted(self.documents.bases, numbers, side="right") - 1
        segments = list(self.segments)
        for number in np.unique(owners).tolist():
            segment = segments[number]
            before = segment.store.deleted
            deleted = np.zeros(len(segment), bool) if before is None else before.copy()
            deleted[numbers[owners == number] - self.documents.bases[number]] = True
            segments[number] = segment.without(deleted)
        return segments

    def _options(self) -> dict[str, Any]:
        config = self.manifest.get("config", {})
        return {name: config.get(name) for name in ("store", "weighted", "expanded", "columns")}

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
            data = dict(read_description(self.folder)["manifest"]["data"])
        except (InputError, KeyError, TypeError, ValueError):
            data = {}
        own = {name: value for name, value in self.manifest.get("data", {}).items() if name != "deleted"}
        if own.items() <= data.items():
            return
        for segment in self.segments:
            if not (segment.folder / "segment.json").exists():  # written into a segment that had been removed
                shutil.rmtree(segment.folder, ignore_errors=True)
        raise RankwellError(f"{self.folder} was rebuilt while it was being opened; try again") from cause

    def __len__(self) -> int:
        return sum(segment.live for segment in self.segments)

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
    def search(
        self, queries: str, bm25: BM25 = DEFAULT_BM25, *, k: int = 1000, **options: Unpack[SearchOptions]
    ) -> Ranking: ...
    @overload
    def search(
        self,
        queries: Source,
        bm25: BM25 = DEFAULT_BM25,
        *,
        k: int = 1000,
        name: str = "BM25",
        **options: Unpack[SearchOptions],
    ) -> Run: ...
    def search(
        self,
        queries: Source,
        bm25: BM25 = DEFAULT_BM25,
        *,
        k: int = 1000,
        threads: int = 1,
        filter: FilterSource | None = None,
        syntax: bool = False,
        name: str = "BM25",
    ) -> Run | Ranking:
        """The best ``k`` documents of each query; queries without results are left out.

        ``queries`` is a question as a string, which gives its ranking, or else queries, texts, ``{id: text}`` or the
        path of a file, which give a run. Document ids are looked up only for the rankings that are read. ``filter``
        restricts the results by metadata, as in ``"year >= 2015 and lang = 'de'"`` (:mod:`rankwell.corpus.filters`).
        With ``syntax``, queries may have phrases in quotes, ``+word``, ``-word`` and ``prefix*``.
        """
        if filter is not None:
            return self.filtered(filter).search(queries, bm25, k=k, threads=threads, syntax=syntax, name=name)
        if isinstance(queries, str):
            run = self.search([Query("q", queries)], bm25, k=k, threads=threads, syntax=syntax)
            return run.get("q", Ranking.of([], []))
        queries = resolve_queries(queries)
        if syntax:
            how: dict[str, Any] = {"k": k, "threads": threads}
            return self.search_each(queries, lambda index, some: index.search(some, bm25, **how), name=name)
        batches, known = [], dict[str, tuple[str, str] | None]()
        if len(queries) > QUERIES_AT_A_TIME:
            allow_uncompiled(0)
        for start in track(range(0, len(queries), QUERIES_AT_A_TIME), "searching", unit="batches"):
            batch = queries[start : start + QUERIES_AT_A_TIME]
            texts = [query.text for query in batch]
            terms = [[*terms, *(self._more or ())] for terms in self.analyzer.terms_batch(texts)]
            if self._more is None:
                rare = RARE * len(self)
                for row, found in find_corrections(self.segments, self.analyzer, texts, terms, known, rare).items():
                    terms[row] += [correction.term for correction in found]
            batches.append((batch, self.search_terms(terms, bm25, k=k, threads=threads)))
        exact = find_exact(self.segments, self.documents, self.analyzer, queries, bm25, k)
        return NumberedRun(batches, self.documents, name=name, exact=exact, k=k)

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
        return self.search(text, bm25, k=k)

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

    def texts(self, docids: str | Sequence[str]) -> list[str]:
        """The texts of several documents."""
        return self.documents.texts(self.documents.numbers(docids))

    def read(self, docids: str | Sequence[str]) -> list[Document]:
        """Several documents, with title and text apart."""
        return self.documents.read(self.documents.numbers(docids))

    def check(self) -> None:
        """Read the whole index. Raises if a file is damaged."""
        for segment in self.segments:
            segment.check()

    def leftovers(self) -> set[Path]:
        """Folders that are not in use: an interrupted change left them, or one is under way. The next removes them."""
        with suppress(FileNotFoundError):  # another index takes its place
            description = read_description(self.folder)
            used = {*description["segments"], description.get("deleted")}
            temporary = {path for path in self.folder.glob(f"{TEMPORARY_PREFIX}*") if path.is_dir()}
            return temporary | {path for path in _part_folders(self.folder) if path.name not in used}
        return set()

    def __contains__(self, docid: object) -> bool:
        return any(docid in segment.store for segment in self.segments)


_NONE = np.empty(0, np.int64)


def _joined_options(folder: Path, before: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an index to which more is added. Raises if that is of another kind than what it has."""
    if before["weighted"] != added["weighted"]:
        has, needed = ("term weights", "with") if before["weighted"] else ("counts of terms", "without")
        raise RankwellError(f"{folder} has {has}; add documents {needed} --weights")
    if before["store"] and not added["store"]:
        raise RankwellError(f"{folder} has texts; add documents without --no-store")
    return {**before, "expanded": before["expanded"] or added["expanded"]}


def refuse_foreign_folder(folder: Path) -> None:
    """Raise unless a folder is missing, empty or left over from an interrupted build."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    known = all(name == "lock" or name.startswith(TEMPORARY_PREFIX) or _is_part(name) for name in names)
    if folder.exists() and not (folder.is_dir() and known):
        raise RankwellError(f"{folder} exists and is not an index; choose another name")


def _is_part(name: str) -> bool:
    return bool(SEGMENT_NAME.fullmatch(name) or DELETED_NAME.fullmatch(name))


def _part_folders(folder: Path) -> list[Path]:
    """All segments and marks of deleted documents, whether in use or not."""
    return [path for path in folder.iterdir() if _is_part(path.name)]


def _next_name(folder: Path, kind: str) -> str:
    taken = [int(path.name.partition("-")[2]) for path in _part_folders(folder) if path.name.startswith(kind)]
    return f"{kind}-{max(taken, default=0) + 1:04d}"


def _stamp(folder: Path) -> Stamp | None:
    try:
        status = os.stat(folder / "index.json")
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def is_index(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds an index."""
    return os.path.isfile(os.path.join(folder, "index.json"))  # Path.is_file raises if the name is too long
