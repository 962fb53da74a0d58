"""The document store: document id → title and text (and, per tokenizer, token ids) in memory-mapped files.

A document is stored as it is indexed and ranked, its title before its text; the title's length tells them apart.

Opening takes a few system calls, whatever the size; a read touches only the pages it needs; several processes share one
copy in the page cache. A store is written once and never changed: token ids computed later are stored beside the texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rankwell.core.arrays import Array, ArrayWriter, RaggedWriter, pack_strings
from rankwell.core.errors import InputError, RankwellError
from rankwell.core.files import atomic_folder
from rankwell.core.locks import lock
from rankwell.core.mapped import ArrayFolder, MappedArray, Ragged
from rankwell.corpus.formats.texts import blame_line
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.records import Document

STORE_VERSION = 1
BATCH_CHARACTERS = 2**20
MAX_DOCUMENTS = 2**31 - 1
_TOKENS_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def document_batches(documents: Iterable[Document]) -> Iterator[tuple[list[str], list[str], list[int]]]:
    """Some documents at a time: their ids, their contents, and how many characters of each are its title.

    A batch has about a million characters, so that memory does not depend on the collection.
    """
    docids: list[str] = []
    texts: list[str] = []
    titles: list[int] = []
    size = 0
    for document in documents:
        docids.append(document.docid)
        texts.append(text := document.contents)
        titles.append(len(document.title))
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield docids, texts, titles
            docids, texts, titles, size = [], [], [], 0
    if docids:
        yield docids, texts, titles


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

    def __init__(self, folder: Path, *, texts: bool = True):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.docids = Lexicon()
        self._texts = RaggedWriter(folder, "texts", np.uint8) if texts else None
        self._titles = ArrayWriter(folder / "titles.npy", np.uint32) if texts else None
        self._has_titles = False

    def append(
        self, docids: list[str], text: NDArray[np.uint8], ends: NDArray[np.int64], titles: Sequence[int] = ()
    ) -> None:
        """Add documents, whose texts :func:`pack_strings` packed; ``titles`` are as in :func:`document_batches`."""
        expected = len(self.docids)
        numbers = self.docids.add(docids)
        if len(self.docids) != expected + len(docids):
            fresh = np.arange(expected, expected + len(docids))
            raise RepeatedIdError(docids[int((numbers != fresh).argmax())])
        if len(self.docids) > MAX_DOCUMENTS:
            raise RankwellError(f"a segment holds at most {MAX_DOCUMENTS:,} documents; index the rest with --append")
        if self._texts is not None and self._titles is not None:
            self._texts.append(text, ends)
            self._titles.append(np.asarray(titles or [0] * len(docids)))
            self._has_titles = self._has_titles or any(titles)

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
        (self.folder / "store.json").write_text(json.dumps(info) + "\n", encoding="utf-8")


class DocumentStore:
    """Documents by id, read from disk when they are needed."""

    def __init__(self, folder: Path, docids: Lexicon, texts: Ragged | None, titles: MappedArray | None = None):
        self.folder = folder
        self.docids = docids
        self._texts = texts
        self._titles = titles

    @property
    def has_texts(self) -> bool:
        """Whether the store has the documents' texts, not only their ids."""
        return self._texts is not None

    @classmethod
    def build(cls, documents: Iterable[Document], folder: str | Path) -> DocumentStore:
        """Write a store; ``folder`` must not exist and appears only when it is complete."""
        folder = Path(folder)
        if folder.exists():
            raise RankwellError(f"{folder} exists already; remove it first or choose another name")
        with atomic_folder(folder) as temporary:
            writer = StoreWriter(temporary)
            try:
                for docids, texts, titles in document_batches(documents):
                    writer.append(docids, *pack_strings(texts), titles)
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
            raise InputError(folder, None, f"a store of version {version}; this rankwell reads version {STORE_VERSION}")
        texts = Ragged.open(arrays, "texts", np.uint8) if has_texts else None
        docids = Lexicon.open(arrays, "docids")
        titles = arrays.map("titles", np.uint32) if has_titles else None
        for name, stored in (("texts", texts), ("titles", None if titles is None else titles.values)):
            if stored is not None and len(stored) != len(docids):
                raise InputError(folder, None, f"{len(stored)} {name} for {len(docids)} documents")
        return cls(folder, docids, texts, titles)

    def check(self) -> None:
        """Read all ids and texts. Raises if a file is damaged."""
        self.docids.check()
        if self._texts is not None:
            self._texts.check()
        if self._titles is not None:
            self._titles.whole()

    def text(self, docid: str) -> str:
        """The text of one document."""
        number = self.docids.number(docid)
        if number < 0:
            raise RankwellError(f"document {docid!r} is not in the store {self.folder}")
        return self._readable_texts().string(number)

    def texts(self, docids: Sequence[str]) -> list[str]:
        """The texts of several documents; an unknown id is an error that names it."""
        return self.texts_at(self.numbers(docids))

    def numbers(self, docids: Sequence[str]) -> NDArray[np.int32]:
        """The position of each document in the store."""
        numbers = self.docids.find(list(docids))
        if (missing := numbers < 0).any():
            raise RankwellError(f"document {docids[int(missing.argmax())]!r} is not in the store {self.folder}")
        return numbers

    def texts_at(self, numbers: NDArray[np.integer]) -> list[str]:
        """The texts at these positions."""
        return self._readable_texts().strings(np.asarray(numbers, np.int64))

    def read(self, docids: Sequence[str]) -> list[Document]:
        """Several documents, with title and text apart."""
        return self.documents_at(self.numbers(docids))

    def documents_at(self, numbers: NDArray[np.integer]) -> list[Document]:
        """The documents at these positions."""
        rows = np.asarray(numbers, np.int64)
        docids, texts = self.docids.strings(rows), self.texts_at(rows)
        if self._titles is None:
            return list(map(Document, docids, texts))
        self._titles.check(rows, rows + 1)
        return list(map(Document.split, docids, texts, self._titles.values[rows].tolist()))

    def _readable_texts(self) -> Ragged:
        if self._texts is None:
            raise RankwellError(f"{self.folder} was built without texts; build it again with them")
        return self._texts

    def put_tokens(self, name: str, rows: Iterable[tuple[Array, NDArray[np.int64]]], dtype: DTypeLike) -> Ragged:
        """Store token ids for every document under ``name`` (such as the tokenizer's hash), in batches of rows."""
        folder = self._tokens_folder(name)
        with atomic_folder(folder) as temporary, RaggedWriter(temporary, "tokens", dtype) as writer:
            count = 0
            for values, ends in rows:
                writer.append(values, ends)
                count += len(ends)
            if count != len(self):
                raise RankwellError(f"{count} rows of tokens for {len(self)} documents")
        return self.tokens(name, dtype)

    def has_tokens(self, name: str) -> bool:
        """Whether token ids are stored under ``name``."""
        return self._tokens_folder(name).is_dir()

    def tokens(self, name: str, dtype: DTypeLike) -> Ragged:
        """The token ids stored under ``name``, one row for each document."""
        return Ragged.open(ArrayFolder(self._tokens_folder(name)), "tokens", dtype)

    def _tokens_folder(self, name: str) -> Path:
        if not _TOKENS_NAME.fullmatch(name):
            raise RankwellError(f"{name!r} cannot name a set of tokens: letters, digits, '.', '_' and '-' only")
        return self.folder / f"tokens-{name}"

    def __contains__(self, docid: object) -> bool:
        return docid in self.docids

    def __len__(self) -> int:
        return len(self.docids)

    def __iter__(self) -> Iterator[Document]:
        for begin in range(0, len(self), 4096):
            yield from self.documents_at(np.arange(begin, min(begin + 4096, len(self))))
