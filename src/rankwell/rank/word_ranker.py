"""A bi-encoder as a re-ranker: texts are compared word by word (late interaction)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from rankwell.core.arrays import Scores
from rankwell.core.progress import track
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.corpus.sources import Source
from rankwell.inputs.templates import TruncationReport
from rankwell.inputs.windows import Windows
from rankwell.models.devices import Computing
from rankwell.rank.dense import DenseRanker
from rankwell.rank.pairs import best_first, documents_to_rank
from rankwell.rank.rankers import RANKERS, open_encoder, queries_by_id
from rankwell.rank.texts import Texts


@RANKERS.register("words")
class WordRanker:
    """Scores a document by the sum, over the words of the query, of the similarity of its most similar word.

    Word vectors that an index stores are used as they are there; others are computed from the texts.
    """

    options = frozenset({"device", "precision", "trust_remote_code"})
    windows: Windows | None = None
    template = None
    takes_types = False

    def __init__(self, dense: DenseRanker):
        self.dense = dense

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> WordRanker:
        """Load a bi-encoder; ``options`` are ``device``, ``precision`` and ``trust_remote_code``."""
        return cls(DenseRanker(open_encoder(folder, Computing(**options))))

    @property
    def truncation(self) -> TruncationReport:
        """Counts of what was truncated so far."""
        return self.dense.encoder.reader.truncation

    def predict(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """Score (query, document) pairs."""
        groups = [(query, [text for _, text in some]) for query, some in groupby(pairs, key=itemgetter(0))]
        return np.concatenate([np.zeros(0, np.float32), *(self.dense.compare_texts(*group) for group in groups)])

    def rank(self, query: str, documents: Source, top_k: int | None = None) -> list[dict[str, Any]]:
        """The documents, best first, each with its ``corpus_id`` and ``score``."""
        ids, texts = documents_to_rank(query, documents, top_k)
        return best_first(self.dense.compare_texts(query, texts), ids, None, top_k)

    def rerank(self, run: Run, queries: Sequence[Query], texts: Texts, *, depth: int = 1000) -> Run:
        """A run of the same candidates, the first ``depth`` of each query, in the order of their words."""
        by_qid, top = queries_by_id(run, queries, depth), run.head(depth)
        if self.dense.has_words(texts):
            return self.dense.compare_words(top, queries, texts)
        rankings = {}
        for qid, ranking in track(top.items(), "comparing words", total=len(top), unit="queries"):
            scores = self.dense.compare_texts(by_qid[qid].text, texts.texts(ranking.docids))
            rankings[qid] = Ranking.of(ranking.docids, scores)
        return Run(rankings, name="words")

    def store_tokens(self, texts: Texts) -> None:
        """Nothing: word vectors are stored by `rankwell index --words`."""
