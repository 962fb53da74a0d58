"""Collections and queries from whatever people have: a file, a folder, a name of a data set, or Python objects."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from rankwell.core.errors import RankwellError, excerpt
from rankwell.core.manifest import digest, file_digest
from rankwell.corpus.datasets import IRDS_PREFIXES, Dataset, NoDatasetError, open_dataset
from rankwell.corpus.formats import read_documents, read_qrels, read_queries, read_run
from rankwell.corpus.formats.fields import DOCUMENTS, QUERIES, Columns, RecordKind, choose_fields
from rankwell.corpus.formats.lines import check_id
from rankwell.corpus.formats.tables import Table
from rankwell.corpus.formats.texts import DocumentFile
from rankwell.corpus.passages import split_passages
from rankwell.corpus.records import Document, Qrels, Query, Ranking, Run
from rankwell.corpus.text_folder import TextFolder

Source = Any
"""A path or name, or Python objects: records, strings, ``{id: text}``, dicts with fields, a pandas frame."""


def resolve_documents(source: Source, columns: Columns | None = None, *, passages: int = 0) -> Iterable[Document]:
    """The documents of a collection of any kind, streamed.

    ``source`` is a file, a folder, ``irds:NAME``, ``hf:OWNER/NAME`` or Python objects: documents, strings (their places
    in the list, from 0, are their ids), ``{id: text}``, dicts with fields, or a pandas frame. ``columns`` names the
    fields of a file or frame. With ``passages``, documents are split into passages of at most so many words.
    """
    documents = _named_documents(source, columns) if _is_name(source) else _documents_of(source, columns)
    return split_passages(documents, passages) if passages else documents


def resolve_queries(source: Source, columns: Columns | None = None) -> list[Query]:
    """The queries of a file or of Python objects, as :func:`resolve_documents` reads documents."""
    if _is_name(source):
        return read_queries(source, columns)
    queries = [query if isinstance(query, Query) else Query(*query[:2]) for query in _objects(source, QUERIES, columns)]
    seen: set[str] = set()
    for query in queries:
        if query.qid in seen:
            raise RankwellError(f"query id {excerpt(query.qid)} comes twice, expected once")
        seen.add(query.qid)
    return queries


def resolve_qrels(source: Source) -> Qrels:
    """Judgments: as they are, of a file, or ``{query id: {document id: grade}}``."""
    if isinstance(source, Qrels):
        return source
    if _is_name(source):
        return read_qrels(source)
    example = '{"q1": {"d1": 1}}'
    for qid, grades in _by_query(source, "qrels", example):
        if not isinstance(grades, Mapping):
            raise RankwellError(
                f"qrels: query {qid!r} has {excerpt(repr(grades))}, expected a dict of grades, as in {example}"
            )
        for docid, grade in grades.items():
            if isinstance(grade, bool) or not isinstance(grade, int | np.integer):
                found = f"the grade of {docid!r} for query {qid!r} is {excerpt(repr(grade))}"
                raise RankwellError(f"qrels: {found}, expected whole numbers, as in {example}")
    return Qrels({str(qid): {str(d): int(grade) for d, grade in grades.items()} for qid, grades in source.items()})


def resolve_run(source: Source) -> Run:
    """A run: as it is, of a file, ``{query id: {document id: score}}``, or ``{query id: [best document id, …]}``."""
    if isinstance(source, Run):
        return source
    if _is_name(source):
        return read_run(source)
    rankings = {}
    for qid, ranked in _by_query(source, "run", '{"q1": {"d1": 7.5}}'):
        if isinstance(ranked, Ranking):
            rankings[str(qid)] = ranked
            continue
        scores = ranked
        if isinstance(ranked, Sequence) and not isinstance(ranked, str):  # 1/rank, as for runs without scores
            scores = {docid: 1 / rank for rank, docid in enumerate(ranked, 1)}
        if not isinstance(scores, Mapping) or not all(isinstance(x, int | float | np.number) for x in scores.values()):
            found = f"query {qid!r} has {excerpt(repr(ranked))}"
            raise RankwellError(f'run: {found}, expected scores, as in {{"q1": {{"d1": 7.5}}}}, or a list of ids')
        rankings[str(qid)] = Ranking.of(map(str, scores), map(float, scores.values()))
    return Run(rankings)


def _by_query(source: Source, name: str, example: str) -> Iterable[tuple[Any, Any]]:
    if not isinstance(source, Mapping):
        raise RankwellError(f"{name}: expected a file name or a dict, as in {example}, found {excerpt(repr(source))}")
    return source.items()


def collection_digest(source: str, columns: Columns | None = None) -> str:
    """A digest that identifies the documents of a file, whose fields ``columns`` may name, a folder or a data set."""
    if columns is not None and columns.named:
        return digest([collection_digest(source), columns.id, columns.text, columns.title])
    path = Path(source)
    if path.is_dir():
        return open_collection(source).digest()
    return file_digest(path) if path.is_file() else digest({"collection": source})


def open_collection(source: str | os.PathLike[str]) -> Dataset:
    """Like :func:`~rankwell.corpus.datasets.open_dataset`, but a folder of text files will do."""
    try:
        return open_dataset(source)
    except NoDatasetError:
        folder = TextFolder(Path(source))
        if not folder.files:
            raise
        return folder


def _is_name(source: Source) -> bool:
    return isinstance(source, str | os.PathLike)


def _named_documents(source: str | os.PathLike[str], columns: Columns | None) -> Iterable[Document]:
    name = os.fspath(source)
    if not (name.startswith(IRDS_PREFIXES) or os.path.isdir(name)):
        return read_documents(name, columns)
    dataset = open_collection(name)
    if columns is not None and columns.named:
        path = getattr(dataset, "collection_path", None)
        if path is None:
            raise RankwellError(f"{name} has no columns to name")
        return read_documents(path, columns)
    return dataset.documents()


def _documents_of(source: Source, columns: Columns | None) -> Iterable[Document]:
    if isinstance(source, DocumentFile):  # checked when it is read
        return source
    return (
        record if isinstance(record, Document) else Document(*record) for record in _objects(source, DOCUMENTS, columns)
    )


def _objects(source: Source, kind: RecordKind, columns: Columns | None) -> Iterator[Any]:
    """Records as they are, and the id, text and title of everything else."""
    if hasattr(source, "to_dict") and hasattr(source, "columns"):  # a pandas frame, without importing pandas
        yield from _rows(source.to_dict("records"), kind, columns)
        return
    if isinstance(source, Mapping):
        rows = ({"_id": identifier, **_as_fields(text, kind)} for identifier, text in source.items())
        yield from _rows(rows, kind, columns)
        return
    if not isinstance(source, Iterable):
        raise _wrong(kind, source)
    record_type = Document if kind is DOCUMENTS else Query
    items = iter(source)
    for place, item in enumerate(items):
        if isinstance(item, record_type):
            check_id(_plural(kind), None, f"{kind.name} id", item.docid if isinstance(item, Document) else item.qid)
            yield item
        elif isinstance(item, str):
            yield str(place), item, ""
        elif isinstance(item, Mapping):
            yield from _rows(chain([item], items), kind, columns)
        else:
            raise _wrong(kind, item)


def _rows(rows: Iterable[Any], kind: RecordKind, columns: Columns | None) -> Iterator[tuple[str, str, str]]:
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        return
    if not isinstance(first, Mapping):
        raise _wrong(kind, first)
    numbered = enumerate(chain([first], rows))
    table = Table(_plural(kind), tuple(map(str, first)), lambda _: numbered, first=0, lines=False)
    fields = choose_fields(table, kind, columns)
    yield from ((identifier, text, title) for _, identifier, text, title in fields.records(table))


def _as_fields(value: Any, kind: RecordKind) -> Mapping[str, Any]:
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, Mapping):
        return value
    raise _wrong(kind, value)


def _plural(kind: RecordKind) -> str:
    return "queries" if kind is QUERIES else "documents"


def _wrong(kind: RecordKind, found: Any) -> RankwellError:
    forms = f'a file name, a list of texts, {{"id": "text", …}}, a list of dicts, or {kind.name.title()} records'
    return RankwellError(f"{_plural(kind)}: expected {forms}, found {excerpt(repr(found))} ({type(found).__name__})")
