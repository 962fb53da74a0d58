"""Pre-tokenised documents: tokenised once, then read as arrays in any order.

A store's tokens are stored beside its texts under the tokenizer's digest and memory-mapped, with two bytes per piece
(eight with the stems that markers need). A :class:`TokenSource` returns rows of them, from disk or memory.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Array, gather
from rankwell.core.errors import InputError, RankwellError
from rankwell.core.mapped import Ragged
from rankwell.core.progress import track
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.store import DocumentStore, document_batches
from rankwell.inputs.pieces import Pieces, pack_pieces, packed_dtype, unpack_pieces
from rankwell.inputs.tokenizer import Tokenizer

_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_BATCH = 1024


class TokenSource(Protocol):
    """Documents as pieces, by number."""

    def numbers(self, docids: Sequence[str]) -> NDArray[np.int64]:
        """The numbers of documents; raises, naming it, if an id is unknown."""
        ...

    def lengths(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of pieces of each document."""
        ...

    def at(self, numbers: NDArray[np.int64]) -> Pieces:
        """The pieces of these documents, a row for each, in this order."""
        ...


def tokens_name(tokenizer: Tokenizer, *, stems: bool = False) -> str:
    """The name under which a store holds this tokenizer's tokens."""
    return f"{tokenizer.digest}-stems" if stems else tokenizer.digest


class _PackedTokens:
    """Rows of packed pieces, on disk or in memory."""

    def __init__(self, tokens: Ragged):
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def lengths(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """See :class:`TokenSource`."""
        begins, ends = self._spans(numbers)
        return ends - begins

    def at(self, numbers: NDArray[np.int64]) -> Pieces:
        """See :class:`TokenSource`."""
        begins, ends = self._spans(numbers)
        lengths = ends - begins
        return unpack_pieces(self._tokens.values[gather(begins, lengths)], np.cumsum(lengths))

    def _spans(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        numbers = np.asarray(numbers, np.int64)
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(self)):
            raise IndexError(f"documents are numbered from 0 to {len(self) - 1}")
        return self._tokens.spans(numbers)


class StoredTokens(_PackedTokens):
    """The tokens of a document store."""

    def __init__(self, store: DocumentStore, tokens: Ragged):
        super().__init__(tokens)
        if len(tokens) != len(store):
            raise InputError(store.folder, None, f"{len(tokens)} rows of tokens for {len(store)} documents")
        self.store = store

    @classmethod
    def open(cls, store: DocumentStore, tokenizer: Tokenizer, stems: bool = False) -> StoredTokens:
        """Open the tokens of all documents, after computing and storing them if the store has none.

        If several processes compute them at once, all use those of the first to finish. If the folder is read-only,
        the tokens stay in memory.
        """
        name, dtype = tokens_name(tokenizer, stems=stems), packed_dtype(len(tokenizer), stems=stems)
        if store.has_tokens(name):
            return cls(store, store.tokens(name, dtype))
        try:
            return cls(store, store.put_tokens(name, _tokenise(store, tokenizer, stems), dtype))
        except RankwellError as error:
            if store.has_tokens(name):
                return cls(store, store.tokens(name, dtype))
            if not (isinstance(error.__cause__, OSError) and error.__cause__.errno in _READ_ONLY):
                raise
        return cls(store, _join(list(_tokenise(store, tokenizer, stems)), dtype))

    def numbers(self, docids: Sequence[str]) -> NDArray[np.int64]:
        """See :class:`TokenSource`."""
        return self.store.numbers(docids).astype(np.int64)


class InMemoryTokens(_PackedTokens):
    """The tokens of texts in memory; document number ``i`` is ``docids[i]``."""

    def __init__(self, docids: Sequence[str], texts: Sequence[str], tokenizer: Tokenizer, stems: bool = False):
        if len(docids) != len(texts):
            raise RankwellError(f"{len(docids)} document ids for {len(texts)} texts")
        self._docids = Lexicon()
        numbers = self._docids.add(list(docids))
        if len(self._docids) != len(docids):
            repeated = docids[int((numbers != np.arange(len(docids))).argmax())]
            raise RankwellError(f"document id {repeated!r} occurs twice; ids must be unique")
        size = len(tokenizer)
        batches = (texts[begin : begin + _BATCH] for begin in range(0, len(texts), _BATCH))
        parts = []
        for batch in track(batches, "tokenising", total=-(-len(texts) // _BATCH), unit="batches"):
            pieces = tokenizer.encode(batch, stems=stems)
            parts.append((pack_pieces(pieces, size, stems=stems), pieces.ends))
        super().__init__(_join(parts, packed_dtype(size, stems=stems)))

    def numbers(self, docids: Sequence[str]) -> NDArray[np.int64]:
        """See :class:`TokenSource`."""
        numbers = self._docids.find(list(docids))
        if (missing := numbers < 0).any():
            raise RankwellError(f"document {docids[int(missing.argmax())]!r} is not among the texts")
        return numbers.astype(np.int64)


def _tokenise(store: DocumentStore, tokenizer: Tokenizer, stems: bool) -> Iterator[tuple[Array, NDArray[np.int64]]]:
    """Packed pieces and ends of all documents, in batches of bounded size."""
    documents = track(store, "tokenising", total=len(store), unit="documents")
    for _, texts, _ in document_batches(documents):
        pieces = tokenizer.encode(texts, stems=stems)
        yield pack_pieces(pieces, len(tokenizer), stems=stems), pieces.ends


def _join(parts: Sequence[tuple[Array, NDArray[np.int64]]], dtype: np.dtype[np.generic]) -> Ragged:
    """Join batches of rows into a ragged array in memory."""
    bases = np.cumsum([0, *(len(values) for values, _ in parts)])
    ends = [ends + base for (_, ends), base in zip(parts, bases, strict=False)]
    return Ragged(
        np.concatenate([np.zeros(0, dtype), *(values for values, _ in parts)]),
        np.concatenate([np.zeros(0, np.int64), *ends]),
    )
