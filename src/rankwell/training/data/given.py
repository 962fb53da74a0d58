"""Training data that comes as examples or triples: turned into queries, documents, judgments and a run.

From there on it is like any other data. A query that comes several times (as the same text, or the same id) is one
query; so is a document. What is relevant to a query anywhere is never a negative of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Document, Qrels, Query, Ranking, Run
from rankwell.corpus.training import Example, Triple


@dataclass(frozen=True)
class Given:
    """What examples or triples say. ``documents`` is empty where they hold ids: then a collection has the texts.

    The run holds each query's negatives in the order they were given. They are unjudged unless ``judged`` was asked
    for: most such files are mined from a first stage, and noise reduction may only drop what is unjudged.
    """

    queries: list[Query]
    documents: list[Document]
    qrels: Qrels
    run: Run


def from_examples(examples: Iterable[Example], *, judged: bool = False) -> Given:
    """Queries ``q1, q2, …`` and documents ``d1, d2, …``, numbered as their texts first come."""
    gathering = _Gathering()
    for example in examples:
        gathering.add(example.query, example.positives, example.negatives)
    return gathering.as_texts(judged)


def from_triples(triples: Iterable[Triple], *, judged: bool = False) -> Given:
    """:func:`from_examples` for triples of texts."""
    gathering = _Gathering()
    for triple in triples:
        gathering.add(triple.query, (triple.positive,), (triple.negative,))
    return gathering.as_texts(judged)


def from_id_triples(triples: Iterable[Triple], queries: Iterable[Query], *, judged: bool = False) -> Given:
    """Triples of ids; ``queries`` has the texts, and those that no triple names are left out."""
    gathering = _Gathering()
    for triple in triples:
        gathering.add(triple.query, (triple.positive,), (triple.negative,))
    named = [query for query in queries if query.qid in gathering.positives]
    unknown = gathering.positives.keys() - {query.qid for query in named}
    if unknown:
        first = next(qid for qid in gathering.positives if qid in unknown)
        count = f"{len(unknown):,} of the {len(gathering.positives):,} queries"
        raise RankwellError(f"the triples name the query {first!r}, which has no text; so have {count} they name")
    return gathering.given(named, [], {}, {}, judged)


@dataclass
class _Gathering:
    """Positives and negatives by query, each once and in the order they came."""

    positives: dict[str, dict[str, None]] = field(default_factory=dict)
    negatives: dict[str, dict[str, None]] = field(default_factory=dict)

    def add(self, query: str, positives: Iterable[str], negatives: Iterable[str]) -> None:
        self.positives.setdefault(query, {}).update(dict.fromkeys(positives))
        self.negatives.setdefault(query, {}).update(dict.fromkeys(negatives))

    def as_texts(self, judged: bool) -> Given:
        qids = {text: f"q{number}" for number, text in enumerate(self.positives, 1)}
        docids: dict[str, str] = {}
        for query in self.positives:
            for text in (*self.positives[query], *self.negatives[query]):
                docids.setdefault(text, f"d{len(docids) + 1}")
        queries = [Query(qid, text) for text, qid in qids.items()]
        return self.given(queries, [Document(docid, text) for text, docid in docids.items()], qids, docids, judged)

    def given(
        self,
        queries: list[Query],
        documents: list[Document],
        qids: dict[str, str],
        docids: dict[str, str],
        judged: bool,
    ) -> Given:
        """``qids`` and ``docids`` name what was gathered; what they do not hold is an id itself."""
        grades: dict[str, dict[str, int]] = {}
        rankings: dict[str, Ranking] = {}
        for query, positives in self.positives.items():
            qid = qids.get(query, query)
            negatives = [docids.get(text, text) for text in self.negatives[query] if text not in positives]
            grades[qid] = {docids.get(text, text): 1 for text in positives}
            if judged:
                grades[qid] |= dict.fromkeys(negatives, 0)
            if negatives:
                # 1/rank, as for MS MARCO's runs, which have no scores either.
                scores = (1 / np.arange(1, len(negatives) + 1)).astype(np.float32)
                rankings[qid] = Ranking(tuple(negatives), scores)
        return Given(queries, documents, Qrels(grades), Run(rankings, name="given"))
