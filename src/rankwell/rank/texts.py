"""Where a run's documents come from, as texts and as tokens: an index, a document store, a collection."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Rows
from rankwell.core.errors import RankwellError
from rankwell.core.progress import track
from rankwell.corpus.formats.fields import Columns
from rankwell.corpus.records import Run
from rankwell.corpus.sources import resolve_documents
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.reader import Reader
from rankwell.inputs.stored import StoredTokens
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.retrieve.index import Index, is_index

SYSTEM, INDEX = "system.json", "index"
"""The description of a system, and the folder of its index."""
WORTH_KEEPING = 0.05
"""All documents of a collection are tokenised if a run needs at least this share of them."""
Texts = Index | DocumentStore
"""Where documents' texts come from, and their tokens if they are stored: an index, or a store on disk or in memory."""


@dataclass(frozen=True, eq=False)
class Documents:
    """Distinct documents, by row: their texts, which only a score cache needs, and their tokens."""

    docids: Sequence[str]
    source: Texts
    reader: Reader

    @classmethod
    def of(cls, texts: Sequence[str], reader: Reader) -> Documents:
        """Documents given by their texts."""
        by_place = {str(place): text for place, text in enumerate(texts)}
        return cls(list(by_place), DocumentStore.of_texts(by_place), reader)

    def texts(self) -> list[str]:
        """The texts of all of them."""
        return self.source.texts(self.docids)

    def tokens(self, rows: Rows) -> tuple[StoredTokens, Rows]:
        """Tokens of at least these rows, and the rows' numbers among them."""
        docids = [self.docids[row] for row in rows.tolist()]
        tokenizer, stems = self.reader.tokenizer, self.reader.stems
        tokens = StoredTokens.find(self.source.documents, tokenizer, stems=stems)
        if tokens is None:
            needed = DocumentStore.of_texts(dict(zip(docids, self.source.texts(docids), strict=True)))
            tokens = StoredTokens.open(needed.documents, tokenizer, stems)
        return tokens, tokens.numbers(docids)


def is_system(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a system."""
    return os.path.isfile(os.path.join(folder, SYSTEM))  # Path.is_file raises if the name is too long


def find_index(folder: str | os.PathLike[str]) -> Path | None:
    """The folder of an index: the given one, or that of a system; None if it is neither."""
    place = os.path.join(folder, INDEX) if is_system(folder) else folder
    return Path(place) if is_index(place) else None


def open_texts(source: str | os.PathLike[str], run: Run, columns: Columns | None = None) -> Texts:
    """The texts of a run's documents, from an index, a system, a document store, or any collection (read into memory).

    Missing documents are reported before scoring. ``columns`` names the fields of a file.
    """
    texts, missing = _find_texts(source, _documents(run), columns)
    if missing is not None:
        qid = next(qid for qid, ranking in run.items() if missing in ranking.docids)
        raise RankwellError(f"document {missing!r} of the run (query {qid!r}) is not in {os.fspath(source)}")
    return texts


def _find_texts(
    source: str | os.PathLike[str], wanted: Mapping[str, None], columns: Columns | None = None
) -> tuple[Texts, str | None]:
    """The texts of documents, and the first id that is missing; a file is read up to the last document needed."""
    if (index := find_index(source)) is not None or os.path.isfile(os.path.join(source, "store.json")):
        if columns is not None and columns.named:
            raise RankwellError(f"{source} has no columns to name")
        opened = DocumentStore.open(Path(source)) if index is None else Index.open(index)
        docids = list(wanted)
        missing = np.flatnonzero(opened.documents.find(docids) < 0)
        if not len(missing):
            opened.texts(docids[:1])  # raises now rather than later if it was built without texts
        return opened, docids[missing[0]] if len(missing) else None
    texts: dict[str, str] = {}
    titles: list[int] = []
    for document in track(resolve_documents(source, columns), "reading the collection", unit="documents"):
        if document.docid in wanted:
            texts[document.docid] = document.contents
            titles.append(len(document.title))
            if len(texts) == len(wanted):
                break
    return DocumentStore.of_texts(texts, titles), next((docid for docid in wanted if docid not in texts), None)


def read_text(source: str | os.PathLike[str], docid: str) -> str:
    """The text of one document of a collection of any kind."""
    texts, missing = _find_texts(source, {docid: None})
    if missing is not None:
        raise RankwellError(f"no document {docid!r} in {os.fspath(source)}")
    return texts.texts([docid])[0]


def make_tokens(texts: Texts, tokenizer: Tokenizer, *, stems: bool = False) -> None:
    """Tokenise all documents of an index or store and save the tokens there; does nothing if it is read-only."""
    for store in texts.documents.stores:
        if store.writable:
            StoredTokens.open(store.documents, tokenizer, stems)


def distinct(values: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """The distinct values in order of first occurrence, and the number of each value among them."""
    numbers: dict[str, int] = {}
    which = np.fromiter((numbers.setdefault(value, len(numbers)) for value in values), np.int64, len(values))
    return list(numbers), which


def worth_keeping(texts: Texts, run: Run) -> bool:
    """Whether a run needs enough documents for it to pay to tokenise the whole collection once."""
    return len(_documents(run)) >= WORTH_KEEPING * len(texts)


def _documents(run: Run) -> dict[str, None]:
    """Every document once, in the run's order."""
    return dict.fromkeys(docid for ranking in run.values() for docid in ranking.docids)
