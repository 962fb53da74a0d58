"""Records about documents (term weights, expansions) that come in the order of the collection."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from rankwell.core.errors import RankwellError
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.formats.texts import Expansion
from rankwell.corpus.records import TermWeights

Enrichment = TypeVar("Enrichment", bound=TermWeights | Expansion)


def take_record(records: Iterator[Enrichment], docid: str, name: str) -> Enrichment:
    """The next record, which must be that of the document ``docid``; ``name`` is what errors call the records."""
    record = next(records, None)
    if record is None:
        raise RankwellError(f"the {name} end before document {docid!r}")
    if record.docid != docid:
        problem = f"{name} of {record.docid!r} where {docid!r} is expected"
        raise RankwellError(f"{problem}; they must be in the collection's order")
    return record


def check_end(records: Iterator[TermWeights | Expansion], name: str) -> None:
    """Raise if records are left after the last document."""
    if (extra := next(records, None)) is not None:
        raise RankwellError(f"the {name} go on after the last document, with {extra.docid!r}")


def combine_weights(
    weights: Iterable[TermWeights],
    expansions: Iterable[Expansion],
    *,
    scale: float = 100.0,
    root: bool = False,
    analyzer: Analyzer | None = None,
) -> Iterator[TermWeights]:
    """Add expansions to term weights: a term gains ``scale`` times the share of queries that contain it.

    Both are on one scale if the weights are 100·y or, with ``root``, 100·√y, where y estimates the same share.
    """
    analyzer = analyzer or Analyzer.english()
    expansions = iter(expansions)
    for document in weights:
        queries = take_record(expansions, document.docid, "expansions").queries
        yield TermWeights(document.docid, _add_shares(document, queries, scale, root, analyzer))
    check_end(expansions, "expansions")


def _add_shares(
    document: TermWeights, queries: Sequence[str], scale: float, root: bool, analyzer: Analyzer
) -> dict[str, float]:
    words = list(document.weights)
    word_of = {stem: word for word, stem in zip(words, analyzer.stems([w.lower() for w in words]), strict=True) if stem}
    total = dict(document.weights)
    counts: Counter[str] = Counter()
    for query in queries:
        in_query = {word.term: word.text for word in analyzer.words(query) if word.term}
        for stem, word in in_query.items():
            counts[word_of.setdefault(stem, word)] += 1
    for word, count in counts.items():
        share = count / len(queries)
        # Whole numbers: an index stores those in one or two bytes.
        total[word] = total.get(word, 0.0) + round(scale * (math.sqrt(share) if root else share))
    return total
