"""The field's plain files: TREC and MS MARCO runs and qrels, tsv and jsonl texts. Gzip is transparent both ways.

A reader tells the format from the first line that holds anything, not from the file's name. Whatever it cannot read is
an :class:`~rankwell.core.errors.InputError` with the file, the line, what was found and what was expected. A writer
refuses what its reader could not give back, and changes nothing silently.
"""

from rankwell.corpus.formats.qrels import read_qrels, write_qrels
from rankwell.corpus.formats.runs import read_run, write_run
from rankwell.corpus.formats.texts import (
    read_documents,
    read_queries,
    read_types,
    write_documents,
    write_queries,
    write_types,
)
from rankwell.corpus.formats.weights import read_weights, write_weights

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
    "write_weights",
]
