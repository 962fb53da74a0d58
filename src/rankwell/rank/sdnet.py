"""Ranking with SDNet: one pass of the query through the frozen encoder, features for the passages, a small network.

Passages' features come from disk, where they are kept (:mod:`rankwell.models.sdnet.stored_features`), or are computed as they are
needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.progress import track
from rankwell.core.types import Rows, Scores
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.inputs.templates import Field, TruncationReport
from rankwell.inputs.windows import Windows
from rankwell.models.checkpoints.names import find_model, find_vectors
from rankwell.models.sdnet.network import Sdnet, SdnetConfig, load_sdnet
from rankwell.models.sdnet.word_features import FeatureEncoder, FeatureSource, InMemoryFeatures, PairMaker, WordTable
from rankwell.models.sdnet.word_vectors import open_vectors
from rankwell.models.sdnet.words import WordRows, WordVocabulary
from rankwell.rank.rankers import best_first
from rankwell.rank.texts import Texts, distinct

CPU_WORDS = 4096
GPU_WORDS = 1 << 16
PAIRS_AT_A_TIME = 4096
MIXED_BYTES = 8 << 30
"""Passages whose layers are mixed beforehand take this much memory at most; else each is mixed for each query."""

Found = tuple[FeatureSource, Rows, Rows]
"""Where passages are, their numbers there, and how many pieces of each were cut."""
FIELDS = (Field("query", 0), Field("document", 1))


class Passages(FeatureSource, Protocol):
    """Features of documents that are known by id."""

    def numbers(self, docids: Sequence[str]) -> Rows:
        """The documents' numbers."""
        ...


class SdnetRanker:
    """An SDNet with the encoder and word vectors it was trained on.

    It reads words rather than a template's tokens, truncates passages to ``max_words`` words, and ignores query types.
    """

    template = None
    windows: Windows | None = None
    takes_types = False

    def __init__(self, model: Sdnet, encoder: FeatureEncoder, table: WordTable, *, budget: int | None = None):
        self.device = encoder.device
        self.model = model.to(self.device).eval()
        self.encoder = encoder
        self.table = table
        self.budget = budget or (GPU_WORDS if self.device.type == "cuda" else CPU_WORDS)
        """Words, padding included, that are computed at once."""
        self.truncation = TruncationReport()
        """What was cut from texts; passages with kept features were counted when these were made."""

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        encoder: str | Path | None = None,
        vectors: str | Path | None = None,
        device: str | None = None,
        budget: int | None = None,
    ) -> SdnetRanker:
        """Load a folder; ``encoder`` and ``vectors`` say where these are now, should they have been moved."""
        folder = Path(folder)
        model = load_sdnet(folder)
        frozen = open_encoder(model.config, folder, encoder, device)
        return cls(model, frozen, open_table(model.config, frozen, folder, vectors), budget=budget)

    def predict(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """Scores of (query, passage) pairs."""
        queries, query_of = distinct([query for query, _ in pairs])
        passages, passage_of = distinct([passage for _, passage in pairs])
        asked, query_cut = self._read(queries, self.model.config.max_query_words)
        read, passage_cut = self._read(passages, self.model.config.max_words)
        self.truncation.count(FIELDS, np.stack([query_cut[query_of], passage_cut[passage_of]], axis=1))
        return self.score(asked, read, query_of, passage_of)

    def rank(
        self, query: str, documents: Sequence[str], top_k: int | None = None, *, return_documents: bool = False
    ) -> list[dict[str, Any]]:
        """The documents, best first: ``corpus_id`` and ``score``, on request ``text``."""
        scores = self.predict([(query, document) for document in documents])
        return best_first(scores, documents if return_documents else None, top_k)

    def rerank(
        self,
        run: Run,
        queries: Sequence[Query],
        texts: Texts | None = None,
        *,
        passages: Passages | None = None,
        asked: FeatureSource | None = None,
        depth: int = 1000,
        name: str = "sdnet",
    ) -> Run:
        """A run of the same candidates, the first ``depth`` of each query, in the model's order.

        Passages come as ``texts`` or, with kept features, as ``passages``; ``asked`` are the features of ``queries``,
        where they are there already.
        """
        row_of = {query.qid: row for row, query in enumerate(queries)}
        if missing := next((qid for qid in run if qid not in row_of), None):
            raise RankwellError(f"the run has results for query {missing!r}, which is not among the queries")
        query_cut = np.zeros(len(queries), np.int64)
        if asked is None:
            asked, query_cut = self._read([query.text for query in queries], self.model.config.max_query_words)
        head = run.head(depth)
        find = self._by_text(texts) if passages is None else self._mixed(passages, head)
        rankings: dict[str, Ranking] = {}
        for qids in track(list(_groups(head)), "re-ranking", unit="groups of queries"):
            docids = [docid for qid in qids for docid in head[qid].docids]
            sizes = [len(head[qid].docids) for qid in qids]
            query_of = np.repeat(np.array([row_of[qid] for qid in qids], np.int64), sizes)
            source, passage_of, cut = find(docids)
            self.truncation.count(FIELDS, np.stack([query_cut[query_of], cut], axis=1))
            parts = np.split(self.score(asked, source, query_of, passage_of), np.cumsum(sizes)[:-1])
            rankings |= {qid: Ranking.of(head[qid].docids, part) for qid, part in zip(qids, parts, strict=True)}
        return Run(rankings, name=name)

    def store_tokens(self, texts: Texts) -> None:
        """Do nothing: stored tokens are of no use to an SDNet."""

    def read_queries(self, texts: Sequence[str]) -> InMemoryFeatures:
        """Queries with their features."""
        return self._read(texts, self.model.config.max_query_words)[0]

    @torch.inference_mode()
    def score(self, queries: FeatureSource, passages: FeatureSource, query_of: Rows, passage_of: Rows) -> Scores:
        """The scores of pairs, given as numbers of queries and passages."""
        scores = np.empty(len(query_of), np.float32)
        make = PairMaker(queries, passages, self.table, self.device)
        lengths = passages.lengths(passage_of)
        order, begin = np.argsort(-lengths, kind="stable"), 0
        while begin < len(order):
            some = order[begin : begin + max(1, self.budget // max(1, int(lengths[order[begin]])))]
            # In the order of the queries, so that each is computed once.
            some = some[np.argsort(query_of[some], kind="stable")]
            scores[some] = self.model(*make(query_of[some], passage_of[some])).cpu().numpy()
            begin += len(some)
        return scores

    def _read(self, texts: Sequence[str], most: int) -> tuple[InMemoryFeatures, Rows]:
        """Texts with their features, each cut to so many words, and how many pieces of each that left out."""
        vocabulary = self.encoder.vocabulary
        whole = vocabulary.read(texts)
        words = vocabulary.fit(whole, most, self.encoder.max_pieces)
        kept = InMemoryFeatures(vocabulary, words, self.encoder.compute(words))
        return kept, _pieces(vocabulary, whole) - _pieces(vocabulary, words)

    def _by_text(self, texts: Texts | None) -> Callable[[list[str]], Found]:
        """A run's passages through the encoder, each once for some queries."""
        if texts is None:
            raise ValueError("either texts or kept features are needed")

        def find(docids: list[str]) -> Found:
            distinct = {docid: row for row, docid in enumerate(dict.fromkeys(docids))}
            rows = np.array([distinct[docid] for docid in docids], np.int64)
            read, cut = self._read(texts.texts(list(distinct)), self.model.config.max_words)
            return read, rows, cut[rows]

        return find

    def _mixed(self, passages: Passages, run: Run) -> Callable[[list[str]], Found]:
        """A run's passages with their layers mixed, once for all queries, where memory allows it."""
        numbers = np.unique(passages.numbers([docid for ranking in run.values() for docid in ranking.docids]))
        size = int(passages.lengths(numbers).sum())
        if 4 * size * self.model.config.width > MIXED_BYTES:
            return lambda docids: (passages, passages.numbers(docids), np.zeros(len(docids), np.int64))
        mixed = np.empty((size, self.model.config.width), np.float32)
        words, ends, end = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)], 0
        with torch.inference_mode():
            for begin in track(range(0, len(numbers), 256), "mixing layers", unit="groups of passages"):
                found, layers = passages.at(numbers[begin : begin + 256])
                own = self.model.mix_layers(torch.from_numpy(layers).to(self.device))
                mixed[end : end + len(own)] = own.cpu().numpy()
                words.append(found.numbers)
                ends.append(found.ends + end)
                end += len(own)
        kept = InMemoryFeatures(passages.vocabulary, WordRows(np.concatenate(words), np.concatenate(ends)), mixed)

        def find(docids: list[str]) -> Found:
            return kept, np.searchsorted(numbers, passages.numbers(docids)), np.zeros(len(docids), np.int64)

        return find


def _pieces(vocabulary: WordVocabulary, words: WordRows) -> Rows:
    """The number of pieces of each text."""
    ends = np.concatenate([[0], np.cumsum(vocabulary.pieces.lengths()[words.numbers])])
    return np.diff(ends[words.ends], prepend=0)


def _groups(run: Run) -> Iterator[list[str]]:
    """Queries together as long as they have not too many candidates."""
    group: list[str] = []
    pairs = 0
    for qid, ranking in run.items():
        if group and pairs + len(ranking.docids) > PAIRS_AT_A_TIME:
            yield group
            group, pairs = [], 0
        group.append(qid)
        pairs += len(ranking.docids)
    if group:
        yield group


def open_encoder(
    config: SdnetConfig, folder: Path, encoder: str | Path | None = None, device: str | None = None
) -> FeatureEncoder:
    """The frozen encoder of a network, which must be the very one it was trained on."""
    name = encoder or config.encoder
    try:
        found = FeatureEncoder.from_pretrained(name, layers=config.layers, device=device)
    except RankwellError as error:
        raise InputError(folder, None, f"its frozen encoder is not to be had; say where it is ({error})") from None
    if found.digest != config.encoder_digest:
        raise InputError(folder, None, f"{find_model(name)} is not the encoder it was trained on")
    return found


def open_table(
    config: SdnetConfig, encoder: FeatureEncoder, folder: Path, vectors: str | Path | None = None
) -> WordTable:
    """The word vectors of a network, which must be those it was trained on."""
    name = vectors or config.vectors
    if name is None:
        return WordTable(encoder.vocabulary, encoder.encoder, encoder.device)
    found = open_vectors(find_vectors(name))
    if found.digest != config.vectors_digest:
        raise InputError(folder, None, f"{name} does not have the word vectors it was trained on")
    return WordTable(encoder.vocabulary, found, encoder.device)
