"""Data sets by name: a folder of plain files, or an id of the optional package ir_datasets.

A folder just works when its files have the usual names (:data:`FILE_NAMES`). What stands between the kind and the
extension is the split, dots included: ``queries.questions.dev.tsv`` holds the queries of ``questions.dev``. A file
without a split serves every split; of its queries (as in BEIR) or judgments a split has those its other file names.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from rankwell.core.errors import InputError, MissingExtraError, RankwellError
from rankwell.core.manifest import digest, file_digest
from rankwell.corpus.formats import read_documents, read_qrels, read_queries, read_run, read_types
from rankwell.corpus.formats.lines import check_id
from rankwell.corpus.records import Document, Qrels, Query, Run

IRDS_PREFIXES = ("irds:", "ir_datasets:")
ALL = "all"  # the one split of a data set that names none

# The names a folder's files go by, relative to it, and how an error message writes them.
FILE_NAMES: dict[str, tuple[re.Pattern[str], str]] = {
    kind: (re.compile(pattern + r"(?:\.gz)?"), shown)
    for kind, pattern, shown in (
        (
            "collection",
            r"(?:collection|corpus)(?P<part>.*)\.(?:tsv|txt|jsonl)",
            "collection.tsv, corpus.jsonl",
        ),
        ("queries", r"(?:queries|topics)(?:\.(?P<part>.+))?\.(?:tsv|txt|jsonl)", "queries.SPLIT.tsv, queries.jsonl"),
        ("qrels", r"qrels(?:[./](?P<part>.+))?\.(?:tsv|txt)", "qrels.SPLIT.txt, qrels/SPLIT.tsv"),
        ("types", r"types(?:\.(?P<part>.+))?\.tsv", "types.SPLIT.tsv"),
        ("run", r"run[._-]?(?P<part>.*)\.(?:txt|tsv)", "run.NAME.txt"),
    )
}


class Dataset(ABC):
    """Documents, and queries with judgments by split. Where there is one split, it need not be named."""

    name: str
    splits: tuple[str, ...]

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """Stream the collection."""

    @property
    @abstractmethod
    def collection_path(self) -> Path | None:
        """The file that holds the collection, where there is one."""

    @abstractmethod
    def queries(self, split: str | None = None) -> list[Query]:
        """The queries of a split."""

    @abstractmethod
    def qrels(self, split: str | None = None) -> Qrels:
        """The judgments of a split."""

    def types(self, split: str | None = None) -> dict[str, str]:
        """The types of a split's queries."""
        raise RankwellError(f"{self.name} has no query types")

    @property
    def runs(self) -> tuple[str, ...]:
        """The names of the runs that come with the data."""
        return ()

    def run(self, name: str | None = None) -> Run:
        """A run that comes with the data; where there is one, it need not be named."""
        raise RankwellError(f"{self.name} has no runs")

    def split(self, split: str | None) -> str:
        """``split`` if it exists; the only one for None."""
        return self._one_of("split", split, self.splits)

    def _one_of(self, kind: str, name: str | None, known: tuple[str, ...]) -> str:
        if name in known or (name is None and len(known) == 1):
            return name or known[0]
        problem = f"no {kind} is called {name!r}" if name is not None else f"say which {kind}"
        raise RankwellError(f"{self.name}: {problem} ({kind}s: {', '.join(known) or 'none'})")

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, splits: {', '.join(self.splits)})"


def open_dataset(source: str | os.PathLike[str]) -> Dataset:
    """Open a folder, or ``irds:NAME`` through ir_datasets."""
    name = os.fspath(source)
    return IrdsDataset(name) if name.startswith(IRDS_PREFIXES) else FolderDataset(Path(name))


def resolve_documents(source: str | os.PathLike[str]) -> Iterator[Document]:
    """The documents of a collection file, a folder or an ``irds:NAME``."""
    name = os.fspath(source)
    if name.startswith(IRDS_PREFIXES) or os.path.isdir(name):
        return open_dataset(name).documents()
    return read_documents(name)


class FolderDataset(Dataset):
    """A folder whose files have the usual names."""

    def __init__(self, folder: Path):
        if not folder.is_dir():
            raise InputError(folder, None, "is a file, expected a folder" if folder.exists() else "no such folder")
        self.folder = folder
        self.name = str(folder)
        if not any(self._files.values()):
            raise self._missing("files of a data set", *FILE_NAMES)
        named = {split for kind in ("queries", "qrels") for split in self._files[kind]}
        self.splits = tuple(sorted(named - {ALL}) or sorted(named))

    @cached_property
    def _listing(self) -> list[str]:
        paths = [path for pattern in ("*", "qrels/*") for path in self.folder.glob(pattern)]
        return sorted(path.relative_to(self.folder).as_posix() for path in paths if path.is_file())

    @cached_property
    def _files(self) -> dict[str, dict[str, list[Path]]]:
        """Kind → split (or name of the run) → its files, of which there should be one."""
        files: dict[str, dict[str, list[Path]]] = {kind: {} for kind in FILE_NAMES}
        for name in self._listing:
            for kind, (pattern, _) in FILE_NAMES.items():
                if match := pattern.fullmatch(name):
                    files[kind].setdefault(match["part"] or ALL, []).append(self.folder / name)
        return files

    def _missing(self, wanted: str, *kinds: str) -> InputError:
        looked = "; ".join(FILE_NAMES[kind][1] for kind in kinds)
        found = self._listing[:20] + ["…"] * (len(self._listing) > 20)
        return InputError(self.folder, None, f"no {wanted}: looked for {looked}; found {', '.join(found) or 'nothing'}")

    def _find(self, kind: str, part: str) -> Path | None:
        """The one file of this kind and split."""
        paths = self._files[kind].get(part, [])
        if len(paths) > 1:
            names = ", ".join(path.relative_to(self.folder).as_posix() for path in paths)
            raise InputError(self.folder, None, f"found {names}, expected one of them")
        return paths[0] if paths else None

    def _find_shared(self, kind: str, split: str) -> Path:
        """:meth:`_find`, or else the file without a split."""
        path = self._find(kind, split) or self._find(kind, ALL)
        if path is None:
            raise self._missing(f"{kind} for the split {split!r}", kind)
        return path

    @property
    def collection_path(self) -> Path:
        """The file that holds the collection."""
        whole = self._find("collection", ALL)
        parts = [path for paths in self._files["collection"].values() for path in paths]
        if whole is None and len(parts) > 1:
            raise InputError(self.folder, None, f"found {', '.join(p.name for p in parts)}, expected one of them")
        if not parts:
            raise self._missing("collection", "collection")
        return whole or parts[0]

    def documents(self) -> Iterator[Document]:
        """Stream the collection."""
        return read_documents(self.collection_path)

    def queries(self, split: str | None = None) -> list[Query]:
        """The queries of a split."""
        split = self.split(split)
        queries = read_queries(self._find_shared("queries", split))
        if self._find("queries", split) is None:
            judged = self.qrels(split)
            return [query for query in queries if query.qid in judged]
        return queries

    def qrels(self, split: str | None = None) -> Qrels:
        """The judgments of a split."""
        split = self.split(split)
        qrels = read_qrels(self._find_shared("qrels", split))
        if self._find("qrels", split) is None:
            return Qrels({query.qid: qrels[query.qid] for query in self.queries(split) if query.qid in qrels})
        return qrels

    def types(self, split: str | None = None) -> dict[str, str]:
        """The types of a split's queries."""
        return read_types(self._find_shared("types", self.split(split)))

    @property
    def runs(self) -> tuple[str, ...]:
        """The names of the runs in the folder."""
        return tuple(self._files["run"])

    def run(self, name: str | None = None) -> Run:
        """``run.NAME.txt``; where there is one run, it need not be named."""
        if not self.runs:
            raise self._missing("runs", "run")
        name = self._one_of("run", name, self.runs)
        path = self._find("run", name)
        assert path is not None
        return read_run(path)


class IrdsDataset(Dataset):
    """A data set of ir_datasets: its own only split or, where it has no judgments, with those below it as splits."""

    def __init__(self, source: str):
        try:
            import ir_datasets
        except ImportError:
            raise MissingExtraError("ir-datasets", "irds", f"the data set {source}") from None
        self.name = source
        self._id = source.split(":", 1)[1]
        self._catalogue = ir_datasets.registry
        self._data = self._load(self._id)
        below = [key for key in self._catalogue if key.startswith(f"{self._id}/")]
        parts = [key[len(self._id) + 1 :] for key in below if self._load(key).has_qrels()]
        alone = self._data.has_qrels() or (self._data.has_queries() and not parts)
        self.splits = (ALL,) if alone else tuple(sorted(parts))

    def _load(self, identifier: str) -> Any:
        try:
            return self._catalogue[identifier]
        except KeyError:
            close = get_close_matches(identifier, list(self._catalogue), n=3, cutoff=0.5)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise RankwellError(f"{self.name}: ir_datasets has no data set {identifier!r}{hint}") from None

    def _part(self, split: str | None, kind: str) -> Any:
        split = self.split(split)
        data = self._data if split == ALL else self._load(f"{self._id}/{split}")
        if not data.has(kind):
            raise RankwellError(f"{self.name} has no {kind}{'' if split == ALL else f' for the split {split!r}'}")
        return data

    @property
    def collection_path(self) -> None:
        """None: the package keeps its files to itself."""
        return None

    def documents(self) -> Iterator[Document]:
        """Stream the collection, downloading it first where the package has not yet."""
        if not self._data.has_docs():
            raise RankwellError(f"{self.name} has no documents")
        return self._documents()

    def _documents(self) -> Iterator[Document]:
        for number, record in enumerate(self._data.docs_iter(), 1):
            check_id(self.name, number, "document id", record.doc_id)
            yield _document(record)

    def queries(self, split: str | None = None) -> list[Query]:
        """The queries of a split."""
        return [Query(record.query_id, _text(record)) for record in self._part(split, "queries").queries_iter()]

    def qrels(self, split: str | None = None) -> Qrels:
        """The judgments of a split."""
        return Qrels(self._part(split, "qrels").qrels_dict())


def _text(record: Any) -> str:
    """What a record of ir_datasets says, in the package's own reading where it has one."""
    if hasattr(record, "default_text"):
        return str(record.default_text())
    return str(record.text if hasattr(record, "text") else record.body)


def _document(record: Any) -> Document:
    # The package's own reading holds the title already.
    title = "" if hasattr(record, "default_text") else getattr(record, "title", "")
    return Document(record.doc_id, _text(record), title)


def collection_digest(source: str) -> str:
    """A name for the documents of a file, a folder or an id."""
    path = Path(source)
    if path.is_dir():
        path = open_dataset(source).collection_path or path
    return file_digest(path) if path.is_file() else digest({"collection": source})
