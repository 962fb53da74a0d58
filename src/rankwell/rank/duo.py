"""duoBERT: compares the best candidates two by two, ``[CLS] Q [SEP] Di [SEP] Dj [SEP]``.

``p[i, j]`` is the model's probability that document i is more relevant than document j. Over the others, j ≠ i:

    sum      Σ_j p[i, j]                               expected wins (the default)
    binary   number of j with p[i, j] > ½              opponents it beats
    min      min_j p[i, j]                             its hardest opponent
    max      max_j p[i, j]                             its easiest opponent
    sample   Σ_j p[i, j] over m random j               the sum for n·m instead of n·(n−1) comparisons

Both orders of a pair are computed. Nogueira, Yang, Cho and Lin, Multi-Stage Document Ranking with BERT (2019).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.core.progress import track
from rankwell.core.registry import Registry
from rankwell.core.types import Rows
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.inputs.batching import Sequences
from rankwell.inputs.reader import Reader
from rankwell.rank.cache import join_hashes, text_hashes
from rankwell.rank.engines.engine import probability
from rankwell.rank.pairs import PAIRS_AT_A_TIME
from rankwell.rank.ranker import Ranker, run_ahead
from rankwell.rank.rankers import queries_by_id
from rankwell.rank.texts import Documents, Texts, distinct

Preferences = NDArray[np.float64]
"""``(n, n)``; NaN on the diagonal and where two documents were not compared."""

AGGREGATIONS: Registry[Callable[[Preferences], NDArray[np.float64]]] = Registry("duo aggregation")


@AGGREGATIONS.register("sum")
def _sum(p: Preferences) -> NDArray[np.float64]:
    scores: NDArray[np.float64] = np.nansum(p, axis=1)
    return scores


@AGGREGATIONS.register("binary")
def _binary(p: Preferences) -> NDArray[np.float64]:
    scores: NDArray[np.float64] = (p > 0.5).sum(axis=1).astype(np.float64)
    return scores


@AGGREGATIONS.register("min")
def _min(p: Preferences) -> NDArray[np.float64]:
    scores: NDArray[np.float64] = np.fmin.reduce(p, axis=1)
    return scores


@AGGREGATIONS.register("max")
def _max(p: Preferences) -> NDArray[np.float64]:
    scores: NDArray[np.float64] = np.fmax.reduce(p, axis=1)
    return scores


# A sum over fewer opponents, which opponents() draws before anything is computed.
AGGREGATIONS.register("sample")(_sum)


@dataclass(frozen=True, slots=True)
class PairwiseOptions:
    """How many candidates are compared, and how comparisons become scores; the last two are for ``sample``."""

    depth: int = 30
    aggregate: str = "sum"
    samples: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        AGGREGATIONS[self.aggregate]
        if self.depth < 1 or self.samples < 1:
            raise RankwellError(f"duo needs at least 1 candidate and 1 sample, not {self.depth} and {self.samples}")


def opponents(n: int, duo: PairwiseOptions, qid: str) -> tuple[Rows, Rows]:
    """The ordered pairs (i, j) to compare among ``n`` candidates; a sample depends on the query and the seed alone.

    >>> [rows.tolist() for rows in opponents(3, PairwiseOptions(), "q")]
    [[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]]
    """
    others = np.tile(np.arange(max(n - 1, 0)), (n, 1))
    if duo.aggregate == "sample" and duo.samples < n - 1:
        query_seed = int.from_bytes(hashlib.blake2b(qid.encode("utf-8", "surrogatepass"), digest_size=8).digest())
        random = np.random.default_rng([duo.seed, query_seed]).random(others.shape)
        others = np.sort(random.argsort(axis=1)[:, : duo.samples], axis=1)
    first = np.repeat(np.arange(n), others.shape[1])
    second = others.flatten()
    # The others are counted without i itself.
    return first, second + (second >= first)


def aggregate(n: int, first: Rows, second: Rows, p: NDArray[np.float32], how: str) -> NDArray[np.float32]:
    """One score for each of ``n`` candidates from the probabilities of its comparisons."""
    if n == 1:
        return np.zeros(1, np.float32)
    preferences = np.full((n, n), np.nan)
    preferences[first, second] = p
    return AGGREGATIONS[how](preferences).astype(np.float32)


def rerank_duo(
    ranker: Ranker,
    run: Run,
    queries: Sequence[Query],
    texts: Texts,
    duo: PairwiseOptions | None = None,
    *,
    name: str = "duo",
) -> Run:
    """Re-rank the best of each query by comparing them; the others keep their order below.

    Any model with two logits can be used. It reads with the template ``duo``, without windows or markers.
    """
    duo = duo or PairwiseOptions()
    by_qid = queries_by_id(run, queries)
    template = replace(ranker.template, name="duo", markers=False)
    reader = replace(ranker.reader, template=template, windows=None)
    model = Ranker.from_engine(ranker.engine, reader, cache=ranker.cache, identity=ranker.identity)
    rankings: dict[str, Ranking] = {}
    for qid, ranking in track(run.items(), "comparing", total=len(run), unit="queries"):
        docids = ranking.docids[: duo.depth]
        first, second = opponents(len(docids), duo, qid)
        names, row_of = distinct(docids)
        p = compare(model, by_qid[qid].text, Documents(names, texts, model.reader), row_of[first], row_of[second])
        scores = aggregate(len(docids), first, second, p, duo.aggregate)
        # The rest follow in equal steps within 1 of the lowest, so that a later fusion still tells the best apart.
        steps = np.linspace(0, 1, len(ranking) - len(docids) + 1, dtype=np.float32)[1:]
        rest = (scores.min() if len(scores) else np.float32(0)) - steps
        rankings[qid] = Ranking.of(ranking.docids, np.concatenate([scores, rest]))
    return Run(rankings, name=name)


def compare(model: Ranker, query: str, documents: Documents, first: Rows, second: Rows) -> NDArray[np.float32]:
    """p(document ``first[k]`` is more relevant than document ``second[k]``) for each k."""
    if not len(first):
        return np.zeros(0, np.float32)

    def compute(rows: Rows) -> NDArray[np.float32]:
        parts = _lay_out(model.reader, query, documents, first[rows], second[rows])
        logits = np.concatenate([part for part, _ in run_ahead(model.engine, parts)])
        if logits.shape[1] != 2:
            raise RankwellError("comparing documents needs a model with two logits; this one has a single score")
        return probability(logits)

    if model.cache is None:
        return compute(np.arange(len(first)))
    texts = documents.texts()
    keys = join_hashes(
        text_hashes([model.scope("duo")], "model"),
        text_hashes([query], "query"),
        text_hashes(texts, "document")[first],
        text_hashes(texts, "other")[second],
    )
    return model.cache.complete(keys, compute)


def _lay_out(
    reader: Reader, query: str, documents: Documents, first: Rows, second: Rows
) -> Iterator[tuple[Sequences, None]]:
    used, which = np.unique(np.concatenate([first, second]), return_inverse=True)
    tokens, numbers = documents.tokens(used)
    pieces, queries = tokens.at(numbers), reader.encode([query])
    for begin in range(0, len(first), PAIRS_AT_A_TIME):
        document = which[: len(first)][begin : begin + PAIRS_AT_A_TIME]
        other = which[len(first) :][begin : begin + PAIRS_AT_A_TIME]
        fields = {"query": queries.take(np.zeros(len(document), np.int64)), "document": pieces.take(document)}
        yield reader.lay_out({**fields, "other": pieces.take(other)}).sequences, None
