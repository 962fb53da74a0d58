"""Where a run's documents come from, as texts and as tokens: an index, a document store, a collection."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Rows
from rankwell.core.errors import RankwellError
from rankwell.core.progress import track
from rankwell.corpus.formats.fields import Columns
from rankwell.corpus.records import Document, Ranking, Run
from rankwell.corpus.sources import resolve_documents
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.reader import Reader
from rankwell.inputs.stored import InMemoryTokens, StoredTokens, TokenSource, tokens_name
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.retrieve.index import Index, is_index
from rankwell.retrieve.numbering import NumberedDocuments

SYSTEM, INDEX = "system.json", "index"
"""The description of a system, and the folder of its index."""
WORTH_KEEPING = 0.05
"""All documents of a collection are tokenised if a run needs at least this share of them."""


class MissingDocumentError(RankwellError):
    """A document of a run is not in the collection."""


class Texts(Protocol):
    """Where documents' texts come from: a document store, an index."""

    def texts(self, docids: Sequence[str]) -> list[str]:
        """The texts of several documents as models read them, titles first."""
        ...

    def read(self, docids: Sequence[str]) -> list[Document]:
        """Several documents, with title and text apart."""
        ...


class InMemoryTexts:
    """Texts in memory, by document id; ``titles`` are the lengths of the titles at their beginning.

    If they are read only once (``once``), each part of them is tokenised when it is needed, and no tokens are kept.
    """

    def __init__(self, texts: dict[str, str], titles: Mapping[str, int] | None = None, *, once: bool = False):
        self._texts = texts
        self._titles = titles or {}
        self.once = once
        self._tokens: dict[str, InMemoryTokens] = {}

    def texts(self, docids: Sequence[str]) -> list[str]:
        """The texts of several documents."""
        return [self._texts[docid] for docid in docids]

    def read(self, docids: Sequence[str]) -> list[Document]:
        """Several documents, with title and text apart."""
        return [Document.split(docid, self._texts[docid], self._titles.get(docid, 0)) for docid in docids]

    def tokens(self, tokenizer: Tokenizer, *, stems: bool = False) -> InMemoryTokens:
        """Their tokens, computed at the first call."""
        name = tokens_name(tokenizer, stems=stems)
        if name not in self._tokens:
            self._tokens[name] = InMemoryTokens(list(self._texts), list(self._texts.values()), tokenizer, stems)
        return self._tokens[name]


@dataclass(frozen=True, eq=False)
class Documents:
    """Distinct documents, by row: their texts, which only a score cache needs, and their tokens."""

    docids: list[str]
    source: Texts
    reader: Reader

    def texts(self) -> list[str]:
        """The texts of all of them."""
        return self.source.texts(self.docids)

    def tokens(self, rows: Rows) -> tuple[TokenSource, Rows]:
        """A source of tokens that has at least these rows, and their numbers in it."""
        docids = [self.docids[row] for row in rows.tolist()]
        tokenizer, stems = self.reader.tokenizer, self.reader.stems
        tokens = find_tokens(self.source, tokenizer, stems=stems)
        if tokens is None:
            tokens = InMemoryTokens(docids, self.source.texts(docids), tokenizer, stems)
        return tokens, tokens.numbers(docids)


class IndexTokens:
    """The tokens of an index, whose documents are numbered one segment after the other."""

    def __init__(self, index: Index, tokenizer: Tokenizer, stems: bool = False):
        self._index = index
        self._tokens = {segment.store: StoredTokens.open(segment.store, tokenizer, stems) for segment in index.segments}

    def numbers(self, docids: Sequence[str]) -> Rows:
        """See :class:`~rankwell.inputs.stored.TokenSource`."""
        return self._index.numbers(docids)

    def lengths(self, numbers: Rows) -> Rows:
        """See :class:`~rankwell.inputs.stored.TokenSource`."""
        lengths = np.empty(len(numbers), np.int64)
        for store, rows, local in self._index.documents.split(numbers):
            lengths[rows] = self._tokens[store].lengths(local)
        return lengths

    def at(self, numbers: Rows) -> Pieces:
        """See :class:`~rankwell.inputs.stored.TokenSource`."""
        parts = [(rows, self._tokens[store].at(local)) for store, rows, local in self._index.documents.split(numbers)]
        if not parts:
            return next(iter(self._tokens.values())).at(numbers)
        if len(parts) == 1:
            return parts[0][1]
        # Row i of the joined ones is document order[i].
        order = np.concatenate([rows for rows, _ in parts])
        return Pieces.concat([pieces for _, pieces in parts]).take(np.argsort(order))


def is_system(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a system."""
    return os.path.isfile(os.path.join(folder, SYSTEM))  # Path.is_file raises if the name is too long


def find_index(folder: str | os.PathLike[str]) -> Path | None:
    """The folder of an index: the given one, or that of a system; None if it is neither."""
    place = os.path.join(folder, INDEX) if is_system(folder) else folder
    return Path(place) if is_index(place) else None


def open_texts(source: str | os.PathLike[str], run: Run, columns: Columns | None = None) -> Texts:
    """The texts of a run's documents, from an index, a system, a document store, or any collection (read into memory).

    A collection is read once, up to the last document the run needs. Missing documents are reported before scoring.
    ``columns`` names the fields of a file.
    """
    wanted = _documents(run)
    if (index := find_index(source)) is not None or os.path.isfile(os.path.join(source, "store.json")):
        if columns is not None and columns.named:
            raise RankwellError(f"{source} has no columns to name")
        opened = DocumentStore.open(Path(source)) if index is None else Index.open(index)
        missing = np.flatnonzero(NumberedDocuments(stores_of(opened)).find(docids := list(wanted)) < 0)
        _refuse_missing(source, run, [docids[i] for i in missing[:1].tolist()])
        opened.texts(docids[:1])  # raises now rather than later if it was built without texts
        return opened
    texts: dict[str, str] = {}
    titles: dict[str, int] = {}
    for document in track(resolve_documents(source, columns), "reading the collection", unit="documents"):
        if document.docid in wanted:
            texts[document.docid] = document.contents
            titles[document.docid] = len(document.title)
            if len(texts) == len(wanted):
                break
    _refuse_missing(source, run, (docid for docid in wanted if docid not in texts))
    return InMemoryTexts(texts, titles)


def read_text(source: str | os.PathLike[str], docid: str) -> str:
    """The text of one document of a collection of any kind."""
    try:
        return open_texts(source, Run({"": Ranking.of([docid], [0.0])})).texts([docid])[0]
    except MissingDocumentError:
        raise RankwellError(f"no document {docid!r} in {os.fspath(source)}") from None


def make_tokens(texts: Texts, tokenizer: Tokenizer, *, stems: bool = False) -> None:
    """Tokenise all documents of an index or store and save the tokens there; does nothing if it is read-only."""
    for store in stores_of(texts):
        if is_writable(store):
            StoredTokens.open(store, tokenizer, stems)


def stores_of(texts: Texts) -> list[DocumentStore]:
    """The stores of an index, or the store itself; none for texts in memory."""
    if isinstance(texts, Index):
        return [segment.store for segment in texts.segments]
    return [texts] if isinstance(texts, DocumentStore) else []


def is_writable(store: DocumentStore) -> bool:
    """Whether files can be added to a store."""
    return os.access(store.folder, os.W_OK)


def distinct(values: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """The distinct values in order of first occurrence, and the number of each value among them."""
    numbers: dict[str, int] = {}
    which = np.fromiter((numbers.setdefault(value, len(numbers)) for value in values), np.int64, len(values))
    return list(numbers), which


def find_tokens(texts: Texts, tokenizer: Tokenizer, *, stems: bool = False) -> TokenSource | None:
    """The tokens of texts if there are any: in memory, or stored in the index or document store."""
    if isinstance(texts, InMemoryTexts):
        return None if texts.once else texts.tokens(tokenizer, stems=stems)
    stores = stores_of(texts)
    if not stores or not all(store.has_tokens(tokens_name(tokenizer, stems=stems)) for store in stores):
        return None
    return (
        IndexTokens(texts, tokenizer, stems)
        if isinstance(texts, Index)
        else StoredTokens.open(stores[0], tokenizer, stems)
    )


def worth_keeping(texts: Texts, run: Run) -> bool:
    """Whether a run needs so many documents that it pays to tokenise the whole collection once."""
    return isinstance(texts, Index | DocumentStore) and len(_documents(run)) >= WORTH_KEEPING * len(texts)


def digest_texts(texts: Texts, run: Run) -> str:
    """A hash of the texts of a run's documents, independent of where they are stored."""
    whole = hashlib.blake2b(digest_size=12)
    docids = sorted(_documents(run))
    for begin in range(0, len(docids), 4096):
        some = docids[begin : begin + 4096]
        for docid, text in zip(some, texts.texts(some), strict=True):
            whole.update(f"{docid}\0{text}\0".encode("utf-8", "surrogatepass"))
    return whole.hexdigest()


def _documents(run: Run) -> dict[str, None]:
    """Every document once, in the run's order."""
    return dict.fromkeys(docid for ranking in run.values() for docid in ranking.docids)


def _refuse_missing(source: str | os.PathLike[str], run: Run, missing: Iterable[str]) -> None:
    docid = next(iter(missing), None)
    if docid is not None:
        qid = next(qid for qid, ranking in run.items() if docid in ranking.docids)
        raise MissingDocumentError(f"document {docid!r} of the run (query {qid!r}) is not in {os.fspath(source)}")
