"""Term weights: jsonl of ``{"id": docid, "vector": {word: weight}}``, as learned sparse retrievers write them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator

from rankwell.core.errors import InputError, RankwellError, excerpt
from rankwell.corpus.formats.fields import DOCUMENT_ID_KEYS
from rankwell.corpus.formats.lines import (
    FilePath,
    json_line,
    read_objects,
    take,
    take_id,
    writable_id,
    write_lines,
)
from rankwell.corpus.records import TermWeights

VECTOR_KEYS = ("vector", "weights")


def read_weights(path: FilePath) -> Iterator[TermWeights]:
    """Stream documents' term weights. A weight is any finite number; 0 and negative weights count as absent."""
    for number, record in read_objects(path, "term weights"):
        docid = take_id(path, number, record, DOCUMENT_ID_KEYS, "document id")
        vector = take(path, number, record, VECTOR_KEYS)
        if not isinstance(vector, dict):
            raise InputError(
                path, number, f"expected an object of words and weights, found {excerpt(json.dumps(vector))}"
            )
        for word, weight in vector.items():
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not _finite(weight):
                problem = f"the weight of {excerpt(word)} is {excerpt(json.dumps(weight))}, expected a number"
                raise InputError(path, number, problem)
        yield TermWeights(docid, vector)


def _finite(weight: float) -> bool:
    """Like math.isfinite, which fails on the whole numbers of over 308 digits that JSON allows."""
    return abs(weight) <= sys.float_info.max


def write_weights(documents: Iterable[TermWeights], path: FilePath) -> None:
    """Write one JSON object per document."""

    def line(document: TermWeights) -> str:
        if not all(map(_finite, document.weights.values())):
            raise RankwellError(f"cannot write {path}: document {document.docid!r} has a weight that is not finite")
        record = {"id": writable_id(path, "document id", document.docid), "vector": dict(document.weights)}
        return json_line(path, record)

    write_lines(path, "term weights", map(line, documents))
