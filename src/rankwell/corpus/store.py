"""The document store: document id → title and text (and, per tokenizer, token ids) in memory-mapped files.

A document is stored as it is indexed and ranked, its title before its text; the title's length tells them apart.

Opening takes a few system calls, whatever the size; a read touches only the pages it needs; several processes share one
copy in the page cache. A store is written once and never changed: token ids computed later are stored beside the texts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property, reduce
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rankwell.core.arrays import Array, ArrayWriter, RaggedWriter, Rows, pack_strings
from rankwell.core.errors import InputError, RankwellError, excerpt, wrong_version
from rankwell.core.files import atomic_folder
from rankwell.core.locks import lock
from rankwell.core.mapped import ArrayFolder, MappedArray, Ragged
from rankwell.corpus.filters import Filter, FilterSource, parse_filter
from rankwell.corpus.formats.texts import blame_line
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.metadata import MOST_FIELDS, Column, Ids, MetadataWriter, decode_value, open_columns, read_metadata
from rankwell.corpus.records import Document, Metadata

STORE_VERSION = 1
BATCH_CHARACTERS = 2**20
MAX_DOCUMENTS = 2**31 - 1
_TOKENS_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
ID = "id"
"""What filters call a document's id, unless documents have a field of this name."""
T = TypeVar("T")


class DocumentBatch(NamedTuple):
    """Some documents: their ids, contents, how many characters of each are its title, and metadata."""

    docids: list[str]
    texts: list[str]
    titles: Sequence[int] = ()
    metadata: Sequence[Metadata | None] = ()


def document_batches(documents: Iterable[Document]) -> Iterator[DocumentBatch]:
    """Documents of about a million characters at a time, so that memory does not depend on the collection."""
    some: list[Document] = []
    size = 0
    for document in documents:
        some.append(document)
        size += len(document.title) + len(document.text)
        if size >= BATCH_CHARACTERS:
            yield _batch(some)
            some, size = [], 0
    if some:
        yield _batch(some)


def _batch(some: Sequence[Document]) -> DocumentBatch:
    texts, titles = [document.contents for document in some], [len(document.title) for document in some]
    return DocumentBatch([document.docid for document in some], texts, titles, [document.metadata for document in some])


class RepeatedIdError(RankwellError):
    """Two documents of a collection have the same id."""

    def __init__(self, docid: str):
        self.docid = docid
        super().__init__(f"document id {docid!r} occurs twice in the collection; ids must be unique")

    def within(self, documents: Iterable[Document]) -> RankwellError:
        """The same error, with file and line if the documents come from a file."""
        return blame_line(documents, self.docid, str(self), time=2)


class StoreWriter:
    """Append documents to a new store in ``folder``; a repeated id is an error."""

    def __init__(self, folder: Path, *, texts: bool = True, most_fields: int = MOST_FIELDS):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.docids = Lexicon()
        self._texts = RaggedWriter(folder, "texts", np.uint8) if texts else None
        self._titles = ArrayWriter(folder / "titles.npy", np.uint32) if texts else None
        self._has_titles = False
        self._empty = 0
        self._metadata = MetadataWriter(most_fields)

    def append(self, batch: DocumentBatch) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Add documents; returns their texts as :func:`pack_strings` packs them."""
        docids, texts, titles, metadata = batch
        text, ends = pack_strings(texts)
        expected = len(self.docids)
        numbers = self.docids.add(docids)
        if len(self.docids) != expected + len(docids):
            fresh = np.arange(expected, expected + len(docids))
            raise RepeatedIdError(docids[int((numbers != fresh).argmax())])
        if len(self.docids) > MAX_DOCUMENTS:
            raise RankwellError(f"a segment holds at most {MAX_DOCUMENTS:,} documents; index the rest with --append")
        self._metadata.append(expected, metadata)
        if self._texts is not None and self._titles is not None:
            self._texts.append(text, ends)
            self._empty += texts.count("")
            self._titles.append(np.asarray(titles or [0] * len(docids)))
            self._has_titles = self._has_titles or any(titles)
        return text, ends

    def close(self) -> None:
        """Write the rest and finish the store."""
        self.docids.save(self.folder, "docids")
        if self._texts is not None and self._titles is not None:
            self._texts.close()
            self._titles.close()
            if not self._has_titles:
                (self.folder / "titles.npy").unlink()
        info: dict[str, object] = {"version": STORE_VERSION, "documents": len(self.docids)}
        info |= {"texts": self._texts is not None, "titles": self._has_titles}
        info |= {"empty": self._empty} if self._empty else {}
        if self._metadata.close(self.folder, len(self.docids)):
            info["fields"] = True
        (self.folder / "store.json").write_text(json.dumps(info) + "\n", encoding="utf-8")


class DocumentStore:
    """Documents by id, in memory or read from disk when they are needed.

    Those ``deleted`` keep their places, but are not found by their ids. ``filter`` and ``mask`` restrict searches, but
    neither statistics nor reading. ``empty`` documents have no text.
    """

    def __init__(
        self,
        folder: Path | None,
        docids: Lexicon,
        texts: Ragged | None,
        titles: MappedArray | None = None,
        columns: Mapping[str, Column] | None = None,
        empty: int = 0,
        *,
        deleted: NDArray[np.bool_] | None = None,
        filter: Filter | None = None,
        mask: NDArray[np.bool_] | None = None,
        tokens: dict[str, Ragged] | None = None,
    ):
        self._folder, self.in_memory = folder, folder is None
        self.docids = docids
        self._texts = texts
        self._titles = titles
        self.columns, self.empty = columns or {}, empty
        self.deleted, self.filter, self._mask = deleted, filter, mask
        self._tokens: dict[str, Ragged] = {} if tokens is None else tokens

    def view(
        self, deleted: NDArray[np.bool_] | None, filter: Filter | None, mask: NDArray[np.bool_] | None = None
    ) -> DocumentStore:
        """The same store, sharing its files, with these documents marked as deleted and searched as these say."""
        parts = self._folder, self.docids, self._texts, self._titles, self.columns, self.empty
        return DocumentStore(*parts, deleted=deleted, filter=filter, mask=mask, tokens=self._tokens)

    @cached_property
    def live(self) -> int:
        """The number of documents that are not deleted."""
        return len(self) - (0 if self.deleted is None else int(np.count_nonzero(self.deleted)))

    @cached_property
    def allowed(self) -> NDArray[np.bool_] | None:
        """The documents that a search may find: not deleted, and selected by filter and mask; None if these are all."""
        masks = [] if self.deleted is None else [~self.deleted]
        masks += [] if self.filter is None else [self.filter.select({ID: Ids(self.docids), **self.columns}, len(self))]
        masks += [] if self._mask is None else [self._mask]
        return reduce(np.logical_and, masks) if masks else None

    @cached_property
    def described(self) -> NDArray[np.bool_] | None:
        """Those of the allowed documents that have a text, by which vectors find them."""
        if not self.empty or self._texts is None:
            return self.allowed
        self._texts.check_ends()
        filled = np.diff(self._texts.ends, prepend=0) > 0
        return filled if self.allowed is None else filled & self.allowed

    @classmethod
    def of_texts(cls, texts: Mapping[str, str], titles: Sequence[int] = ()) -> DocumentStore:
        """A store in memory of texts by document id; ``titles`` are as in :class:`DocumentBatch`."""
        docids = Lexicon()
        docids.add(list(texts))
        lengths = MappedArray(Path("memory"), None, None, np.asarray(titles, np.uint32)) if any(titles) else None
        return cls(None, docids, Ragged(*pack_strings(list(texts.values()))), lengths)

    @property
    def folder(self) -> Path:
        """Where the store is on disk."""
        if self._folder is None:
            raise RankwellError("a store in memory has no folder")
        return self._folder

    @property
    def writable(self) -> bool:
        """Whether more can be stored beside the texts."""
        return self._folder is None or os.access(self._folder, os.W_OK)

    @property
    def documents(self) -> NumberedDocuments:
        """The documents by number, as an index has those of its segments."""
        return NumberedDocuments([self], "among the texts" if self.in_memory else f"in the store {self.folder}")

    @property
    def has_texts(self) -> bool:
        """Whether the store has the documents' texts, not only their ids."""
        return self._texts is not None

    @property
    def has_titles(self) -> bool:
        """Whether some documents have titles."""
        return self._titles is not None

    @classmethod
    def build(cls, documents: Iterable[Document], folder: str | Path) -> DocumentStore:
        """Write a store; ``folder`` must not exist and appears only when it is complete."""
        folder = Path(folder)
        if folder.exists():
            raise RankwellError(f"{folder} exists already; remove it first or choose another name")
        with atomic_folder(folder) as temporary:
            writer = StoreWriter(temporary)
            try:
                for batch in document_batches(documents):
                    writer.append(batch)
            except RepeatedIdError as error:
                raise error.within(documents) from None
            writer.close()
        return cls.open(folder)

    @classmethod
    def build_once(cls, documents: Iterable[Document], folder: Path) -> DocumentStore:
        """Open the store in ``folder``; if it is missing, the first process to arrive builds it and others wait."""
        with lock(folder.parent, wait=True, name=f"{folder.name}.lock"):
            if not folder.exists():
                cls.build(documents, folder)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> DocumentStore:
        """Open a store that :meth:`build` or an index build wrote."""
        folder = Path(folder)
        try:
            arrays = ArrayFolder(folder)
            info = json.loads(arrays.read_bytes("store.json"))
            version, has_texts, has_titles = info["version"], info["texts"], info.get("titles", False)
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(folder, None, "not a document store (it has no store.json)") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InputError(folder / "store.json", None, "not the description of a document store") from None
        if version != STORE_VERSION:
            raise wrong_version(folder, "a store", version, STORE_VERSION, "build it again")
        texts = Ragged.open(arrays, "texts", np.uint8) if has_texts else None
        docids = Lexicon.open(arrays, "docids")
        titles = arrays.map("titles", np.uint32) if has_titles else None
        for name, stored in (("texts", texts), ("titles", None if titles is None else titles.values)):
            if stored is not None and len(stored) != len(docids):
                raise InputError(folder, None, f"{len(stored)} {name} for {len(docids)} documents")
        columns = open_columns(folder, len(docids)) if info.get("fields") else None
        return cls(folder, docids, texts, titles, columns, int(info.get("empty", 0)))

    def check(self) -> None:
        """Read all ids and texts. Raises if a file is damaged."""
        self.docids.check()
        if self._texts is not None:
            self._texts.check()
        if self._titles is not None:
            self._titles.whole()
        for column in self.columns.values():
            column.check()

    def find(self, docids: Sequence[str]) -> Rows:
        """The position of each document, -1 if it is not here or was deleted."""
        numbers = self.docids.find(list(docids)).astype(np.int64)
        if self.deleted is not None and len(numbers):
            numbers[self.deleted[numbers] & (numbers >= 0)] = -1
        return numbers

    def text(self, docid: str) -> str:
        """The text of one document."""
        return self.texts([docid])[0]

    def texts(self, docids: Sequence[str]) -> list[str]:
        """The texts of several documents; an unknown id is an error that names it."""
        return self.texts_at(self.numbers(docids))

    def numbers(self, docids: Sequence[str]) -> Rows:
        """The position of each document in the store."""
        return self.documents.numbers(docids)

    def texts_at(self, numbers: NDArray[np.integer]) -> list[str]:
        """The texts at these positions."""
        if self._texts is None:
            raise RankwellError(f"{self.folder} was built without texts; build it again with them")
        return self._texts.strings(np.asarray(numbers, np.int64))

    def read(self, docids: Sequence[str]) -> list[Document]:
        """Several documents, with title and text apart."""
        return self.documents_at(self.numbers(docids))

    def documents_at(self, numbers: NDArray[np.integer]) -> list[Document]:
        """The documents at these positions."""
        rows = np.asarray(numbers, np.int64)
        docids, texts = self.docids.strings(rows), self.texts_at(rows)
        titles = [0] * len(rows)
        if self._titles is not None:
            self._titles.check(rows, rows + 1)
            titles = self._titles.values[rows].tolist()
        if not self.columns:
            return list(map(Document.split, docids, texts, titles))
        return list(map(Document.split, docids, texts, titles, self.metadata_at(rows)))

    def metadata_at(self, numbers: NDArray[np.integer]) -> list[Metadata]:
        """The metadata of the documents at these positions."""
        return read_metadata(self.columns, np.asarray(numbers, np.int64))

    def put_tokens(self, name: str, rows: Iterable[tuple[Array, NDArray[np.int64]]], dtype: DTypeLike) -> Ragged:
        """Store token ids for every document under ``name`` (such as the tokenizer's hash), in batches of rows."""
        folder = self.folder / _tokens_folder(name)
        with atomic_folder(folder) as temporary, RaggedWriter(temporary, "tokens", dtype) as writer:
            count = 0
            for values, ends in rows:
                writer.append(values, ends)
                count += len(ends)
            if count != len(self):
                raise RankwellError(f"{count} rows of tokens for {len(self)} documents")
        return self.tokens(name, dtype)

    def keep_tokens(self, name: str, rows: Iterable[tuple[Array, Rows]], dtype: DTypeLike) -> Ragged:
        """Like :meth:`put_tokens`, in memory."""
        values, ends = [np.zeros(0, dtype)], [np.zeros(1, np.int64)]
        for some, their_ends in rows:
            values.append(np.asarray(some, dtype))
            ends.append(their_ends + ends[-1][-1])
        self._tokens[name] = Ragged(np.concatenate(values), np.concatenate(ends)[1:])
        return self.tokens(name, dtype)

    def has_tokens(self, name: str) -> bool:
        """Whether token ids are stored under ``name``."""
        return name in self._tokens or (self._folder is not None and (self._folder / _tokens_folder(name)).is_dir())

    def tokens(self, name: str, dtype: DTypeLike) -> Ragged:
        """The token ids stored under ``name``, one row for each document."""
        if name in self._tokens:
            return self._tokens[name]
        tokens = Ragged.open(ArrayFolder(self.folder / _tokens_folder(name)), "tokens", dtype)
        if len(tokens) != len(self):
            raise InputError(self.folder, None, f"{len(tokens)} rows of tokens for {len(self)} documents")
        return tokens

    def __contains__(self, docid: object) -> bool:
        number = self.docids.number(docid) if isinstance(docid, str) else -1
        return number >= 0 and (self.deleted is None or not self.deleted[number])

    def __len__(self) -> int:
        return len(self.docids)

    def __iter__(self) -> Iterator[Document]:
        for begin in range(0, len(self), 4096):
            yield from self.documents_at(np.arange(begin, min(begin + 4096, len(self))))


def _tokens_folder(name: str) -> str:
    if not _TOKENS_NAME.fullmatch(name):
        raise RankwellError(f"{name!r} cannot name a set of tokens: letters, digits, '.', '_' and '-' only")
    return f"tokens-{name}"


class NumberedDocuments:
    """The documents of several stores, numbered one store after the other; ``place`` is what errors say of them.

    Deleted documents have numbers, too, but are not found by their ids.
    """

    def __init__(self, stores: Sequence[DocumentStore], place: str):
        self.stores = tuple(stores)
        self.bases = np.cumsum([0, *map(len, stores)])
        self._place = place

    def __len__(self) -> int:
        return int(self.bases[-1])

    def find(self, docids: str | Iterable[str]) -> Rows:
        """The number of each document, -1 if it is in no store; a string is one id."""
        docids = [docids] if isinstance(docids, str) else list(docids)
        numbers = np.full(len(docids), -1, np.int64)
        missing = np.arange(len(docids))
        for store, base in zip(self.stores, self.bases.tolist(), strict=False):
            local = store.find([docids[i] for i in missing.tolist()])
            known = local >= 0
            numbers[missing[known]] = local[known] + base
            missing = missing[~known]
        return numbers

    def numbers(self, docids: str | Sequence[str]) -> Rows:
        """The number of each document. Raises if one is in no store."""
        numbers = self.find(docids)
        if (missing := numbers < 0).any():
            docid = docids if isinstance(docids, str) else docids[int(missing.argmax())]
            raise RankwellError(f"document {docid!r} is not {self._place}")
        return numbers

    def split(self, numbers: NDArray[np.integer]) -> Iterator[tuple[DocumentStore, Rows, Rows]]:
        """Each store that has some of the documents: which of them it has, and their numbers within it.

        No documents are the first store's.
        """
        wide = np.asarray(numbers, np.int64)
        if len(self.stores) == 1 or not len(wide):
            yield self.stores[0], np.arange(len(wide)), wide
            return
        owners = np.searchsorted(self.bases, wide, side="right") - 1
        for s in np.unique(owners).tolist():
            rows = np.flatnonzero(owners == s)
            yield self.stores[s], rows, wide[rows] - self.bases[s]

    def live_numbers(self) -> Rows:
        """The numbers of all documents that are not deleted."""
        if all(store.deleted is None for store in self.stores):
            return np.arange(len(self))
        gone = [np.zeros(len(store), bool) if store.deleted is None else store.deleted for store in self.stores]
        return np.flatnonzero(~np.concatenate(gone))

    @property
    def fields(self) -> list[str]:
        """The names of the fields that documents have as metadata."""
        return sorted({name for store in self.stores for name in store.columns})

    def resolve_filter(self, source: FilterSource | None) -> Filter | None:
        """A filter from its text or a dict. Raises if it names a field that no document has."""
        filter = parse_filter(source)
        known = {ID, *self.fields}
        unknown = None if filter is None else next((name for name in filter.fields() if name not in known), None)
        if unknown is not None:
            fields = f"fields: {', '.join(self.fields)}" if self.fields else "none has any"
            raise RankwellError(f"filter: no document {self._place} has a field {excerpt(unknown)} ({fields})")
        return filter

    def explain_filter(self, filter: Filter) -> list[str]:
        """For each comparison that no document passes: the values that are nearest to it, or the first ones."""
        lines = []
        for part in filter.comparisons():
            columns = [store.columns[part.field] for store in self.stores if part.field in store.columns]
            if not columns or any(column.match(part.operator, part.value).any() for column in columns):
                continue
            values = sorted({value for column in columns for value in column.values()}, key=str)
            if isinstance(part.value, str) and not any(isinstance(value, str) for value in values):
                lines.append(f"{part.field} has numbers: leave out the quotes")
                continue
            wanted = str(decode_value(part.value))
            folded = {str(value).lower(): str(value) for value in values}
            near = [folded[name] for name in get_close_matches(wanted.lower(), folded, 3)] or list(map(str, values[:5]))
            lines.append(f"no {part.field} {part.operator} {wanted}; {part.field} is {', '.join(near)}")
        return lines

    def metadata(self, numbers: NDArray[np.integer]) -> list[Metadata]:
        """The metadata of documents given by number."""
        return self._collect(numbers, lambda store, local: store.metadata_at(local))

    def docids(self, numbers: NDArray[np.integer]) -> list[str]:
        """The ids of documents given by number."""
        return self._collect(numbers, lambda store, local: store.docids.strings(local))

    def texts(self, numbers: NDArray[np.integer]) -> list[str]:
        """The texts of documents given by number."""
        return self._collect(numbers, lambda store, local: store.texts_at(local))

    def read(self, numbers: NDArray[np.integer]) -> list[Document]:
        """The documents given by number, with title and text apart."""
        return self._collect(numbers, lambda store, local: store.documents_at(local))

    def _collect(
        self, numbers: NDArray[np.integer], read: Callable[[DocumentStore, NDArray[np.integer]], list[T]]
    ) -> list[T]:
        if len(self.stores) == 1:
            return read(self.stores[0], numbers)
        items = np.empty(len(numbers), object)
        for store, rows, local in self.split(numbers):
            items[rows] = read(store, local)
        return list(items)
