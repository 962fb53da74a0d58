"""Collections and queries from whatever people have: a file, a folder, a name of a data set, or Python objects."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from html import unescape
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from rankwell.core.errors import InputError, Notice, RankwellError, excerpt, system_reason
from rankwell.core.files import read_lines
from rankwell.core.manifest import digest, file_digest
from rankwell.corpus.datasets import IRDS_PREFIXES, Dataset, NoDatasetError, open_dataset
from rankwell.corpus.formats import read_documents, read_qrels, read_queries, read_run
from rankwell.corpus.formats.fields import DOCUMENTS, QUERIES, Columns, RecordKind, choose_fields
from rankwell.corpus.formats.lines import check_id
from rankwell.corpus.formats.pairs import judged_queries
from rankwell.corpus.formats.tables import Table
from rankwell.corpus.formats.texts import DocumentFile
from rankwell.corpus.records import Document, Metadata, Qrels, Query, Ranking, Run

SUFFIXES = {
    **dict.fromkeys((".txt", ".text"), "text"),
    **dict.fromkeys((".md", ".markdown"), "markdown"),
    **dict.fromkeys((".html", ".htm"), "html"),
}
MOST_FRONT_LINES = 500
"""Lines of a file's front matter, at most."""
_HEADING = re.compile(r"#\s+(.+?)\s*#*\s*")
_UNSAFE = re.compile(r"[\s%\ufeff\0\ud800-\udfff]")
_BLOCKS = frozenset(
    "address article aside blockquote br dd div dl dt figcaption footer form h1 h2 h3 h4 h5 h6 header hr li main nav "
    "ol p pre section table td th tr ul".split()
)
_SKIPPED = frozenset("template noscript svg".split())
_RAW = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style", "title")}
"""Elements whose contents are no markup, and where they end."""
_DECIMAL = re.compile(r"&#0*(\d+)")  # Python refuses to read thousands of digits
_TAG = re.compile(r"""<(/?)([a-zA-Z][^\s/>]*+)(?:[^>"'=]|=\s*"[^"]*"|=\s*'[^']*'|["'=])*+(>?)""")


class TextFolder(Dataset):
    """The text files of a folder and the folders below it. A file's path is its id, its heading its title.

    Whitespace in a path becomes ``%20``. Hidden files, and links that leave the folder, are left out.
    """

    splits = ()

    def __init__(self, folder: Path):
        self.folder = folder
        self.name = str(folder)
        files = sorted(_files_below(folder))
        root = folder.resolve()
        outside = {path for path in files if path.is_symlink() and not path.resolve().is_relative_to(root)}
        self.files = [path for path in files if path.suffix.lower() in SUFFIXES and path not in outside]
        others = set(files) - set(self.files) - outside
        self._others = Counter(path.suffix.lower() or path.name for path in others)
        self._others += Counter({"links out of the folder": len(outside)})
        if not self.files and ".pdf" in self._others:
            problem = "PDF files, but no text: convert them first, for example with `pdftotext FILE.pdf`"
            raise InputError(folder, None, problem)

    def documents(self) -> Iterator[Document]:
        """Stream the files in alphabetical order; files of other kinds are counted in a notice."""
        if self._others:
            pdf = "; convert PDF files first, for example with pdftotext" * (".pdf" in self._others)
            kinds = ", ".join(f"{count} {kind}" for kind, count in self._others.most_common(5))
            warnings.warn(f"{self.name}: other files are not read ({kinds}){pdf}", Notice, stacklevel=3)
        return (read_text_file(path, document_id(path, self.folder)) for path in self.files)

    def digest(self) -> str:
        """See :class:`Dataset`."""
        return digest({document_id(path, self.folder): file_digest(path) for path in self.files})


def _files_below(folder: Path) -> Iterator[Path]:
    """The files of a folder and of those below it, however deep; nothing hidden, and no folder behind a link."""
    folders = [os.fspath(folder)]
    while folders:
        try:
            entries = [entry for entry in os.scandir(folders.pop()) if not entry.name.startswith(".")]
        except OSError as error:
            raise InputError(folder, None, f"cannot be read ({system_reason(error)})") from None
        folders += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        yield from (Path(entry.path) for entry in entries if os.path.isfile(entry.path))  # False for links in a circle


def document_id(path: Path, folder: Path) -> str:
    """A file's path within the folder, with ``%`` escapes for what an id cannot contain."""
    return _escape(path.relative_to(folder).as_posix())


def _escape(name: str) -> str:
    return _UNSAFE.sub(lambda found: quote(found[0], safe="", errors="surrogateescape"), name)


def as_id(name: str) -> str:
    """An id as it is, or as that of a file of this name if it has whitespace.

    >>> as_id("work/plan 1.md"), as_id("work/plan%201.md")
    ('work/plan%201.md', 'work/plan%201.md')
    """
    return _escape(name) if _UNSAFE.search(name.replace("%", "")) else name


def read_text_file(path: Path, docid: str) -> Document:
    """One file as a document; ``#`` headings, ``<title>`` and the front matter's title become its title.

    The other fields of the front matter are its metadata.
    """
    lines = [line for _, line in read_lines(path)]
    kind = SUFFIXES[path.suffix.lower()]
    if kind == "html":
        title, text = read_page("\n".join(lines))
        return Document(docid, text, title)
    fields, lines = _front_matter(lines) if kind == "markdown" else ({}, lines)
    if title := str(fields.pop("title", None) or ""):
        return Document(docid, "\n".join(lines).strip(), title, fields or None)
    first = next((number for number, line in enumerate(lines) if line.strip()), None)
    if kind == "markdown" and first is not None and (heading := _HEADING.fullmatch(lines[first])):
        return Document(docid, "\n".join(lines[first + 1 :]).strip(), heading[1], fields or None)
    return Document(docid, "\n".join(lines).strip(), metadata=fields or None)


def _front_matter(lines: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The fields between two lines of ``---`` that open a file, and the lines below; what is no YAML is text."""
    if [line.rstrip() for line in lines[:1]] != ["---"]:
        return {}, lines
    from rankwell.core.yamlfile import YamlError, parse_yaml

    end = next((n for n, line in enumerate(lines[1:MOST_FRONT_LINES], 1) if line.rstrip() in ("---", "...")), 0)
    try:
        fields = parse_yaml("\n".join(lines[1:end])) if end else None
    except YamlError:
        return {}, lines
    if not isinstance(fields, dict):
        return {}, lines
    return {str(name): value for name, value in fields.items()}, lines[end + 1 :]


def read_page(page: str) -> tuple[str, str]:
    """The title and the text of a web page: a line per block, without scripts and styles. Each character is read once.

    >>> read_page("<title>Bees</title><p>They <b>dance</b>.<script>run()</script><p>And hum.")
    ('Bees', 'They dance.\\nAnd hum.')
    """
    parts: list[str] = []
    title: list[str] = []
    skipped: list[str] = []
    place, end = 0, len(page)
    while place < end:
        begin = page.find("<", place)
        if begin != place:
            begin = end if begin < 0 else begin
            if not skipped:
                parts.append(_unescape(page[place:begin]))
            place = begin
            continue
        tag = _TAG.match(page, place)
        if tag is None:
            place, data = _skip_markup(page, place)
            parts += [data] * (not skipped)
            continue
        place = tag.end() if tag[3] else end  # a tag that never ends hides the rest, as in a browser
        name = tag[2].lower()
        if name in _BLOCKS:
            parts.append("\n")
        if tag[1]:
            del skipped[skipped.index(name) if name in skipped else len(skipped) :]
        elif name in _RAW:
            close = _RAW[name].search(page, place)
            contents, place = page[place : close.start() if close else end], close.start() if close else end
            title += [_unescape(contents)] * (name == "title" and not skipped)
        elif name in _SKIPPED and name not in skipped:
            skipped.append(name)
    lines = (" ".join(line.split()) for line in "".join(parts).split("\n"))
    return " ".join("".join(title).split()), "\n".join(line for line in lines if line)


def _unescape(text: str) -> str:
    """``text`` with the characters that ``&amp;``, ``&#38;`` and the like stand for."""
    return unescape(_DECIMAL.sub(lambda found: found[0][:2] + found[1][:8], text))


def _skip_markup(page: str, place: int) -> tuple[int, str]:
    """The end of a comment or a declaration; a "<" that begins neither is text."""
    if page.startswith("<!--", place):
        close, width = page.find("-->", place + 4), 3
    elif page.startswith(("<!", "<?", "</"), place):
        close, width = page.find(">", place), 1
    else:
        return place + 1, "<"
    return (close + width if close >= 0 else len(page)), ""


_PARAGRAPH = re.compile(r"\n\s*\n")
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+")


def split_passages(documents: Iterable[Document], words: int) -> Iterator[Document]:
    """The passages of each document, ``ID#1``, ``ID#2``, …, each with the document's title and metadata.

    A passage is as many whole paragraphs as fit into ``words`` words. A longer paragraph is split between sentences,
    and a longer sentence between words. Documents that fit are also called ``ID#1``.
    """
    if words < 1:
        raise RankwellError(f"passages must have at least 1 word, not {words}")
    for document in documents:
        for number, text in enumerate(_passages(document.text, words) or [""], 1):
            yield Document(f"{document.docid}#{number}", text, document.title, document.metadata)


def _passages(text: str, words: int) -> list[str]:
    passages: list[str] = []
    room = 0
    for paragraph in _PARAGRAPH.split(text.strip()):
        for separator, piece in _pieces(paragraph, words):
            size = len(piece.split())
            if passages and size <= room:
                passages[-1] += separator + piece
                room -= size
            elif size:
                passages.append(piece)
                room = words - size
    return passages


def _pieces(paragraph: str, words: int) -> Iterator[tuple[str, str]]:
    """A paragraph in pieces of at most ``words`` words, each with what separates it from the piece before."""
    if len(paragraph.split()) <= words:
        yield "\n\n", paragraph
        return
    separator = "\n\n"
    for sentence in _SENTENCE.split(paragraph):
        parts = sentence.split()
        for begin in range(0, len(parts), words):
            yield separator, sentence if len(parts) <= words else " ".join(parts[begin : begin + words])
            separator = " "


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


def resolve_queries(source: Source) -> list[Query]:
    """The queries of a file or of Python objects, as :func:`resolve_documents` reads documents."""
    if _is_name(source):
        return read_queries(source)
    queries = [query if isinstance(query, Query) else Query(*query[:2]) for query in _objects(source, QUERIES, None)]
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
        return digest([collection_digest(source), columns.id, columns.texts, columns.title])
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
            if not any(folder.folder.iterdir()):
                raise InputError(
                    source, None, "an empty folder, expected a data set or texts (.txt, .md, .html)"
                ) from None
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
    """Records as they are, and the id, text, title and other fields of everything else."""
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


def _rows(
    rows: Iterable[Any], kind: RecordKind, columns: Columns | None
) -> Iterator[tuple[str, str, str, Metadata | None]]:
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        return
    if not isinstance(first, Mapping):
        raise _wrong(kind, first)
    numbered = enumerate(chain([first], rows))
    table = Table(_plural(kind), tuple(map(str, first)), lambda _: numbered, first=0, lines=False)
    fields = choose_fields(table, kind, columns)
    yield from (record[1:] for record in fields.records(table))


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


# Questions


TYPED = "1"
"""The id of a question that was typed."""
_FILE_NAME = re.compile(r"-|\S*[/\\]\S*|\S+\.(tsv|csv|txt|jsonl?|parquet|arrow|gz|run|trec)|(hf|irds|ir_datasets):\S+")


def is_question(source: str | os.PathLike[str]) -> bool:
    """Whether ``source`` is a question rather than the name of a file.

    >>> is_question("what is information science"), is_question("queries.tsv"), is_question("-")
    (True, False, False)
    """
    text = os.fspath(source)
    return not os.path.exists(text) and not _FILE_NAME.fullmatch(text)


def read_questions(source: str | os.PathLike[str], columns: Columns | None = None) -> list[Query]:
    """The question itself, or the queries of a file, of ``irds:NAME`` or, for ``-``, of standard input.

    A file may be one of judgments with the words of the queries.
    """
    if not is_question(source):
        if os.fspath(source).startswith(IRDS_PREFIXES):
            return open_dataset(source).queries()
        try:
            return read_queries(source, columns)
        except InputError:
            with suppress(RankwellError):
                if judged := judged_queries(source):
                    return judged
            raise
    if not os.fspath(source).strip():
        raise RankwellError("the question is empty")
    return [Query(TYPED, os.fspath(source))]
