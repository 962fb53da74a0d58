"""Which fields of a table are a record's id, text and title: named by the user, or recognised and reported."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankwell.core.errors import InputError, Notice, excerpt
from rankwell.corpus.formats.lines import take_id, take_text
from rankwell.corpus.formats.tables import Layout, Table
from rankwell.corpus.records import Metadata

DOCUMENT_ID_KEYS = ("_id", "id", "docid", "pid")
_PARTS = ("id", "text", "title")
MANY = 8
"""More columns are not listed in a notice."""
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d+)?")


@dataclass(frozen=True)
class Columns:
    """The fields to read, by name or, in a file without a header, by number from 1. ``None``: recognised.

    Several fields can be the ``text``: the first, and below it the others, which also stay fields to filter by.
    """

    id: str | None = None
    text: str | Sequence[str] | None = None
    title: str | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The fields of the text that are named."""
        return (self.text,) if isinstance(self.text, str) else tuple(self.text or ())

    @property
    def named(self) -> tuple[str, ...]:
        """The fields that are named."""
        return tuple(name for name in (self.id, *self.texts, self.title) if name is not None)


@dataclass(frozen=True)
class RecordKind:
    """A kind of record: its usual names of fields, the most usual first, and its columns in files without names.

    Names are compared without regard to case and punctuation, so that ``docid`` also stands for ``Doc_ID``.
    """

    name: str
    collective: str
    ids: tuple[str, ...]
    texts: tuple[str, ...]
    titles: tuple[str, ...]
    columns: Mapping[str, Mapping[int, tuple[str, ...]]]

    def layout(self, columns: Columns | None) -> Layout:
        """The layout of files without names of fields, given what the user names."""
        named = (columns or Columns()).named
        by_number = bool(named) and all(name.isdecimal() for name in named)

        def is_header(cells: Sequence[str], tabs: bool) -> bool:
            if named:
                return set(named) <= set(cells)
            identifier, text, title = (self.find(part, cells) is not None for part in _PARTS)
            # A tsv line of the usual columns may be a document whose title is "Title": only an id makes it a header.
            free = not (tabs and len(cells) in self.columns["\t"])
            return text and (identifier or (free and (title or len(cells) == 1)))

        return Layout(self.collective, self.columns, is_header, by_number, bool(named) and not by_number)

    def find(self, part: str, names: Sequence[str]) -> str | None:
        """The one of ``names`` that is a usual name of a record's id, text or title."""
        return find_usual({"id": self.ids, "text": self.texts, "title": self.titles}[part], names)


def find_usual(usual: Sequence[str], names: Sequence[str]) -> str | None:
    """The one of ``names`` that is a ``usual`` name, without regard to case and punctuation; the most usual first."""
    plain = {name: re.sub(r"[^a-z0-9]", "", name.lower()) for name in reversed(names)}
    for known in usual:
        if known in plain:
            return known
        found = next((name for name, short in plain.items() if short == known), None)
        if found is not None:
            return found
    return None


DOCUMENTS = RecordKind(
    "document",
    "a collection",
    (*DOCUMENT_ID_KEYS, "documentid", "passageid", "corpusid", "docno", "identifier", "uuid", "uid", "sku"),
    (
        "text",
        "contents",
        "body",
        "passage",
        "content",
        "document",
        "doc",
        "passagetext",
        "documenttext",
        "abstract",
        "description",
    ),
    ("title", "headline", "heading", "name", "productname", "subject"),
    {
        "\t": {2: ("document id", "text"), 4: ("document id", "url", "title", "body")},
        ",": {1: ("text",), 2: ("document id", "text"), 3: ("document id", "title", "text")},
    },
)
QUERIES = RecordKind(
    "query",
    "queries",
    ("_id", "id", "qid", "queryid", "questionid", "topicid"),
    ("text", "query", "question", "querytext", "questiontext", "topic"),
    (),
    {"\t": {2: ("query id", "text")}, ",": {1: ("text",), 2: ("query id", "text")}},
)


@dataclass(frozen=True)
class Fields:
    """The fields of one table: for each part of a record the names that it can have in a row, the likeliest first."""

    kind: RecordKind
    ids: tuple[str, ...]
    """Empty if the records are numbered."""
    texts: tuple[str, ...]
    titles: tuple[str, ...]
    more: tuple[str, ...] = ()
    """Further fields of the text."""

    @property
    def _parts(self) -> tuple[tuple[str, ...], ...]:
        return self.ids, self.texts, self.titles

    def records(self, table: Table) -> Iterator[tuple[int, str, str, str, Metadata | None]]:
        """The number, id, text and title of each row, and the other fields of documents whose table names them."""
        keeps = self.kind is DOCUMENTS and (table.header if table.positions else table.stated)
        wanted = [name for name in table.names if keeps or any(name in names for names in (*self._parts, self.more))]
        key: dict[str, Any] = dict(zip(table.names, table.positions or table.names, strict=True))
        mapped = not table.positions
        if mapped:  # objects may have keys that the first one lacks
            key |= {name: name for name in self.titles}
        id_key, text_key, title_key = (key.get(names[0]) if names else None for names in self._parts)
        count = table.base - 1
        identifier = title = ""
        parts = {name for names in self._parts for name in names[:1]}
        others = [(name, key[name]) for name in table.names if name not in parts]
        metadata = None
        for number, row in table.read(wanted):
            if keeps and mapped:
                metadata = {name: value for name, value in row.items() if name not in parts} if len(row) > 1 else None
                if metadata and isinstance(metadata.get("metadata"), Mapping):  # as in BEIR
                    metadata |= metadata.pop("metadata")
            elif keeps:
                metadata = {name: _cell(row[place]) for name, place in others}
            if mapped and not (text_key in row and (id_key is None or id_key in row)):
                yield number, *self._whole(table, number, row, count := count + 1), metadata
                continue
            if id_key is None:
                count += 1
                identifier = str(count)
            else:
                identifier = row[id_key]
            text = row[text_key]
            if title_key is not None:
                title = row.get(title_key, "") if mapped else row[title_key]
            plain = type(identifier) is str and identifier.isalnum() and type(text) is str and type(title) is str
            if plain and not self.more:
                yield number, identifier, text, title, metadata or None  # quicker than all checks
            else:
                yield number, *self._whole(table, number, row, count), metadata or None

    def _whole(self, table: Table, number: int, row: Any, count: int) -> tuple[str, str, str]:
        """The id, text and title of a row, fully checked."""
        row = row if isinstance(row, Mapping) else dict(zip(table.names, row, strict=True))
        place = table.place(number)
        identifier = take_id(*place, row, self.ids, f"{self.kind.name} id") if self.ids else str(count)
        text = "\n".join(filter(None, [take_text(*place, row, self.texts), *(_text(row.get(n)) for n in self.more)]))
        # Neither missing nor the NaN that pandas puts there.
        titles = [name for name in self.titles if row.get(name) is not None and row[name] == row[name]]
        return identifier, text, take_text(*place, row, titles) if titles else ""


def _text(value: Any) -> str:
    """A value of a further field of the text; nothing for a missing one."""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None or value != value else str(value)


def _cell(text: str) -> str | float:
    """A cell of csv or tsv: a number if it is written as one, but not as an id such as 007."""
    return float(text) if _NUMBER.fullmatch(text) else text


def choose_fields(table: Table, kind: RecordKind, columns: Columns | None = None) -> Fields:
    """The fields of a table: those the user names, else those with usual names. Guesses are reported in one line."""
    given = columns or Columns()
    wanted = [("id", given.id), *(("text", name) for name in given.texts), ("title", given.title)]
    for option, name in wanted:
        if name is not None and name not in table.names:
            fields = ", ".join(map(repr, table.names)) or "none"
            raise InputError(table.path, None, f"no field {name!r} for the {option}; found {fields}")
    if not table.stated and not given.named:
        ids = tuple(name for name in table.names if name == f"{kind.name} id")
        if not ids:
            _say(table, f"no ids: each line is a {kind.name}, numbered from 1")
        elif table.csv:
            _say(table, f"no header; columns: {', '.join(table.names)} (if there is one, use --id and --text)")
        return Fields(kind, ids, table.names[-1:], tuple(name for name in table.names if name == "title"))
    identifier = given.id or (kind.find("id", table.names) if table.stated else None)
    others = [name for name in table.names if name != identifier]
    usual = kind.find("text", table.names) or (others[0] if len(others) == 1 else None)
    text, more = (given.texts[0], given.texts[1:]) if given.texts else (usual, ())
    if text is None:
        found = ", ".join(map(repr, table.names)) or "none"
        raise InputError(*table.place(table.first), f"no field for the text; found {found}; name one with --text")
    title = given.title or kind.find("title", [name for name in table.names if name not in given.texts])
    standard = identifier in kind.ids and text in kind.texts and (title in kind.titles or title is None)
    if table.header or not (standard or (given.id and given.text)):
        parts = [("id", identifier), ("text", text), *(("text", name) for name in more), ("title", title)]
        said = ", ".join(f"{part}: {excerpt(name)}" for part, name in parts if name is not None)
        header = "the first line is a header; " * table.header
        rest = [name for name in table.names if name not in [used for _, used in parts]] if kind is DOCUMENTS else []
        said += f"; not searched: {', '.join(rest[:MANY])}{', …' * (len(rest) > MANY)}" * bool(rest)
        numbered = f"; no ids, so numbered from {table.base} (--id names a field)" * (identifier is None)
        _say(table, f"{header}{said}{numbered}")
    return Fields(
        kind,
        _alternatives(identifier, given.id, DOCUMENT_ID_KEYS if kind is DOCUMENTS else kind.ids[:3]),
        _alternatives(text, text if given.texts else None, kind.texts[:4]),
        _alternatives(title, given.title, kind.titles[:1]) or kind.titles[:1],
        more,
    )


def _alternatives(name: str | None, given: str | None, usual: Sequence[str]) -> tuple[str, ...]:
    """The names that a part can have in other rows of a jsonl file, whose objects need not have the same keys."""
    if name is None:
        return ()
    return (name, *(other for other in usual if other != name)) if given is None and name in usual else (name,)


def _say(table: Table, message: str) -> None:
    warnings.warn(f"{table.path}: {message}", Notice, stacklevel=4)
