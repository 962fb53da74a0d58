"""A folder of text, Markdown and HTML files as a collection: one document per file."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

from rankwell.core.errors import InputError, Notice, RankwellError
from rankwell.core.files import read_lines
from rankwell.core.manifest import digest, file_digest
from rankwell.corpus.datasets import Dataset
from rankwell.corpus.records import Document, Qrels, Query

SUFFIXES = {
    **dict.fromkeys((".txt", ".text"), "text"),
    **dict.fromkeys((".md", ".markdown"), "markdown"),
    **dict.fromkeys((".html", ".htm"), "html"),
}
_HEADING = re.compile(r"#\s+(.+?)\s*#*\s*")
_UNSAFE = re.compile(r"[\s%\ufeff\0\ud800-\udfff]")
_BLOCKS = frozenset(
    "address article aside blockquote br dd div dl dt figcaption footer form h1 h2 h3 h4 h5 h6 header hr li main nav "
    "ol p pre section table td th tr ul".split()
)
_SKIPPED = frozenset("script style template noscript svg".split())


class TextFolder(Dataset):
    """The text files of a folder and the folders below it. A file's path is its id, its heading its title.

    Whitespace in a path becomes ``%20``. Hidden files are left out.
    """

    splits = ()

    def __init__(self, folder: Path):
        self.folder = folder
        self.name = str(folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file() and not _is_hidden(path, folder))
        self.files = [path for path in files if path.suffix.lower() in SUFFIXES]
        others = set(files) - set(self.files)
        self._others = Counter(path.suffix.lower() or path.name for path in others)
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

    def queries(self, split: str | None = None) -> list[Query]:
        """A folder of texts has no queries."""
        raise RankwellError(f"{self.name} is a folder of texts; it has no queries")

    def qrels(self, split: str | None = None) -> Qrels:
        """A folder of texts has no judgments."""
        raise RankwellError(f"{self.name} is a folder of texts; it has no judgments")


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def document_id(path: Path, folder: Path) -> str:
    """A file's path within the folder, with ``%`` escapes for what an id cannot contain."""
    name = path.relative_to(folder).as_posix()
    return _UNSAFE.sub(lambda found: quote(found[0], safe="", errors="surrogateescape"), name)


def read_text_file(path: Path, docid: str) -> Document:
    """One file as a document; ``#`` headings and ``<title>`` become its title."""
    lines = [line for _, line in read_lines(path)]
    kind = SUFFIXES[path.suffix.lower()]
    if kind == "html":
        page = _Page()
        page.feed("\n".join(lines))
        page.close()
        return Document(docid, page.text, page.title)
    first = next((number for number, line in enumerate(lines) if line.strip()), None)
    if kind == "markdown" and first is not None and (heading := _HEADING.fullmatch(lines[first])):
        return Document(docid, "\n".join(lines[first + 1 :]).strip(), heading[1])
    return Document(docid, "\n".join(lines).strip())


class _Page(HTMLParser):
    """The text of a web page: a line per block, without scripts and styles."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._parts: list[str] = []
        self._title: list[str] = []
        self._inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """Begin a block, or something to skip."""
        if tag in _BLOCKS:
            self._parts.append("\n")
        if tag in _SKIPPED or tag == "title":
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """End a block, or something to skip."""
        if tag in _BLOCKS:
            self._parts.append("\n")
        if tag in self._inside:
            del self._inside[self._inside.index(tag) :]

    def handle_data(self, data: str) -> None:
        """Text of the page, of its title, or of something to skip."""
        if not self._inside:
            self._parts.append(data)
        elif self._inside == ["title"]:
            self._title.append(data)

    @property
    def title(self) -> str:
        """The title on one line."""
        return " ".join("".join(self._title).split())

    @property
    def text(self) -> str:
        """The text, a line per block."""
        lines = (" ".join(line.split()) for line in "".join(self._parts).split("\n"))
        return "\n".join(line for line in lines if line)
