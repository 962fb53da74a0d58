"""Pre-tokenised documents: tokenised once, then read as arrays in any order.

A store's tokens are stored beside its texts under the tokenizer's digest and memory-mapped, with two bytes per piece
(eight with the stems that markers need). Those of a store in memory stay there.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence

import numpy as np

from rankwell.core.arrays import Array, Rows, gather
from rankwell.core.errors import RankwellError
from rankwell.core.mapped import Ragged
from rankwell.core.progress import track
from rankwell.corpus.store import DocumentStore, NumberedDocuments, document_batches
from rankwell.inputs.pieces import Pieces, pack_pieces, packed_dtype, unpack_pieces
from rankwell.inputs.tokenizer import Tokenizer

_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT)
"""Errors of a folder that cannot be written to, or that another process has replaced meanwhile."""


def tokens_name(tokenizer: Tokenizer, *, stems: bool = False) -> str:
    """The name under which a store holds this tokenizer's tokens."""
    return f"{tokenizer.digest}-stems" if stems else tokenizer.digest


class StoredTokens:
    """Documents as pieces, by number: the tokens of one store, or of several one after the other."""

    def __init__(self, documents: NumberedDocuments, tokens: Sequence[Ragged]):
        self._documents = documents
        self._tokens = dict(zip(documents.stores, tokens, strict=True))

    @classmethod
    def open(cls, documents: NumberedDocuments, tokenizer: Tokenizer, stems: bool = False) -> StoredTokens:
        """Open the tokens of all documents, after computing and storing them for stores that have none.

        If several processes compute them at once, all use those of the first to finish. If the folder is read-only,
        the tokens stay in memory.
        """
        return cls(documents, [_open(store, tokenizer, stems) for store in documents.stores])

    @classmethod
    def find(cls, documents: NumberedDocuments, tokenizer: Tokenizer, stems: bool = False) -> StoredTokens | None:
        """Open the tokens of all documents if those of most are stored; an update may have added others."""
        name = tokens_name(tokenizer, stems=stems)
        stored = sum(len(store) for store in documents.stores if store.has_tokens(name))
        return cls.open(documents, tokenizer, stems) if 2 * stored > len(documents) else None

    def __len__(self) -> int:
        return len(self._documents)

    def numbers(self, docids: Sequence[str]) -> Rows:
        """The numbers of documents. Raises, naming it, if an id is unknown."""
        return self._documents.numbers(docids)

    def lengths(self, numbers: Rows) -> Rows:
        """The number of pieces of each document."""
        lengths = np.empty(len(numbers), np.int64)
        for rows, _, begins, ends in self._spans(numbers):
            lengths[rows] = ends - begins
        return lengths

    def at(self, numbers: Rows) -> Pieces:
        """The pieces of these documents, a row for each, in this order."""
        order, parts = [], []
        for rows, tokens, begins, ends in self._spans(numbers):
            lengths = ends - begins
            order.append(rows)
            parts.append(unpack_pieces(tokens.values[gather(begins, lengths)], np.cumsum(lengths)))
        # Row i of the joined parts is document order[i].
        return parts[0] if len(parts) == 1 else Pieces.concat(parts).take(np.argsort(np.concatenate(order)))

    def _spans(self, numbers: Rows) -> Iterator[tuple[Rows, Ragged, Rows, Rows]]:
        """For each store with some of the documents: which of them, its tokens, and where theirs begin and end."""
        numbers = np.asarray(numbers, np.int64)
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(self):
            raise IndexError(f"documents are numbered from 0 to {len(self) - 1}")
        for store, rows, local in self._documents.split(numbers):
            tokens = self._tokens[store]
            yield rows, tokens, *tokens.spans(local)


def _open(store: DocumentStore, tokenizer: Tokenizer, stems: bool) -> Ragged:
    name, dtype = tokens_name(tokenizer, stems=stems), packed_dtype(len(tokenizer), stems=stems)
    if not store.has_tokens(name):
        if store.in_memory:
            return store.keep_tokens(name, _tokenise(store, tokenizer, stems), dtype)
        try:
            return store.put_tokens(name, _tokenise(store, tokenizer, stems), dtype)
        except RankwellError as error:
            if not store.has_tokens(name):
                if not (isinstance(error.__cause__, OSError) and error.__cause__.errno in _READ_ONLY):
                    raise
                return store.keep_tokens(name, _tokenise(store, tokenizer, stems), dtype)
    return store.tokens(name, dtype)


def _tokenise(store: DocumentStore, tokenizer: Tokenizer, stems: bool) -> Iterator[tuple[Array, Rows]]:
    """Packed pieces and ends of all documents, in batches of bounded size."""
    documents = track(store, "tokenising", total=len(store), unit="documents")
    for _, texts, *_ in document_batches(documents):
        pieces = tokenizer.encode(texts, stems=stems)
        yield pack_pieces(pieces, len(tokenizer), stems=stems), pieces.ends
