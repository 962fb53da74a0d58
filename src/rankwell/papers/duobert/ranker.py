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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Rows, Scores
from rankwell.core.errors import InputError, RankwellError
from rankwell.core.manifest import read_object
from rankwell.core.progress import track
from rankwell.core.registry import Registry
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.corpus.sources import Source
from rankwell.inputs.batching import Sequences
from rankwell.inputs.reader import Reader
from rankwell.inputs.templates import TEMPLATES, Field, Template, TruncationReport
from rankwell.inputs.windows import Windows
from rankwell.models.checkpoints.names import find_model
from rankwell.models.devices import chosen_device, resolve
from rankwell.rank.cache import join_hashes, text_hashes
from rankwell.rank.engines.engine import probability
from rankwell.rank.pairs import PAIRS_AT_A_TIME, best_first, documents_to_rank
from rankwell.rank.ranker import Ranker, run_ahead
from rankwell.rank.rankers import RANKERS, queries_by_id
from rankwell.rank.texts import Documents, Texts, distinct

Preferences = NDArray[np.float64]
"""``(n, n)``; NaN on the diagonal and where two documents were not compared."""


@TEMPLATES.register("duo")
def _duo(max_query: int) -> tuple[Field, ...]:
    """`[CLS] query [SEP] document [SEP] other document [SEP]`"""
    # The second document has a segment of its own; checkpoints with two segments take 1 for both.
    return Field("query", 0, max_query), Field("document", 1), Field("other", 2)


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


COMPARISON = "comparison.json"
"""How a trained model compares documents, in its folder."""


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


@RANKERS.register("duo")
class DuoRanker:
    """A ranker that compares the best of each query two by two; the others keep their order below.

    Any model with two logits can be used. It reads with the template ``duo``, without windows or markers.
    """

    options = frozenset({"backend", "device", "precision", "cache", "engine", "trust_remote_code", "comparison"})
    windows: Windows | None = None
    takes_types = False

    def __init__(self, ranker: Ranker, comparison: PairwiseOptions | None = None):
        template = replace(ranker.template, name="duo", markers=False)
        reader = replace(ranker.reader, template=template, windows=None)
        self.ranker = Ranker.from_engine(ranker.engine, reader, cache=ranker.cache, identity=ranker.identity)
        self.comparison = comparison or PairwiseOptions()

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *, comparison: Mapping[str, Any] | None = None, **options: Any
    ) -> DuoRanker:
        """Load a folder; ``comparison`` holds :class:`PairwiseOptions`, the others are those of ``Ranker``.

        By default documents are compared as the folder records, which is how the model was measured.

        The precision ``auto`` is the exact one: whether scores of comparisons agree cannot be measured on the sample.
        """
        options["precision"] = resolve(options.get("precision"), "judge", chosen_device(options.get("device")))
        recorded = find_model(folder) / COMPARISON
        comparison = comparison or (read_object(recorded) if recorded.is_file() else {})
        try:
            how = PairwiseOptions(**comparison)
        except TypeError:
            raise InputError(recorded, None, f"not options of comparisons ({', '.join(comparison)})") from None
        return cls(Ranker(folder, **options), how)

    @property
    def template(self) -> Template:
        """How query and both documents form a sequence."""
        return self.ranker.template

    @property
    def truncation(self) -> TruncationReport:
        """Counts of what was truncated so far."""
        return self.ranker.truncation

    def predict(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """Raises: a document has no score of its own, only one among others."""
        raise RankwellError("this model compares documents two by two: use rank or rerank instead of predict")

    def rank(
        self, query: str, documents: Source, top_k: int | None = None, *, return_documents: bool = False
    ) -> list[dict[str, Any]]:
        """The documents, best first, each with its ``corpus_id`` and ``score``; all of them are compared."""
        ids, texts = documents_to_rank(query, documents, top_k)
        rows = np.arange(len(texts))
        scores = self._compare("", query, Documents.of(texts, self.ranker.reader), rows)
        return best_first(scores, ids, texts if return_documents else None, top_k)

    def rerank(self, run: Run, queries: Sequence[Query], texts: Texts, *, depth: int = 1000, name: str = "duo") -> Run:
        """Compare the first ``depth`` candidates of each query, at most the comparison's own ``depth``."""
        by_qid, rankings = queries_by_id(run, queries), dict[str, Ranking]()
        for qid, ranking in track(run.items(), "comparing", total=len(run), unit="queries"):
            docids = ranking.docids[: min(depth, self.comparison.depth)]
            names, rows = distinct(docids)
            scores = self._compare(qid, by_qid[qid].text, Documents(names, texts, self.ranker.reader), rows)
            # The rest follow in equal steps within 1 of the lowest, so that a later fusion still tells the best apart.
            steps = np.linspace(0, 1, len(ranking) - len(docids) + 1, dtype=np.float32)[1:]
            rest = (scores.min() if len(scores) else np.float32(0)) - steps
            rankings[qid] = Ranking.of(ranking.docids, np.concatenate([scores, rest]))
        return Run(rankings, name=name)

    def _compare(self, qid: str, query: str, documents: Documents, rows: Rows) -> Scores:
        first, second = opponents(len(rows), self.comparison, qid)
        p = compare(self.ranker, query, documents, rows[first], rows[second])
        return aggregate(len(rows), first, second, p, self.comparison.aggregate)

    def store_tokens(self, texts: Texts) -> None:
        """Tokenise all documents of an index or store and save the tokens there."""
        self.ranker.store_tokens(texts)


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
