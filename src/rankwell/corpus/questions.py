"""Questions: typed by hand, or the queries of a file, of standard input or of a data set."""

from __future__ import annotations

import os
import re

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.manifest import digest, file_digest
from rankwell.corpus.datasets import IRDS_PREFIXES, open_dataset
from rankwell.corpus.formats import read_queries
from rankwell.corpus.formats.binary_tables import HF_PREFIX
from rankwell.corpus.formats.fields import Columns
from rankwell.corpus.records import Query

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
    """The question itself, or the queries of a file, of ``irds:NAME`` or, for ``-``, of standard input."""
    if not is_question(source):
        return _read_listed(source, columns)
    if not os.fspath(source).strip():
        raise RankwellError("the question is empty")
    return [Query(TYPED, os.fspath(source))]


def _read_listed(source: str | os.PathLike[str], columns: Columns | None = None) -> list[Query]:
    named = os.fspath(source).startswith(IRDS_PREFIXES)
    return open_dataset(source).queries() if named else read_queries(source, columns)


def read_query(source: str | os.PathLike[str], qid: str) -> Query:
    """One query of a file, by its id."""
    query = next((query for query in _read_listed(source) if query.qid == qid), None)
    if query is None:
        raise InputError(source, None, f"no query {qid!r}")
    return query


def questions_digest(source: str | os.PathLike[str]) -> str:
    """A hash of the question, of the name of a data set, or of the bytes of a file."""
    named = is_question(source) or os.fspath(source).startswith((HF_PREFIX, *IRDS_PREFIXES))
    return digest(os.fspath(source)) if named else file_digest(source)
