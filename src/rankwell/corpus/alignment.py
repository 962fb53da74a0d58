"""Records about documents (term weights, expansions) that come in the order of the collection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from rankwell.core.errors import RankwellError
from rankwell.corpus.formats.expansions import Expansion
from rankwell.corpus.records import TermWeights

Enrichment = TypeVar("Enrichment", bound=TermWeights | Expansion)


class InCollectionOrder(Generic[Enrichment]):
    """Reads one record for each document and raises unless the records come in the same order; ``name`` is theirs."""

    def __init__(self, records: Iterable[Enrichment], name: str):
        self._records = iter(records)
        self._name = name

    def take(self, docid: str) -> Enrichment:
        """The next record, which must be that of the document ``docid``."""
        record = next(self._records, None)
        if record is None:
            raise RankwellError(f"the {self._name} end before document {docid!r}")
        if record.docid != docid:
            problem = f"{self._name} of {record.docid!r} where {docid!r} is expected"
            raise RankwellError(f"{problem}; they must be in the collection's order")
        return record

    def finish(self) -> None:
        """Raise if records are left after the last document."""
        if (extra := next(self._records, None)) is not None:
            raise RankwellError(f"the {self._name} go on after the last document, with {extra.docid!r}")
