"""doc2query: queries written for every passage of a collection, filtered, and kept in a file of their own.

An index adds the queries' terms to the passage's; the passage itself stays as it is, so a re-ranker reads nothing that
a model made up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.core.shards import Shards, map_shards
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.formats.expansions import Expansion, expansion_line, read_expansions
from rankwell.corpus.records import Document, TermWeights
from rankwell.corpus.store import DocumentStore
from rankwell.enrich.shared import SharedFolder
from rankwell.inputs.stored import StoredTokens

if TYPE_CHECKING:
    from rankwell.models.doc2query.decoding import Writer, Writing

SHARD_SIZE = 1024

Judge = Callable[[Sequence[tuple[str, str]]], NDArray[np.float32]]
"""p(relevant) of (query, passage) pairs, by a ranker."""


@dataclass(frozen=True)
class Filtering:
    """Which queries are dropped: near duplicates, and those a judge finds off the topic.

    A query without any term is dropped always.
    """

    duplicates: bool = True
    """Drop a query whose stems are those of an earlier one of the same passage, in any order."""
    threshold: float | None = None
    """Drop a query for which the passage is relevant with a lower probability than this."""

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise RankwellError(f"a threshold of {self.threshold:g}, expected a probability")


def filter_queries(
    queries: Sequence[Sequence[str]],
    texts: Sequence[str],
    filtering: Filtering,
    *,
    judge: Judge | None = None,
    analyzer: Analyzer | None = None,
) -> list[tuple[str, ...]]:
    """The queries of each passage that are kept, in their order."""
    if filtering.threshold is not None and judge is None:
        raise RankwellError("a threshold needs a ranker that judges the queries")
    terms = iter((analyzer or Analyzer.english()).terms_batch([query for own in queries for query in own]))
    kept: list[list[str]] = []
    for own in queries:
        seen: set[frozenset[str]] = {frozenset()}
        kept.append([])
        for query in own:
            stems = frozenset(next(terms))
            if not stems or (filtering.duplicates and stems in seen):
                continue
            seen.add(stems)
            kept[-1].append(query)
    if judge is None or filtering.threshold is None:
        return [tuple(own) for own in kept]
    pairs = [(query, text) for own, text in zip(kept, texts, strict=True) for query in own]
    found = iter((judge(pairs) >= filtering.threshold).tolist() if pairs else ())
    return [tuple(query for query in own if next(found)) for own in kept]


def expand_store(
    store: DocumentStore,
    writer: Writer,
    filtering: Filtering,
    folder: Path,
    *,
    model: str,
    judge: Judge | None = None,
    judged_by: str | None = None,
    shard_size: int = SHARD_SIZE,
) -> Shards:
    """The expansions of all documents, as shards in ``folder``; what is there already is not made again.

    ``model`` and ``judged_by`` name the writer's weights and the judge's. Several processes may share the work.
    """
    tokens = StoredTokens.open(store, writer.tokenizer)
    config = {"model": model, "tokens": writer.tokenizer.digest, "max_length": writer.max_length, "judge": judged_by}
    shards = Shards(folder, len(store), shard_size, {**config, **asdict(writer.options), **asdict(filtering)})
    analyzer = Analyzer.english()

    def work(items: range, file: IO[bytes]) -> None:
        numbers = np.asarray(items, np.int64)
        docids = store.docids.strings(items)
        written = writer.write(tokens.at(numbers), docids)
        texts = store.texts_at(numbers)
        kept = filter_queries(written, texts, filtering, judge=judge, analyzer=analyzer)
        for docid, queries in zip(docids, kept, strict=True):
            file.write(expansion_line(folder, Expansion(docid, queries)).encode("utf-8"))

    map_shards(shards, work, description="writing queries")
    return shards


def expand_collection(
    documents: Iterable[Document],
    out: Path,
    writer: Writer,
    filtering: Filtering,
    *,
    source: str,
    model: str,
    judge: Judge | None = None,
    judged_by: str | None = None,
    shard_size: int = SHARD_SIZE,
) -> None:
    """Write the file ``out`` of expansions of ``documents``, whose digest is ``source``.

    While it is made, ``OUT.parts`` holds the texts and the shards that are done: the same command goes on with them,
    and given several times at once the processes share them.
    """
    if out.exists():
        raise RankwellError(f"{out} exists already; remove it or choose another name")
    work = writing_work(source, model, writer.options, filtering, judged_by)
    with SharedFolder.enter(out.with_name(f"{out.name}.parts"), work) as shared:
        shards = expand_store(
            shared.store(documents, source),
            writer,
            filtering,
            shared.path / f"shards-{source}",
            model=model,
            judge=judge,
            judged_by=judged_by,
            shard_size=shard_size,
        )
        shards.join(out)
        if shared.alone(wait=False):  # each process joins the same bytes; the last clears up
            shared.remove()


def writing_work(
    source: str, model: str, options: Writing, filtering: Filtering, judged_by: str | None = None
) -> dict[str, str]:
    """All that makes a difference to such a file, by name: two that differ must not be made in one folder at once."""
    own = {f"setting of {name}": str(value) for name, value in (asdict(options) | asdict(filtering)).items()}
    return {"collection": source, "model": model, "judge": str(judged_by), **own}


def expanded_documents(documents: Iterable[Document], expansions: Iterable[Expansion]) -> Iterator[Document]:
    """The documents with their queries after their texts, for an index that keeps no texts."""
    found = iter(expansions)
    for document in documents:
        one = next(found, None)
        if one is None:
            raise RankwellError(f"the expansions end before document {document.docid!r}")
        if one.docid != document.docid:
            problem = f"expansions of {one.docid!r} where {document.docid!r} comes"
            raise RankwellError(f"{problem}; they must be in the collection's order")
        yield Document(document.docid, " ".join([document.contents, *one.queries]))
    if (extra := next(found, None)) is not None:
        raise RankwellError(f"the expansions go on after the last document, with {extra.docid!r}")


def combine_weights(
    weights: Iterable[TermWeights],
    expansions: Iterable[Expansion],
    *,
    scale: float = 100.0,
    root: bool = False,
    analyzer: Analyzer | None = None,
) -> Iterator[TermWeights]:
    """Term weights (DeepCT's) with expansions added: a term gains ``scale`` times the share of queries that have it.

    That share estimates what DeepCT learns, the share of a passage's queries that ask for a term. So both are on one
    scale where weights are 100·y, or, with ``root``, 100·√y.
    """
    analyzer = analyzer or Analyzer.english()
    aligned = iter(expansions)
    for document in weights:
        one = next(aligned, None)
        if one is None or one.docid != document.docid:
            found = "nothing" if one is None else repr(one.docid)
            raise RankwellError(f"weights of {document.docid!r}, but expansions of {found}; they must be in one order")
        yield TermWeights(document.docid, _add_shares(document, one.queries, scale, root, analyzer))
    if (extra := next(aligned, None)) is not None:
        raise RankwellError(f"the expansions go on after the last weights, with {extra.docid!r}")


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
        # Whole numbers, as DeepCT's are: an index keeps those in one or two bytes.
        total[word] = total.get(word, 0.0) + round(scale * (math.sqrt(share) if root else share))
    return total


@dataclass(frozen=True)
class ExpansionCounts:
    """What a file of expansions holds."""

    documents: int
    queries: int
    terms: int
    """Terms of the queries, repeated ones too."""
    new: int
    """Those of them that the passage does not have."""

    def as_dict(self) -> dict[str, float]:
        """Figures worth a record."""
        share = self.new / self.terms if self.terms else 0.0
        return {"queries a passage": self.queries / max(1, self.documents), "share of new terms": share}


def count_expansions(
    documents: Iterable[Document], path: Path, *, most: int = 2000, analyzer: Analyzer | None = None
) -> ExpansionCounts:
    """Count the queries of the first ``most`` passages, and how much of them is new."""
    analyzer = analyzer or Analyzer.english()
    count = queries = terms = new = 0
    for document, expansion in zip(documents, read_expansions(path), strict=False):
        if count == most:
            break
        own = set(analyzer.terms_batch([document.contents])[0])
        found = [term for each in analyzer.terms_batch(list(expansion.queries)) for term in each]
        count, queries, terms = count + 1, queries + len(expansion.queries), terms + len(found)
        new += sum(term not in own for term in found)
    return ExpansionCounts(count, queries, terms, new)
