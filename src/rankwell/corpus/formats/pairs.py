"""Tables about queries and documents whose fields have names, such as judgments in a csv file with a header."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from rankwell.core.errors import InputError, excerpt
from rankwell.corpus.formats.fields import find_usual
from rankwell.corpus.formats.lines import FilePath, Lines, is_jsonl, open_lines, take, take_id, whole_number
from rankwell.corpus.formats.tables import Layout, Table, binary_table, opens_array, text_table
from rankwell.corpus.records import Query

IDS = {
    "query id": ("queryid", "qid", "query", "topicid", "topic", "questionid", "question"),
    "document id": ("corpusid", "docid", "documentid", "pid", "passageid", "docno", "document", "doc", "id"),
}
"""Usual names, compared without regard to case and punctuation."""
WORDS = {"words": ("query", "question", "querytext", "topic")}
"""Names of fields whose queries may be words instead of ids."""
Values = Mapping[str, Any]
PairRows = Iterator[tuple[int, str, str, Values]]


def open_pairs(path: FilePath, kind: str, fields: Mapping[str, tuple[str, ...]]) -> PairRows | tuple[str, Lines]:
    """The rows of a file that names its fields: the number, the two ids, and the values of those ``fields`` it has.

    ``fields`` maps what is wanted to its usual names. For a file without names: its first line, and all lines.
    """
    table = binary_table(path)
    if table is None:
        first, lines = open_lines(path, kind, comments=True)
        mark = next((mark for mark in "\t,;" if mark in first), None)
        cells = [cell.strip(' "') for cell in first.split(mark)]
        header = all(find_usual(usual, cells) for usual in IDS.values())
        # A query id may open with a brace, but then the line ends in a grade, a rank or the name of a run.
        is_json = (is_jsonl(first) or opens_array(first)) and first.rstrip()[-1] in "{}[],"
        if not (header or is_json):
            return first, lines
        if header and mark in (None, "\t"):  # trec_eval separates by any whitespace and knows comments
            first = "\t".join(cells)
            lines = ((n, line if mark else "\t".join(line.split())) for n, line in lines if _has_content(line))
        table = text_table(
            path, first, lines, Layout(kind, {"\t": {}, ",": {}}, lambda cells, tabs: True, by_name=True)
        )
    return _rows(table, kind, fields)


def judged_queries(path: FilePath) -> list[Query] | None:
    """The queries of a file of judgments or clicks, if it has their words, which are their ids, too, without ids."""
    opened = open_pairs(path, "judgments", {**WORDS, "document": IDS["document id"]})
    queries: dict[str, Query] = {}
    for number, qid, _, values in () if isinstance(opened, tuple) else opened:
        if not isinstance(words := values.get("words"), str):
            return None
        if queries.setdefault(qid, Query(qid, words)).text.split() != words.split():
            raise InputError(path, number, f"the query {excerpt(qid)} has other words before")
    return list(queries.values()) or None


def _has_content(line: str) -> bool:
    return not line.lstrip().startswith("#") and bool(line.strip())


def _rows(table: Table, kind: str, fields: Mapping[str, tuple[str, ...]]) -> PairRows:
    names = {part: find_usual(usual, table.names) for part, usual in {**IDS, **fields}.items()}
    columns = {part: name for part, name in names.items() if name is not None}
    if lacking := next((part for part in IDS if part not in columns), None):
        raise _lacking(table, kind, lacking)
    if not any(part in columns for part in fields):
        raise _lacking(table, kind, " or ".join(fields))
    words = find_usual(WORDS["words"], table.names)
    for number, row in table.read(list(dict.fromkeys(columns.values()))):
        record = row if isinstance(row, Mapping) else dict(zip(table.names, row, strict=True))
        place = table.place(number)
        ids = record
        if words == columns["query id"] and isinstance(record.get(words), str):
            ids = {**record, words: "_".join(record[words].split())}
        qid, docid = (take_id(*place, ids, [columns[part]], part) for part in IDS)
        yield number, qid, docid, {part: take(*place, record, [columns[part]]) for part in fields if part in columns}


def _lacking(table: Table, kind: str, wanted: str) -> InputError:
    return InputError(*table.place(table.first), f"{kind}: no field for the {wanted}; found {', '.join(table.names)}")


def whole(path: FilePath, number: int, name: str, value: Any) -> int:
    """A value as a whole number, which tools also write as 1.0."""
    with suppress(TypeError, ValueError, OverflowError):
        exact = whole_number(value.strip().removesuffix(".0")) if isinstance(value, str) else int(value)
        if isinstance(value, str) or exact == value:
            return exact
    raise InputError(path, number, f"the {name} is {excerpt(str(value))}, expected a whole number")
