"""Texts: queries, query types and documents, as tsv, or as jsonl with the keys of BEIR and similar formats.

Documents are streamed. Repeated document ids are found by the index builder, which has all ids in memory anyway. The
lines of an id are looked up only then, so that reading need not store them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from rankwell.core.errors import InputError, RankwellError, excerpt
from rankwell.corpus.formats.lines import (
    FilePath,
    Lines,
    check_id,
    is_jsonl,
    json_line,
    names_jsonl,
    open_lines,
    parse_object,
    take_id,
    take_text,
    writable_cell,
    writable_id,
    write_lines,
    wrong_columns,
)
from rankwell.corpus.records import Document, Query

DOCUMENT_ID_KEYS = ("_id", "id", "docid", "pid")
DOCUMENT_TEXT_KEYS = ("text", "contents", "body", "passage")
QUERY_ID_KEYS = ("_id", "id", "qid")
QUERY_TEXT_KEYS = ("text", "query")

PASSAGE_COLUMNS = ("document id", "text")
DOCUMENT_COLUMNS = ("document id", "url", "title", "body")


def read_queries(path: FilePath) -> list[Query]:
    """Read ``qid<TAB>text`` or BEIR's ``{"_id", "text"}``."""
    first, lines = open_lines(path, "queries")
    pairs = _query_objects(path, lines) if is_jsonl(first) else _pairs(path, lines, "text")
    return [Query(qid, text) for qid, text in _unique(path, pairs).items()]


def read_types(path: FilePath) -> dict[str, str]:
    """Read the kind of answer each query asks for, ``qid<TAB>label``."""
    _, lines = open_lines(path, "query types")
    return _unique(path, _pairs(path, lines, "label"))


def _pairs(path: FilePath, lines: Lines, second: str) -> Iterator[tuple[int, str, str]]:
    for number, line in lines:
        if not line:
            continue
        qid, tab, text = line.partition("\t")
        if not tab or "\t" in text or (second == "label" and not text):
            raise wrong_columns(path, number, line, ("query id", second), "\t")
        check_id(path, number, "query id", qid)
        yield number, qid, text


def _query_objects(path: FilePath, lines: Lines) -> Iterator[tuple[int, str, str]]:
    for number, line in lines:
        if line.strip():
            record = parse_object(path, number, line)
            qid = take_id(path, number, record, QUERY_ID_KEYS, "query id")
            yield number, qid, take_text(path, number, record, QUERY_TEXT_KEYS)


def _unique(path: FilePath, pairs: Iterable[tuple[int, str, str]]) -> dict[str, str]:
    texts: dict[str, str] = {}
    seen: dict[str, int] = {}
    for number, qid, text in pairs:
        if qid in seen:
            raise InputError(path, number, f"query id {excerpt(qid)} was already on line {seen[qid]}, expected once")
        texts[qid], seen[qid] = text, number
    return texts


class DocumentFile(Iterator[Document]):
    """The documents of one file, streamed once."""

    def __init__(self, path: FilePath):
        self.path = path
        first, lines = open_lines(path, "a collection")
        self._documents = _parser(first)(path, lines)

    def __iter__(self) -> Iterator[Document]:
        return self._documents  # the generator itself, so that iterating adds no cost

    def __next__(self) -> Document:
        return next(self._documents)

    def lines_of(self, docid: str) -> Iterator[int]:
        """The numbers of the lines with this id. Reads the file again; empty for a pipe."""
        if not Path(self.path).is_file():
            return
        first, lines = open_lines(self.path, "a collection")
        parse = _parser(first)
        for line in lines:
            if any(document.docid == docid for document in parse(self.path, iter([line]))):
                yield line[0]


def blame_line(documents: Iterable[Document], docid: str, problem: str, *, time: int = 1) -> RankwellError:
    """An error at the line where an id occurs for the first or second ``time``, if the documents come from a file."""
    if not isinstance(documents, DocumentFile):
        return RankwellError(problem)
    lines = list(islice(documents.lines_of(docid), time))
    before = f" (first on line {lines[0]})" if len(lines) == 2 else ""
    return InputError(documents.path, lines[-1] if len(lines) == time else None, problem + before)


def read_documents(path: FilePath) -> DocumentFile:
    """Stream ``docid<TAB>text``, MS MARCO's ``docid<TAB>url<TAB>title<TAB>body``, or jsonl objects."""
    return DocumentFile(path)


def _parser(first: str) -> Callable[[FilePath, Lines], Iterator[Document]]:
    """The reader for a file, chosen by its first line."""
    if is_jsonl(first):
        return _document_objects
    return _long_documents if first.count("\t") == 3 else _passages


def _passages(path: FilePath, lines: Lines) -> Iterator[Document]:
    for number, line in lines:
        try:
            docid, text = line.split("\t")
        except ValueError:
            if not line:
                continue
            raise wrong_columns(path, number, line, PASSAGE_COLUMNS, "\t") from None
        if not docid.isalnum():  # quicker than the whole check
            check_id(path, number, "document id", docid)
        yield Document(docid, text)


def _long_documents(path: FilePath, lines: Lines) -> Iterator[Document]:
    for number, line in lines:
        try:
            docid, _, title, body = line.split("\t")
        except ValueError:
            if not line:
                continue
            raise wrong_columns(path, number, line, DOCUMENT_COLUMNS, "\t") from None
        check_id(path, number, "document id", docid)
        yield Document(docid, body, title)


def _document_objects(path: FilePath, lines: Lines) -> Iterator[Document]:
    for number, line in lines:
        if line.strip():
            record = parse_object(path, number, line)
            docid = take_id(path, number, record, DOCUMENT_ID_KEYS, "document id")
            text = take_text(path, number, record, DOCUMENT_TEXT_KEYS)
            title = take_text(path, number, record, ("title",)) if record.get("title") is not None else ""
            yield Document(docid, text, title)


def write_queries(queries: Iterable[Query], path: FilePath) -> None:
    """Write BEIR jsonl if the name ends in ``.jsonl`` or ``.jsonl.gz``, else tsv. Types are not written."""
    pairs = ((query.qid, query.text) for query in queries)
    if names_jsonl(path):
        write_lines(path, "queries", (json_line(path, _beir(path, "query id", *pair)) for pair in pairs))
    else:
        write_lines(path, "queries", (_tsv_line(path, "query id", *pair) for pair in pairs))


def write_types(types: Mapping[str, str], path: FilePath) -> None:
    """Write ``qid<TAB>label``."""
    for qid, label in types.items():
        if not label:
            raise RankwellError(f"cannot write {path}: the label of query {excerpt(qid)} is empty")
    write_lines(path, "query types", (_tsv_line(path, "query id", *pair) for pair in types.items()))


def write_documents(documents: Iterable[Document], path: FilePath) -> None:
    """Write BEIR jsonl if the name ends in ``.jsonl`` or ``.jsonl.gz``, else tsv, which has no titles."""
    line = _document_object if names_jsonl(path) else _passage
    write_lines(path, "documents", (line(path, document) for document in documents))


def _document_object(path: FilePath, document: Document) -> str:
    return json_line(path, {**_beir(path, "document id", document.docid, document.text), "title": document.title})


def _passage(path: FilePath, document: Document) -> str:
    if document.title:
        raise RankwellError(
            f"cannot write {path}: document {excerpt(document.docid)} has a title, which a tsv file cannot hold; "
            "use a .jsonl file"
        )
    return _tsv_line(path, "document id", document.docid, document.text)


def _beir(path: FilePath, name: str, identifier: str, text: str) -> dict[str, str]:
    return {"_id": writable_id(path, name, identifier), "text": text}


def _tsv_line(path: FilePath, name: str, identifier: str, text: str) -> str:
    return f"{writable_id(path, name, identifier)}\t{writable_cell(path, 'text', text)}\n"
