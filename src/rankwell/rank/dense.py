"""Dense ranking and hybrid search: by a bi-encoder's similarity, alone or beside BM25.

BM25 finds documents by their words, a bi-encoder by their meaning; a fusion of their scores ranks what either finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import get_args
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankwell.core.arrays import Rows
from rankwell.core.errors import RankwellError
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.records import Qrels, Query, Ranking, Run
from rankwell.corpus.store import DocumentStore
from rankwell.evaluation.cross_validation import Tuned
from rankwell.models.bi_encoder import BiEncoder, Vectors
from rankwell.models.compute import map_lanes
from rankwell.rank.fusion import Shares, fuse
from rankwell.rank.passage_vectors import PassageVectors, PassageWords
from rankwell.rank.rankers import VectorSearch, queries_by_id
from rankwell.rank.texts import Texts
from rankwell.rank.tuning import share_grid, tune_fusion
from rankwell.rank.vector_codes import VectorCodes, compares_all
from rankwell.rank.vector_records import WIDEST
from rankwell.rank.vector_search import Block, search_vectors
from rankwell.retrieve.bm25 import BM25, DEFAULT_BM25, Hits
from rankwell.retrieve.index import QUERIES_AT_A_TIME, Index
from rankwell.retrieve.numbering import NumberedRun, join_hits

WORTH_STORING = 0.5
"""The vectors of a whole collection are computed and stored if a run needs at least this part of its documents."""
CHEAP = 200_000
"""Among fewer documents, exact search is the default."""
DEEP, TIES = 1000, 100
"""Search goes at least this deep, and this far below the requested depth: documents with equal scores are ordered by
id, so a short list must be the top of a long one."""


@dataclass(frozen=True, eq=False)
class EncodedQueries:
    """Queries as a bi-encoder reads them: the vectors (N, H), and those (T, W) of each one's words if they are needed.

    They are made once at the top of a search and handed along.
    """

    qids: Sequence[str]
    vectors: Vectors
    words: Sequence[Vectors] = ()

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {qid: row for row, qid in enumerate(self.qids)}

    def of(self, names: Iterable[str]) -> EncodedQueries:
        """Those of some queries, in their order."""
        qids = list(names)
        rows = [self._rows[qid] for qid in qids]
        return EncodedQueries(qids, self.vectors[rows], [self.words[row] for row in rows] if self.words else ())


class DenseRanker:
    """Re-ranks and searches with a bi-encoder, given as an object or by name.

    ``vectors`` is how documents are found: ``exact`` compares all vectors, ``compressed`` their codes
    (:mod:`rankwell.rank.vector_codes`). ``auto`` is exact for collections of fewer than 200,000 documents, on a
    GPU, and for vectors that are not of length 1.
    """

    def __init__(self, encoder: BiEncoder | str, *, vectors: VectorSearch = "auto"):
        self.encoder = encoder if isinstance(encoder, BiEncoder) else BiEncoder.from_pretrained(encoder)
        if vectors not in (known := get_args(VectorSearch)):
            raise RankwellError(f"vectors can be searched {', '.join(known)}, not {vectors!r}")
        self.vector_search = vectors
        # By the ids of a store, which all views of it share: what no view uses any more is closed.
        self._opened: WeakKeyDictionary[Lexicon, PassageVectors] = WeakKeyDictionary()
        self._copies: WeakKeyDictionary[Lexicon, list[Tensor]] = WeakKeyDictionary()
        self._codes: WeakKeyDictionary[Lexicon, VectorCodes] = WeakKeyDictionary()
        self._words: WeakKeyDictionary[Lexicon, PassageWords] = WeakKeyDictionary()

    def encode(
        self, queries: Sequence[Query], *, words: bool = False, instruction: str | None = None
    ) -> EncodedQueries:
        """The vectors of queries and, from the same pass, of their ``words``, which are the encoder's tokens.

        ``instruction`` says what to look for, in place of what the encoder's prompt says.
        """
        of_words: list[Vectors] | None = [] if words else None
        vectors = self.encoder.encode_queries([query.text for query in queries], instruction, words=of_words)
        return EncodedQueries([query.qid for query in queries], vectors, of_words or ())

    def rerank(
        self,
        run: Run,
        queries: Sequence[Query],
        texts: Texts,
        *,
        depth: int = 1000,
        encoded: EncodedQueries | None = None,
    ) -> Run:
        """A run of the same candidates, the first ``depth`` of each query, by similarity."""
        by_qid = queries_by_id(run, queries, depth)
        head = run.head(depth)
        docids = list(dict.fromkeys(chain.from_iterable(ranking.docids for ranking in head.values())))
        documents = self._documents(docids, texts)
        row_of = {docid: row for row, docid in enumerate(docids)}
        encoded = self.encode([by_qid[qid] for qid in head]) if encoded is None else encoded
        rankings, vectors = {}, encoded.of(head).vectors
        for query, (qid, ranking) in zip(vectors, head.items(), strict=True):
            candidates = documents[[row_of[docid] for docid in ranking.docids]]
            rankings[qid] = Ranking.of(ranking.docids, candidates.astype(np.float32) @ query)
        return Run(rankings, name="dense")

    def compare_words(
        self, run: Run, queries: Sequence[Query], texts: Texts, encoded: EncodedQueries | None = None
    ) -> Run:
        """A run of the same documents by their words: the sum, over those of the query, of the highest similarity.

        Word vectors of documents that are not stored yet are computed first. Those of queries need some 20 KB each;
        without ``encoded`` they are made for 256 queries at a time.
        """
        by_qid = queries_by_id(run, queries)
        for store in texts.documents.stores:
            self.words(store)  # opened before several threads need it
        compared: dict[str, Ranking] = {}
        for begin in range(0, len(run), QUERIES_AT_A_TIME):
            qids = list(islice(run, begin, begin + QUERIES_AT_A_TIME))
            words = (encoded.of(qids) if encoded else self.encode([by_qid[qid] for qid in qids], words=True)).words
            compared |= self._compare({qid: run[qid] for qid in qids}, words, texts)
        return Run(compared, name="words")

    def _compare(self, run: Mapping[str, Ranking], words: Sequence[Vectors], texts: Texts) -> dict[str, Ranking]:
        """The documents of each query by its ``words``, on all cores."""

        def compare(place: int) -> Ranking:
            docids = rankings[place].docids
            similarities, _ = self.match_words(docids, words[place], texts)
            return Ranking.of(docids, similarities.sum(axis=1))

        rankings = list(run.values())
        return dict(zip(run, map_lanes(compare, range(len(rankings))), strict=True))

    def compare_texts(self, query: str, texts: Sequence[str]) -> Vectors:
        """The scores (N,) of :meth:`compare_words` for texts, from all numbers of their word vectors."""
        words: list[Vectors] = []
        [asked] = self.encode([Query("", query)], words=True).words
        self.encoder.encode_documents(texts, words)
        return np.array([(document @ asked.T).max(axis=0).sum() for document in words], np.float32)

    def has_words(self, texts: Texts) -> bool:
        """Whether the word vectors of all documents are stored."""
        stores = texts.documents.stores
        return not any(store.in_memory or not PassageWords.is_complete(store, self.encoder) for store in stores)

    def has_vectors(self, texts: Texts) -> bool:
        """Whether the vectors of all documents are stored."""
        return all(map(self._has_vectors, texts.documents.stores))

    def match_words(self, docids: Sequence[str], words: Vectors, texts: Texts) -> tuple[Vectors, Rows]:
        """The similarities and numbers (N, Q) of the words of documents that are most similar to words (Q, W)."""
        documents, shape = texts.documents, (len(docids), len(words))
        similarities, places = np.empty(shape, np.float32), np.empty(shape, np.int64)
        for store, rows, local in documents.split(documents.numbers(docids)):
            similarities[rows], places[rows] = self.words(store).matches(local, words)
        return similarities, places

    def explain_words(
        self, query: str, docids: Sequence[str], texts: Texts, encoded: EncodedQueries | None = None
    ) -> list[list[tuple[str, str, float]]]:
        """For each document the words of a query, the most similar ones of the document, and how similar they are."""
        asked = self.encoder.name_words(query, of_query=True)
        [vectors] = (encoded or self.encode([Query("", query)], words=True)).words
        similarities, places = self.match_words(docids, vectors, texts)
        # Marks and special tokens take part in the comparison, but say nothing to a reader.
        shown = [number for number, word in enumerate(asked) if any(map(str.isalnum, word)) and word[0] not in "[<"]
        explained = []
        for text, values, numbers in zip(texts.texts(docids), similarities.tolist(), places.tolist(), strict=True):
            words = self.encoder.name_words(text)
            explained.append([(asked[q], words[numbers[q]], round(values[q], 4)) for q in shown])
        return explained

    def search(
        self, queries: Sequence[Query], texts: Texts, k: int = 1000, encoded: EncodedQueries | None = None
    ) -> Run:
        """The ``k`` nearest documents of each query; vectors that are not stored yet are computed first."""
        if k < 1:
            raise RankwellError(f"k must be at least 1, not {k}")
        documents = texts.documents
        read = self.encode(queries) if encoded is None else encoded.of(query.qid for query in queries)
        vectors, parts = read.vectors, []
        nearest = self._nearest(vectors, documents.stores, max(k, DEEP) + TIES)
        for store, (numbers, scores) in zip(documents.stores, nearest, strict=True):
            if (wrong := np.isnan(scores)).any():
                raise RankwellError(f"document {store.docids.strings(numbers[wrong][:1])[0]} has the score NaN")
            # Adding 0 turns -0.0 into 0.0, so that equal scores are also equal bits.
            parts.append(Hits(numbers, scores + np.float32(0)))
        hits = join_hits(documents, parts, k, ordered=False)
        return NumberedRun([(queries, hits)], documents, name="dense")

    def _nearest(self, queries: Vectors, stores: Sequence[DocumentStore], k: int) -> Iterable[tuple[Rows, Vectors]]:
        """The ``k`` nearest documents of each store: their numbers within it, and their similarities."""
        compressed = self.compresses(sum(map(len, stores)))
        for store in stores:
            yield self.nearest(queries, store, k, compressed=compressed)

    def nearest(self, queries: Vectors, store: DocumentStore, k: int, *, compressed: bool) -> tuple[Rows, Vectors]:
        """The ``k`` documents of a store nearest to each query: their numbers and similarities, both (Q, k)."""
        if compressed and not compares_all(len(store), k) and (codes := self.codes(store)) is not None:
            return codes.search(queries, k, allowed=store.described)
        return search_vectors(queries, self._blocks(store), k, device=self.encoder.device, allowed=store.described)

    def _blocks(self, store: DocumentStore) -> Iterator[Block | Tensor]:
        """The vectors of a store: on a GPU a copy that stays there, if a quarter of its free memory has room for it."""
        vectors, device = self.vectors(store), self.encoder.device
        if device.type != "cuda":
            return vectors.blocks()
        if store.docids not in self._copies:
            free, _ = torch.cuda.mem_get_info(device)
            if 2 * vectors.width * len(vectors) > free // 4:
                return vectors.blocks()
            self._copies[store.docids] = [torch.from_numpy(np.array(block)).to(device) for block in vectors.blocks()]
        return iter(self._copies[store.docids])

    def compresses(self, documents: int) -> bool:
        """Whether a search among this many documents compares codes."""
        if self.vector_search != "auto":
            return self.vector_search == "compressed"
        # Signs say nothing about the lengths of vectors.
        suited = self.encoder.modules.unit and self.encoder.width <= WIDEST and self.encoder.device.type == "cpu"
        return suited and documents >= CHEAP

    def prepare(self, stores: Sequence[DocumentStore]) -> list[PassageVectors]:
        """The vectors of some stores, after computing what a search among their documents needs."""
        vectors = [self.vectors(store) for store in stores]
        if self.compresses(sum(map(len, stores))):
            for store in stores:
                if not compares_all(len(store), DEEP + TIES):
                    self.codes(store)
        return vectors

    def codes(self, store: DocumentStore) -> VectorCodes | None:
        """The codes of a store's vectors; ``None`` if there are none and the folder is read-only."""
        if store.docids not in self._codes:
            vectors = self.vectors(store)
            if not VectorCodes.is_complete(vectors) and not store.writable:
                return None
            self._codes[store.docids] = VectorCodes.open(vectors)
        return self._codes[store.docids]

    def vectors(self, store: DocumentStore) -> PassageVectors:
        """The vectors of a store's documents."""
        if store.docids not in self._opened:
            self._opened[store.docids] = PassageVectors.open(store, self.encoder)
        return self._opened[store.docids]

    def words(self, store: DocumentStore) -> PassageWords:
        """The word vectors of a store's documents."""
        if store.docids not in self._words:
            self._words[store.docids] = PassageWords.open(store, self.encoder)
        return self._words[store.docids]

    def _has_vectors(self, store: DocumentStore) -> bool:
        return store.docids in self._opened or PassageVectors.is_complete(store, self.encoder)

    def _documents(self, docids: list[str], texts: Texts) -> NDArray[np.floating]:
        """The vectors of documents: stored ones, or computed for these alone if storing all does not pay."""
        documents = texts.documents
        storable = bool(self.encoder.name) and not any(store.in_memory for store in documents.stores)
        pays = len(docids) >= WORTH_STORING * len(documents) and all(store.writable for store in documents.stores)
        if not storable or not (pays or self.has_vectors(texts)):
            return self.encoder.encode_documents(texts.texts(docids))
        vectors = np.empty((len(docids), self.encoder.width), np.float16)
        for store, rows, local in documents.split(documents.numbers(docids)):
            vectors[rows] = self.vectors(store).at(local)
        return vectors


# Hybrid search


def search_hybrid(
    index: Index,
    dense: DenseRanker,
    queries: Sequence[Query],
    share: float,
    bm25: BM25 = DEFAULT_BM25,
    *,
    k: int = 1000,
    threads: int = 1,
    encoded: EncodedQueries | None = None,
) -> Run:
    """The best ``k`` documents of each query by (1 − share) · BM25 + share · similarity, each standardised.

    Both search at least 1,000 documents deep; a document that only one of them finds gets the other's lowest score.
    With a share of 1 the bi-encoder searches alone.
    """
    shares = Shares.hybrid(share)
    if k < 1:
        raise RankwellError(f"k must be at least 1, not {k}")
    if share == 1:
        return dense.search(queries, index, k, encoded)
    runs = search_both(index, dense, queries, bm25, k=k, threads=threads, encoded=encoded)
    return fuse(runs, shares, depth=k, name="hybrid")


def search_both(
    index: Index,
    dense: DenseRanker,
    queries: Sequence[Query],
    bm25: BM25 = DEFAULT_BM25,
    *,
    k: int = DEEP,
    threads: int = 1,
    encoded: EncodedQueries | None = None,
) -> dict[str, Run]:
    """BM25's run and the bi-encoder's, as :func:`~rankwell.rank.fusion.fuse` takes them.

    Each goes at least 1,000 documents deep, however few are requested, because scores are standardised over them.
    """
    deep = max(k, DEEP)
    return {
        "first": index.search(queries, bm25, k=deep, threads=threads),
        "similarity": dense.search(queries, index, deep, encoded),
    }


def tune_hybrid(
    index: Index,
    dense: DenseRanker,
    queries: Sequence[Query],
    qrels: Qrels,
    bm25: BM25 = DEFAULT_BM25,
    *,
    measure: str = "RR@10",
    step: float = 0.1,
    folds: int = 5,
    seed: int = 0,
    threads: int = 1,
) -> Tuned[Shares]:
    """The bi-encoder's share that ranks best on judged queries; 0 where BM25 is better alone."""
    judged = [query for query in queries if query.qid in qrels]
    known = Qrels({query.qid: qrels[query.qid] for query in judged})
    runs = search_both(index, dense, judged, bm25, threads=threads)
    return tune_fusion(runs, known, share_grid(list(runs), step), measure=measure, folds=folds, seed=seed)


def share_table(tuned: Tuned[Shares]) -> str:
    """The figures of :func:`tune_hybrid` as text."""

    def option(shares: Shares) -> str:
        return f"--hybrid {shares.similarity:g}" if shares.similarity else "BM25 alone"

    return tuned.table("the bi-encoder's weight", lambda shares: shares.similarity, name=option)
