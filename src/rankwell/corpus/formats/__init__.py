"""The files people have: TREC and MS MARCO runs and qrels, and texts in many formats. Gzip is transparent both ways.

Readers detect the format from the file's contents and, only where these leave it open, from its name. Malformed input
raises an :class:`~rankwell.core.errors.InputError` that names the file, the line, what was found and what was expected.
Writers refuse anything that could not be read back, and change nothing silently.
"""

from rankwell.corpus.formats.runs import read_qrels, read_run, write_qrels, write_run
from rankwell.corpus.formats.texts import (
    read_documents,
    read_queries,
    read_types,
    read_weights,
    write_documents,
    write_queries,
    write_types,
)

__all__ = [
    "read_documents",
    "read_qrels",
    "read_queries",
    "read_run",
    "read_types",
    "read_weights",
    "write_documents",
    "write_qrels",
    "write_queries",
    "write_run",
    "write_types",
]
