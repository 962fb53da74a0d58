"""Where a run's texts come from: an index, a document store, a collection."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from rankwell.core.errors import RankwellError
from rankwell.core.progress import track
from rankwell.corpus.datasets import resolve_documents
from rankwell.corpus.records import Run
from rankwell.corpus.store import DocumentStore
from rankwell.rank.ranker import Texts
from rankwell.retrieve.index import Index


class KeptTexts:
    """Texts in memory, by document id."""

    def __init__(self, texts: dict[str, str]):
        self._texts = texts

    def texts(self, docids: Sequence[str]) -> list[str]:
        """The texts of several documents."""
        return [self._texts[docid] for docid in docids]


def open_texts(source: str | os.PathLike[str], run: Run) -> Texts:
    """The texts of a run's documents, from an index, a document store, or (kept in memory) a collection of any kind.

    A collection is read once, up to the last document the run needs. A document that is nowhere is an error that names
    it, before anything is scored.
    """
    folder = Path(source)
    wanted = _documents(run)
    for mark, opener in (("index.json", Index.open), ("store.json", DocumentStore.open)):
        if (folder / mark).is_file():
            opened = opener(folder)
            _refuse_missing(source, run, (docid for docid in wanted if docid not in opened))
            opened.texts(list(wanted)[:1])  # complains now, not later, if it was made without texts
            return opened
    kept: dict[str, str] = {}
    for document in track(resolve_documents(source), "reading the collection", unit="documents"):
        if document.docid in wanted:
            kept[document.docid] = document.contents
            if len(kept) == len(wanted):
                break
    _refuse_missing(source, run, (docid for docid in wanted if docid not in kept))
    return KeptTexts(kept)


def digest_texts(texts: Texts, run: Run) -> str:
    """A hash of the texts of a run's documents: the same wherever they come from."""
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
        raise RankwellError(f"document {docid!r} of the run (query {qid!r}) is not in {os.fspath(source)}")
