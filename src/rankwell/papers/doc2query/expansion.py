"""doc2query: a model writes queries for every passage of a collection (Nogueira et al., 2019).

The queries are filtered and written to a file. An index adds their terms to those of the passage. The passage itself
stays as it is, so a re-ranker reads no generated text. Without judgments, the queries also serve as training data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from rankwell.core.arrays import Scores
from rankwell.core.errors import InputError, RankwellError
from rankwell.core.shards import ShardWork
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.formats import write_qrels, write_queries
from rankwell.corpus.formats.texts import Expansion, expansion_line, read_expansions
from rankwell.corpus.records import Document, Qrels, Query
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.stored import StoredTokens
from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.names import find_model, model_digest
from rankwell.papers.shared.passages import PassageJob

if TYPE_CHECKING:
    from rankwell.papers.doc2query.decoding import WritingOptions

THRESHOLD = 0.5
"""The lowest probability of relevance that a judge accepts."""
COUNTED = 2000
"""The passages whose expansions are counted."""

SPLIT = "generated"

Judge = Callable[[Sequence[tuple[str, str]]], Scores]
"""A ranker's p(relevant) for (query, passage) pairs."""


def filter_queries(
    queries: Sequence[Sequence[str]],
    texts: Sequence[str],
    *,
    judge: Judge | None = None,
    threshold: float = THRESHOLD,
    analyzer: Analyzer | None = None,
) -> list[tuple[str, ...]]:
    """The queries of each passage that are not dropped, in their order.

    Dropped are those without a term, those with the same stems, in any order, as an earlier one of the passage, and
    those whose passage the judge gives a probability of being relevant below the threshold.
    """
    terms = iter((analyzer or Analyzer.english()).terms_batch([query for group in queries for query in group]))
    filtered: list[list[str]] = []
    for group in queries:
        seen: set[frozenset[str]] = {frozenset()}
        filtered.append([])
        for query in group:
            stems = frozenset(next(terms))
            if stems not in seen:
                seen.add(stems)
                filtered[-1].append(query)
    if judge is None:
        return [tuple(group) for group in filtered]
    pairs = [(query, text) for group, text in zip(filtered, texts, strict=True) for query in group]
    on_topic = iter((judge(pairs) >= threshold).tolist() if pairs else ())
    return [tuple(query for query in group if next(on_topic)) for group in filtered]


def find_writer(model: str | Path) -> Path:
    """The folder of a query writer; raises if the model is of another kind."""
    folder = find_model(model)
    if describe(folder).family != "encoder-decoder":
        raise InputError(folder, None, "not a query writer; `rankwell train doc2query` trains one")
    return folder


def find_judge(model: str | Path) -> Path:
    """The folder of a ranker that judges written queries; raises if there is none."""
    folder = find_model(model)
    if not (folder / "config.json").is_file():
        raise InputError(folder, None, "not a ranker's folder (it has no config.json); expected that of the judge")
    return folder


def open_judge(folder: Path, device: str | None) -> Judge:
    """Load a ranker as a judge."""
    from rankwell.rank.ranker import Ranker

    ranker = Ranker.from_pretrained(folder, engine={} if device is None else {"device": device})
    return lambda pairs: ranker.predict(pairs, activation="probability")


@dataclass(frozen=True)
class ExpandJob(PassageJob):
    """Writes queries for documents."""

    options: WritingOptions
    judge: Path | None = None
    threshold: float = THRESHOLD

    shards = "queries"
    description = "writing queries"

    def models(self) -> dict[str, str | None]:
        """Digests of the writer and the judge."""
        return {**super().models(), "judge": None if self.judge is None else model_digest(self.judge)}

    def settings(self) -> dict[str, Any]:
        """How queries are written and judged."""
        return {**super().settings(), "threshold": self.threshold}

    def open(self, store: DocumentStore) -> ShardWork:
        """Load the models; returns what writes the queries of documents."""
        from rankwell.papers.doc2query.checkpoints import load_writer
        from rankwell.papers.doc2query.decoding import Writer

        model, tokenizer, config = load_writer(self.model)
        writer = Writer(model, tokenizer, config.max_length, self.options, device=self.device)
        judge = None if self.judge is None else open_judge(self.judge, self.device)
        analyzer, tokens = Analyzer.english(), StoredTokens.open(store.documents, tokenizer)

        def write(items: range, file: IO[bytes]) -> None:
            numbers, docids = np.asarray(items, np.int64), store.docids.strings(items)
            written, texts = writer.write(tokens.at(numbers), docids), store.texts_at(numbers)
            filtered = filter_queries(written, texts, judge=judge, threshold=self.threshold, analyzer=analyzer)
            for docid, queries in zip(docids, filtered, strict=True):
                file.write(expansion_line(self.folder, Expansion(docid, queries)).encode("utf-8"))

        return write


def count_expansions(documents: Iterable[Document], path: Path) -> dict[str, float]:
    """The queries of each of the first passages, and the share of their terms that the passage does not contain."""
    analyzer = Analyzer.english()
    count = queries = terms = new = 0
    for document, expansion in zip(islice(documents, COUNTED), read_expansions(path), strict=False):
        known = set(analyzer.terms_batch([document.contents])[0])
        written = [term for each in analyzer.terms_batch(list(expansion.queries)) for term in each]
        count, queries, terms = count + 1, queries + len(expansion.queries), terms + len(written)
        new += sum(term not in known for term in written)
    return {"queries a passage": queries / max(1, count), "share of new terms": new / terms if terms else 0.0}


def generated_queries(expansions: Iterable[Expansion], prefix: str = "g") -> tuple[list[Query], Qrels]:
    """The distinct queries, with judgments: the passages that each was written for are relevant to it."""
    passages: dict[str, dict[str, int]] = {}
    for expansion in expansions:
        for query in expansion.queries:
            passages.setdefault(query, {})[expansion.docid] = 1
    queries = [Query(f"{prefix}{number}", text) for number, text in enumerate(passages, 1)]
    return queries, Qrels({query.qid: passages[query.text] for query in queries})


def write_generated(expansions: Sequence[Expansion], folder: Path, *, dev: int = 500) -> dict[str, int]:
    """Write expansions as training data and return the number of queries of each split.

    The passage that a query was written for is its only relevant one; noise reduction may find better answers. The
    split ``generated`` is for training. ``generated.dev``, with ``dev`` queries or a tenth of all, whichever is less,
    is for validation: its passages (every k-th) are not in ``generated``.
    """
    total = sum(len(expansion.queries) for expansion in expansions)
    wanted = min(dev, total // 10)
    if wanted < 1:
        raise RankwellError(f"{total} generated queries are too few for training and validation")
    every = max(2, total // wanted)
    passages = [expansion for expansion in expansions if expansion.queries]
    held_out = passages[::every]
    train = generated_queries(passage for number, passage in enumerate(passages) if number % every)
    queries, qrels = generated_queries(held_out, "v")
    trained = {query.text for query in train[0]}
    queries = [query for query in queries if query.text not in trained]
    dev_part = queries, Qrels({query.qid: qrels[query.qid] for query in queries})
    for split, (queries, qrels) in ((SPLIT, train), (f"{SPLIT}.dev", dev_part)):
        write_queries(queries, folder / f"queries.{split}.tsv")
        write_qrels(qrels, folder / f"qrels.{split}.txt")
    return {SPLIT: len(train[0]), f"{SPLIT}.dev": len(dev_part[0])}
