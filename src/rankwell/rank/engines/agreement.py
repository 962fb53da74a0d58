"""Whether a cross-encoder ranks in int8 as it does in fp32: measured once for each model, on the bundled sample.

The measure is the error of the scores within a query, relative to how much the scores differ there.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwell import models
from rankwell.core.arrays import Scores
from rankwell.core.errors import Notice, RankwellError
from rankwell.core.manifest import digest, file_digest, read_object, write_json
from rankwell.corpus.datasets import open_dataset
from rankwell.models.checkpoints.names import model_digest
from rankwell.models.devices import AGREEMENT, DTypeName, Purpose, Score, cpu_flags, fast_float
from rankwell.rank.ranker import Ranker

TOLERANCE = 0.05
"""With a larger error, scores are not computed in int8. Trained models have some .03."""
QUERIES, CANDIDATES, WORDS = 8, 10, 60
RECORD = "int8-errors.json"
PRECISIONS: tuple[DTypeName, DTypeName] = ("fp32", "int8")


@AGREEMENT.register("int8")
def agrees_in_int8(folder: Path, purpose: Purpose, score: Score) -> bool:
    """Whether a model's scores in int8 agree with the exact ones. The error is recorded in the user's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key, record = digest([model_digest(folder), purpose, *_kernels()]), cache / "rankwell" / RECORD
    errors = _read(record)
    if key not in errors:
        error = errors[key] = round(_measure(score), 4)
        choice = (
            "scores are computed in int8 (exact: --precision fp32)" if error <= TOLERANCE else f"using {fast_float()}"
        )
        pairs = QUERIES * CANDIDATES
        message = f"{folder.name}: in int8, scores differ by {error:.1%} of their spread on {pairs} pairs; {choice}"
        warnings.warn(message, Notice, stacklevel=2)
        try:
            record.parent.mkdir(parents=True, exist_ok=True)
            write_json(record, errors)
        except (OSError, RankwellError):
            pass  # measured again next time
    return errors[key] <= TOLERANCE


def _kernels() -> list[str]:
    """What computes in int8: the code of the kernels and the features of the processor."""
    sources = [*Path(models.__path__[0]).glob("kernels/*.py"), Path(models.__path__[0]) / "int8.py"]
    return [*map(file_digest, sorted(sources)), *cpu_flags()]


def _measure(score: Score) -> float:
    """The error in int8 on the candidates that BM25 finds in the sample, the beginnings of the documents."""
    from rankwell import sample
    from rankwell.retrieve.index import Index

    data = open_dataset(sample.FOLDER)
    queries = data.queries("dev")[:: len(data.queries("dev")) // QUERIES][:QUERIES]
    with tempfile.TemporaryDirectory() as scratch:
        index = Index.build(data.documents(), Path(scratch) / "index")
        run = index.search(queries, k=CANDIDATES)
        pairs = [(query.text, index.text(docid)) for query in queries for docid in run[query.qid].docids]
        owners = np.repeat(np.arange(len(queries)), [len(run[query.qid].docids) for query in queries])
    documents = [" ".join(text.split()[:WORDS]) for _, text in pairs]
    asked = [query for query, _ in pairs]
    exact, fast = (score(dtype, asked, documents).astype(np.float64) for dtype in PRECISIONS)

    def spread(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
        centres = np.bincount(owners, values) / np.bincount(owners)
        return float(np.sqrt(np.mean((values - centres[owners]) ** 2)))

    return spread(fast - exact) / max(spread(exact), 1e-30)


def _read(record: Path) -> dict[str, float]:
    """The recorded errors; a file that cannot be read has none."""
    try:
        return {key: float(error) for key, error in read_object(record).items()}
    except (OSError, RankwellError, TypeError, ValueError):
        return {}


# How well an exported model agrees with the one it was made from


EXPORT_QUERIES, EXPORT_DOCUMENTS = 10, 20


def rank_agreement(
    model: str | Path, exported: Path, backend: str, data: Path, changes: Mapping[str, Any] | None = None
) -> list[float]:
    """Spearman's correlation of the scores of a model and its export, for each of a data set's first queries."""
    sample, changes = open_dataset(data), changes or {}
    queries = [query.text for query in sample.queries("train")[:EXPORT_QUERIES]]
    shape = len(queries), EXPORT_DOCUMENTS
    documents = [record.contents for record in islice(sample.documents(), EXPORT_QUERIES * EXPORT_DOCUMENTS)]
    pairs = [(query, documents[row * shape[1] + i]) for row, query in enumerate(queries) for i in range(shape[1])]
    exact = np.asarray(Ranker(model, device="cpu", **changes).predict(pairs)).reshape(shape)
    other = np.asarray(Ranker(exported, backend=backend, **changes).predict(pairs)).reshape(shape)
    return [spearman(a, b) for a, b in zip(exact, other, strict=True)]


def spearman(left: Scores, right: Scores) -> float:
    """The correlation of two rankings; equal scores share the mean of their ranks.

    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]))
    0.5
    """
    return float(np.corrcoef(_ranks(left), _ranks(right))[0, 1])


def _ranks(scores: Scores) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: NDArray[np.float64] = (ends - (counts - 1) / 2)[inverse]
    return ranks
