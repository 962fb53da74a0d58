"""Data sets by name: a folder of plain files, or an id of the optional package ir_datasets.

A folder just works if its files have the usual names (:data:`FILE_NAMES`). The part between the kind and the extension
is the split, dots included: ``queries.questions.dev.tsv`` has the queries of ``questions.dev``. A file without a split
serves every split, which takes the queries that its qrels name (as in BEIR), or the judgments that its queries need.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from rankwell.core.errors import InputError, MissingExtraError, RankwellError, folder_error
from rankwell.core.manifest import digest, file_digest
from rankwell.corpus.formats import read_documents, read_qrels, read_queries, read_run, read_types
from rankwell.corpus.formats.clicks import read_clicks
from rankwell.corpus.formats.fields import Columns
from rankwell.corpus.formats.lines import check_id
from rankwell.corpus.formats.pairs import judged_queries
from rankwell.corpus.formats.texts import read_examples, read_triples
from rankwell.corpus.records import Document, Qrels, Query, Ranking, Run

IRDS_PREFIXES = ("irds:", "ir_datasets:")
ALL = "all"  # the split of a data set whose files name none
EXAMPLES = ("examples", "triples")
Lists = dict[str, tuple[dict[str, None], dict[str, None]]]
"""Query → its relevant documents and its negatives, as ordered sets."""

_TABLES = "tsv|txt|jsonl|csv|json|parquet|arrow"
# Patterns of file names, relative to the folder, and how an error message shows them.
FILE_NAMES: dict[str, tuple[re.Pattern[str], str]] = {
    kind: (re.compile(pattern + r"(?:\.gz)?"), shown)
    for kind, pattern, shown in (
        (
            "collection",
            rf"(?:collection|corpus)(?P<part>.*)\.(?:{_TABLES})",
            "collection.tsv, corpus.jsonl",
        ),
        (
            "queries",
            rf"(?:queries|topics)(?:\.(?P<part>.+))?\.(?:{_TABLES})",
            "queries.SPLIT.tsv, queries.jsonl",
        ),
        (
            "qrels",
            rf"(?:qrels|judge?ments)(?:[./](?P<part>.+))?\.(?:{_TABLES})",
            "qrels.SPLIT.txt, qrels/SPLIT.tsv, judgments.SPLIT.csv",
        ),
        ("clicks", rf"clicks(?:\.(?P<part>.+))?\.(?:{_TABLES})", "clicks.SPLIT.csv"),
        ("run", rf"run(?:\.(?P<part>.+))?\.(?:{_TABLES})", "run.SPLIT.txt, run.SPLIT.jsonl"),
        ("types", r"types(?:\.(?P<part>.+))?\.tsv", "types.SPLIT.tsv"),
        ("examples", r"examples(?:\.(?P<part>.+))?\.jsonl", "examples.jsonl"),
        ("triples", r"triples(?:\.(?P<part>.+))?\.(?:tsv|txt)", "triples.tsv"),
    )
}


# Names of files that probably hold queries, judgments or clicks.
_MEANT = re.compile(
    r".*(?:quer|question|topic|qrel|judg|relevan|click).*\.(?:" + _TABLES + r"|run|trec)(?:\.gz)?", re.I
)


class NoDatasetError(InputError):
    """A folder has no file with one of the usual names, or none of some kind."""


class Dataset(ABC):
    """Documents, and queries with judgments by split. If there is only one split, its name can be omitted."""

    name: str
    splits: tuple[str, ...]
    clicks: str | None = None
    """How many clicks were used as judgments, in one line, once they were read."""
    columns: Columns | None = None
    """The fields of the collection that are named."""

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """Stream the collection."""

    @abstractmethod
    def digest(self) -> str:
        """A hash or a name that identifies the documents."""

    def queries(self, split: str | None = None) -> list[Query]:
        """The queries of a split."""
        raise RankwellError(f"{self.name} has documents alone, no queries")

    def qrels(self, split: str | None = None) -> Qrels:
        """The judgments of a split."""
        raise RankwellError(f"{self.name} has documents alone, no judgments")

    def types(self, split: str | None = None) -> dict[str, str]:
        """The types of a split's queries."""
        raise RankwellError(f"{self.name} has no query types")

    def negatives(self, split: str | None = None) -> Run | None:
        """The negatives that come with the split's queries, as a run; ``None`` if the data set has none."""
        return None

    def run(self, split: str) -> Run | None:
        """What the user's own engine returned for the queries of a split; ``None`` if that is not known."""
        return None

    def split(self, split: str | None) -> str:
        """Check the name of a split. ``None`` is the only split there is."""
        if split in self.splits or (split is None and len(self.splits) == 1):
            return split or self.splits[0]
        problem = f"no split is called {split!r}" if split is not None else "say which split"
        raise RankwellError(f"{self.name}: {problem} (splits: {', '.join(self.splits) or 'none'})")

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, splits: {', '.join(self.splits)})"


def open_dataset(source: str | os.PathLike[str]) -> Dataset:
    """Open a folder, or ``irds:NAME`` through ir_datasets."""
    name = os.fspath(source)
    if name.startswith(IRDS_PREFIXES):
        return IrdsDataset(name)
    folder = FolderDataset(Path(name))
    return ExampleDataset(folder.folder) if folder.has(*EXAMPLES) else folder


class FolderDataset(Dataset):
    """A folder whose files have the usual names (:data:`FILE_NAMES`)."""

    def __init__(self, folder: Path):
        if not os.path.isdir(folder):
            raise folder_error(folder, "")
        self.folder = folder
        self.name = str(folder)
        if not any(self._files.values()):
            if (folder / "index.json").is_file():
                raise InputError(folder, None, "an index, expected a collection or a data set")
            raise self._missing("files of a data set", *FILE_NAMES, error=NoDatasetError)
        named = {split for kind in ("queries", "qrels", "clicks") for split in self._files[kind]}
        self.splits = tuple(sorted(named - {ALL}) or sorted(named))

    @cached_property
    def _listing(self) -> list[str]:
        paths = [path for pattern in ("*", "qrels/*") for path in self.folder.glob(pattern)]
        return sorted(path.relative_to(self.folder).as_posix() for path in paths if path.is_file())

    @cached_property
    def _files(self) -> dict[str, dict[str, list[Path]]]:
        """Kind → split → its files, of which there should be one."""
        files: dict[str, dict[str, list[Path]]] = {kind: {} for kind in FILE_NAMES}
        for name in self._listing:
            for kind, (pattern, _) in FILE_NAMES.items():
                if match := pattern.fullmatch(name):
                    files[kind].setdefault(match["part"] or ALL, []).append(self.folder / name)
        return files

    @property
    def unread(self) -> list[str]:
        """Files that are not read, although their names sound like queries or judgments."""
        read = {path for splits in self._files.values() for paths in splits.values() for path in paths}
        return [name for name in self._listing if _MEANT.fullmatch(name) and self.folder / name not in read]

    def has(self, *kinds: str) -> bool:
        """Whether there is a file of one of these kinds."""
        return any(self._files[kind] for kind in kinds)

    def _missing(self, wanted: str, *kinds: str, error: type[InputError] = InputError) -> InputError:
        looked = "; ".join(FILE_NAMES[kind][1] for kind in kinds)
        names = self._listing[:20] + ["…"] * (len(self._listing) > 20)
        return error(self.folder, None, f"no {wanted}: looked for {looked}; found {', '.join(names) or 'nothing'}")

    def _find(self, kind: str, part: str) -> Path | None:
        """The one file of this kind and split."""
        paths = self._files[kind].get(part, [])
        if len(paths) > 1:
            names = ", ".join(path.relative_to(self.folder).as_posix() for path in paths)
            raise InputError(self.folder, None, f"found {names}, expected one of them")
        return paths[0] if paths else None

    def _find_shared(self, kind: str, split: str) -> Path:
        """The file of this kind and split, or the one without a split."""
        path = self._find(kind, split) or self._find(kind, ALL)
        if path is None:
            raise self._missing(f"{kind} for the split {split!r}", kind, error=NoDatasetError)
        return path

    @property
    def collection_path(self) -> Path:
        """The file with the documents."""
        whole = self._find("collection", ALL)
        parts = [path for paths in self._files["collection"].values() for path in paths]
        if whole is None and len(parts) > 1:
            raise InputError(self.folder, None, f"found {', '.join(p.name for p in parts)}, expected one of them")
        if not parts:
            raise self._missing("collection", "collection")
        return whole or parts[0]

    def documents(self) -> Iterator[Document]:
        """Stream the collection."""
        documents = read_documents(self.collection_path, self.columns)
        if documents.numbered and self.has("qrels", "clicks"):
            problem = "no field is known as an id, by which judgments name documents; call the field id"
            raise InputError(documents.path, None, problem)
        return documents

    def digest(self) -> str:
        """See :class:`Dataset`."""
        return file_digest(self.collection_path)

    def queries(self, split: str | None = None) -> list[Query]:
        """The queries of a split."""
        split = self.split(split)
        if not self.has("queries") and (queries := judged_queries(self._judged_path(split))) is not None:
            return queries
        queries = read_queries(self._find_shared("queries", split))
        if self._find("queries", split) is None:
            judged = self.qrels(split)
            return [query for query in queries if query.qid in judged]
        return queries

    def qrels(self, split: str | None = None) -> Qrels:
        """The judgments of a split, or those made from its clicks if there are no others."""
        split = self.split(split)
        path = self._judged_path(split)
        if path in self._files["clicks"].get(split, []) + self._files["clicks"].get(ALL, []):
            qrels, self.clicks = read_clicks(path)
        else:
            qrels = read_qrels(path)
        if self.has("queries") and path not in (self._find("qrels", split), self._find("clicks", split)):
            return Qrels({query.qid: qrels[query.qid] for query in self.queries(split) if query.qid in qrels})
        return qrels

    def _judged_path(self, split: str) -> Path:
        """The judgments of a split, or its clicks if there are no others."""
        judged = self._find("qrels", split) or self._find("qrels", ALL) or not self.has("clicks")
        return self._find_shared("qrels" if judged else "clicks", split)

    def types(self, split: str | None = None) -> dict[str, str]:
        """The types of a split's queries."""
        return read_types(self._find_shared("types", self.split(split)))

    def run(self, split: str) -> Run | None:
        """See :class:`Dataset`."""
        path = self._find("run", split) or self._find("run", ALL)
        return None if path is None else read_run(path)


class ExampleDataset(FolderDataset):
    """A folder with training examples (``examples.jsonl``) or triples (``triples.tsv``).

    Without a collection they contain texts: equal texts are one query (``q1``, ``q2``, …) or one document (``d1``,
    ``d2``, …), numbered in the order they are read. Beside a collection and queries, triples contain ids. If a file
    without a split is all there is, every tenth query belongs to the split ``dev`` and the others to ``train``.
    """

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._has_ids = self.has("collection")
        if self._has_ids and self.has("examples"):
            raise InputError(folder, None, "found examples, which contain texts, beside a collection; expected one")
        self._paths: dict[str, Path] = {}
        for split, path in ((s, p) for kind in EXAMPLES for s, paths in self._files[kind].items() for p in paths):
            if self._paths.setdefault(split, path) is not path:
                raise InputError(folder, None, f"found {self._paths[split].name}, {path.name}, expected one of them")
        self._divided = list(self._paths) == [ALL] and not self.has("qrels")
        if ALL in self._paths and not self._divided:
            self._paths.setdefault("train", self._paths.pop(ALL))
        self.splits = ("dev", "train") if self._divided else tuple(sorted({*self.splits, *self._paths} - {ALL}))
        self._read: dict[str, Lists] = {}

    def documents(self) -> Iterator[Document]:
        """See :class:`Dataset`."""
        if self._has_ids:
            return super().documents()
        return (Document(docid, text) for text, docid in self._ids[1].items())

    def digest(self) -> str:
        """See :class:`Dataset`."""
        if self._has_ids:
            return super().digest()
        return digest([file_digest(path) for _, path in sorted(self._paths.items())])

    def queries(self, split: str | None = None) -> list[Query]:
        """See :class:`Dataset`."""
        split = self.split(split)
        if self._has_ids or not self._is_read(split):
            return super().queries(split)
        return [Query(self._ids[0][text], text) for text in self._lists(split)]

    def qrels(self, split: str | None = None) -> Qrels:
        """See :class:`Dataset`. A qrels file of the split replaces the judgments of its examples."""
        split = self.split(split)
        if not self._is_read(split) or self._find("qrels", split):
            return super().qrels(split)
        return Qrels(
            {self._qid(query): {self._docid(doc): 1 for doc in good} for query, (good, _) in self._lists(split).items()}
        )

    def negatives(self, split: str | None = None) -> Run | None:
        """The negatives of each query in the order they are read. A document that is relevant to the query anywhere is
        left out.
        """
        split = self.split(split)
        if not self._is_read(split):
            return None
        rankings = {}
        for query, (good, bad) in self._lists(split).items():
            docids = tuple(self._docid(doc) for doc in bad if doc not in good)
            if docids:
                # 1/rank, as for MS MARCO's runs, which have no scores either.
                scores = (1 / np.arange(1, len(docids) + 1)).astype(np.float32)
                rankings[self._qid(query)] = Ranking(docids, scores)
        return Run(rankings, name="negatives")

    def _is_read(self, split: str) -> bool:
        """Whether the split comes from examples or triples."""
        return self._divided or split in self._paths

    def _lists(self, split: str) -> Lists:
        if not self._divided:
            return self._lists_of(split)
        lists = self._lists_of(ALL)
        if len(lists) < 2:
            raise InputError(self._paths[ALL], None, "has one query, expected two or more to divide into train and dev")
        dev = {*(list(lists)[9::10] or list(lists)[-1:])}
        return {query: both for query, both in lists.items() if (query in dev) == (split == "dev")}

    def _lists_of(self, name: str) -> Lists:
        """The relevant documents and the negatives of each query of a file, each once, in the order they are read."""
        if name not in self._read:
            path = self._paths[name]
            lists: Lists = {}
            is_triples = path.name.startswith("triples")
            for example in read_triples(path, ids=self._has_ids) if is_triples else read_examples(path):
                good, bad = lists.setdefault(example.query, ({}, {}))
                good.update(dict.fromkeys(example.positives))
                bad.update(dict.fromkeys(example.negatives))
            self._read[name] = lists
        return self._read[name]

    @cached_property
    def _ids(self) -> tuple[dict[str, str], dict[str, str]]:
        """The ids of all query texts and document texts."""
        qids: dict[str, str] = {}
        docids: dict[str, str] = {}
        for name in sorted(self._paths):
            for query, both in self._lists_of(name).items():
                qids.setdefault(query, f"q{len(qids) + 1}")
                for text in chain(*both):
                    docids.setdefault(text, f"d{len(docids) + 1}")
        return qids, docids

    def _qid(self, query: str) -> str:
        return query if self._has_ids else self._ids[0][query]

    def _docid(self, document: str) -> str:
        return document if self._has_ids else self._ids[1][document]


class IrdsDataset(Dataset):
    """A data set of ir_datasets. It is its only split or, if it has no judgments, the data sets below it are."""

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
            problem = f"has no {kind}{'' if split == ALL else f' for the split {split!r}'}"
            raise NoDatasetError(self.name, None, problem)
        return data

    def digest(self) -> str:
        """See :class:`Dataset`."""
        return self.name

    def documents(self) -> Iterator[Document]:
        """Stream the collection; the package downloads it if necessary."""
        if not self._data.has_docs():
            raise RankwellError(f"{self.name} has no documents")
        return self._documents()

    def _documents(self) -> Iterator[Document]:
        for number, record in enumerate(self._data.docs_iter(), 1):
            check_id(self.name, number, "document id", record.doc_id)
            yield _document(record)

    def queries(self, split: str | None = None) -> list[Query]:
        """The queries of a split."""
        queries = []
        for number, record in enumerate(self._part(split, "queries").queries_iter(), 1):
            check_id(self.name, number, "query id", record.query_id)
            queries.append(Query(record.query_id, _text(record)))
        return queries

    def qrels(self, split: str | None = None) -> Qrels:
        """The judgments of a split."""
        return Qrels(self._part(split, "qrels").qrels_dict())


def _text(record: Any) -> str:
    """The text of a record of ir_datasets: its default text, if it has one."""
    if hasattr(record, "default_text"):
        return str(record.default_text())
    return str(record.text if hasattr(record, "text") else record.body)


def _document(record: Any) -> Document:
    text, title = _text(record), getattr(record, "title", None) or ""
    if not hasattr(record, "default_text"):
        return Document(record.doc_id, text, title)
    # The default text of most data sets begins with the title.
    return Document.split(record.doc_id, text, len(title) if title and text.startswith(f"{title} ") else 0)
