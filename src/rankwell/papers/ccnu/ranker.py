"""SDNet as a ranker: a small network over a frozen encoder's word features.

Each query goes through the encoder once. Passage features are read from disk if they are stored there
(:mod:`rankwell.papers.ccnu.stored_features`), or computed on the fly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rankwell.core.arrays import Rows, Scores
from rankwell.core.errors import InputError, RankwellError
from rankwell.core.progress import track
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.corpus.sources import Source
from rankwell.inputs.templates import Field, TruncationReport
from rankwell.inputs.windows import Windows
from rankwell.models.checkpoints.names import find_model, find_vectors
from rankwell.models.compute import CPU_BUDGET, GPU_BUDGET, Compute
from rankwell.papers.ccnu.network import Sdnet, SdnetConfig, load_sdnet
from rankwell.papers.ccnu.stored_features import PassageFeatures
from rankwell.papers.ccnu.word_features import (
    FeatureEncoder,
    FeatureSource,
    InMemoryFeatures,
    PairMaker,
    WordTable,
    open_vectors,
)
from rankwell.papers.ccnu.words import Tagger, WordRows, WordVocabulary, open_tagger, tag_words
from rankwell.rank.pairs import best_first, documents_to_rank, groups_of_queries
from rankwell.rank.rankers import RANKERS, queries_by_id
from rankwell.rank.texts import Texts, distinct

PAIRS_AT_A_TIME = 4096
MIXED_BYTES = 8 << 30
"""The layers of all passages are mixed once if the result fits this much memory; otherwise once per query."""

FindPassages = Callable[[list[str]], tuple[FeatureSource, Rows, Rows]]
"""Document ids → a source of their features, their numbers in it, and how many tokens of each were truncated."""
FIELDS = (Field("query", 0), Field("document", 1))


@RANKERS.register("sdnet")
class SdnetRanker:
    """An SDNet with the encoder and word vectors it was trained on.

    It reads words rather than a template's tokens, truncates passages to ``max_words`` words, and ignores query types.
    """

    options = frozenset({"device"})
    template = None
    windows: Windows | None = None
    takes_types = False

    def __init__(
        self,
        model: Sdnet,
        encoder: FeatureEncoder,
        table: WordTable,
        tagger: Tagger | None = None,
        *,
        budget: int | None = None,
    ):
        self.device = encoder.device
        # The budget counts passages' words, padding included. A batch is computed by all threads: its recurrent layers
        # take the words one after the other, and the table of word vectors grows while batches are made.
        self._compute = Compute(
            model,
            device=str(self.device),
            dtype="fp32",
            budget=budget,
            lanes=1,
            cpu_budget=2 * CPU_BUDGET,
            gpu_budget=GPU_BUDGET // 4,
        )
        self.model = model
        self.encoder = encoder
        self.table = table
        self.tagger = tagger
        self.truncation = TruncationReport()
        """What was truncated. Passages with stored features were counted when the features were computed."""

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
        """Load a folder. ``encoder`` and ``vectors`` are needed only if these have moved since training."""
        folder = Path(folder)
        model = load_sdnet(folder)
        tagger = _open_tagger(model.config, folder)
        frozen = open_encoder(model.config, folder, encoder, device)
        return cls(model, frozen, open_table(model.config, frozen, folder, vectors), tagger, budget=budget)

    def predict(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """Score (query, passage) pairs."""
        queries, query_of = distinct([query for query, _ in pairs])
        passages, passage_of = distinct([passage for _, passage in pairs])
        query_features, query_cut = self._read(queries, self.model.config.max_query_words)
        passage_features, passage_cut = self._read(passages, self.model.config.max_words, self.tagger)
        self.truncation.count(FIELDS, np.stack([query_cut[query_of], passage_cut[passage_of]], axis=1))
        return self.score(query_features, passage_features, query_of, passage_of)

    def rank(
        self, query: str, documents: Source, top_k: int | None = None, *, return_documents: bool = False
    ) -> list[dict[str, Any]]:
        """The documents, best first, each with its ``corpus_id`` and ``score``, and on request ``text``."""
        ids, texts = documents_to_rank(query, documents, top_k)
        scores = self.predict([(query, text) for text in texts])
        return best_first(scores, ids, texts if return_documents else None, top_k)

    def rerank(
        self,
        run: Run,
        queries: Sequence[Query],
        texts: Texts | None = None,
        *,
        passages: PassageFeatures | None = None,
        query_features: FeatureSource | None = None,
        depth: int = 1000,
        name: str = "sdnet",
    ) -> Run:
        """Re-rank the first ``depth`` candidates of each query.

        Passages are read from ``texts``, or their features from ``passages``. ``query_features`` are those of
        ``queries``, if they have been computed already.
        """
        queries_by_id(run, queries)  # raises
        row_of = {query.qid: row for row, query in enumerate(queries)}
        query_cut = np.zeros(len(queries), np.int64)
        if query_features is None:
            query_features, query_cut = self._read([query.text for query in queries], self.model.config.max_query_words)
        head = run.head(depth)
        find = self._by_text(texts) if passages is None else self._mixed(passages, head)
        rankings: dict[str, Ranking] = {}
        for qids in track(groups_of_queries(head, depth, PAIRS_AT_A_TIME), "re-ranking", unit="groups of queries"):
            docids = [docid for qid in qids for docid in head[qid].docids]
            sizes = [len(head[qid].docids) for qid in qids]
            query_of = np.repeat(np.array([row_of[qid] for qid in qids], np.int64), sizes)
            source, passage_of, cut = find(docids)
            self.truncation.count(FIELDS, np.stack([query_cut[query_of], cut], axis=1))
            parts = np.split(self.score(query_features, source, query_of, passage_of), np.cumsum(sizes)[:-1])
            rankings |= {qid: Ranking.of(head[qid].docids, part) for qid, part in zip(qids, parts, strict=True)}
        return Run(rankings, name=name)

    def store_tokens(self, texts: Texts) -> None:
        """Do nothing: stored tokens are of no use to an SDNet."""

    def score(self, queries: FeatureSource, passages: FeatureSource, query_of: Rows, passage_of: Rows) -> Scores:
        """Score pairs of query numbers and passage numbers."""
        scores = np.empty(len(query_of), np.float32)
        make = PairMaker(queries, passages, self.table, self.device)

        def compute(pairs: Rows) -> None:
            # In the order of the queries, so that each is computed once.
            pairs = pairs[np.argsort(query_of[pairs], kind="stable")]
            scores[pairs] = self.model(*make(query_of[pairs], passage_of[pairs])).cpu().numpy()

        self._compute.each_batch(passages.lengths(passage_of), compute)
        return scores

    def _read(
        self, texts: Sequence[str], max_words: int, tagger: Tagger | None = None
    ) -> tuple[InMemoryFeatures, Rows]:
        """The features of truncated texts, and how many tokens of each were truncated."""
        vocabulary = self.encoder.vocabulary
        whole = vocabulary.read(texts)
        words = vocabulary.fit(whole, max_words, self.encoder.max_pieces)
        tagged = words if tagger is None else tag_words(tagger, vocabulary, words)
        features = InMemoryFeatures(vocabulary, tagged, self.encoder.compute(words))
        return features, _count_pieces(vocabulary, whole) - _count_pieces(vocabulary, words)

    def _by_text(self, texts: Texts | None) -> FindPassages:
        """Compute the features of passages, each once per group of queries."""
        if texts is None:
            raise ValueError("rerank needs texts or passages")

        def find(docids: list[str]) -> tuple[FeatureSource, Rows, Rows]:
            unique, rows = distinct(docids)
            features, cut = self._read(texts.texts(unique), self.model.config.max_words, self.tagger)
            return features, rows, cut[rows]

        return find

    def _mixed(self, passages: PassageFeatures, run: Run) -> FindPassages:
        """Stored features of a run's passages, their layers mixed once for all queries if memory allows."""
        numbers = np.unique(passages.numbers([docid for ranking in run.values() for docid in ranking.docids]))
        size = int(passages.lengths(numbers).sum())
        if 4 * size * self.model.config.width > MIXED_BYTES:
            return lambda docids: (passages, passages.numbers(docids), np.zeros(len(docids), np.int64))
        mixed = np.empty((size, self.model.config.width), np.float32)
        words, ends, end = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)], 0
        tags = [np.zeros((0, 2), np.uint8)]
        with torch.inference_mode():
            for begin in track(range(0, len(numbers), 256), "mixing layers", unit="groups of passages"):
                rows, layers = passages.at(numbers[begin : begin + 256])
                states = self.model.mix_layers(torch.from_numpy(layers).to(self.device))
                mixed[end : end + len(states)] = states.cpu().numpy()
                words.append(rows.numbers)
                ends.append(rows.ends + end)
                if rows.tags is not None:
                    tags.append(rows.tags)
                end += len(states)
        tagged = np.concatenate(tags) if self.tagger is not None else None
        all_words = WordRows(np.concatenate(words), np.concatenate(ends), tagged)
        features = InMemoryFeatures(passages.vocabulary, all_words, mixed)

        def find(docids: list[str]) -> tuple[FeatureSource, Rows, Rows]:
            return features, np.searchsorted(numbers, passages.numbers(docids)), np.zeros(len(docids), np.int64)

        return find


def _count_pieces(vocabulary: WordVocabulary, words: WordRows) -> Rows:
    """The number of tokens of each text."""
    ends = np.concatenate([[0], np.cumsum(vocabulary.pieces.lengths()[words.numbers])])
    return np.diff(ends[words.ends], prepend=0)


def open_encoder(
    config: SdnetConfig, folder: Path, encoder: str | Path | None = None, device: str | None = None
) -> FeatureEncoder:
    """Open the frozen encoder of a network. Raises unless it is the one the network was trained on."""
    name = encoder or config.encoder
    try:
        opened = FeatureEncoder.from_pretrained(name, layers=config.layers, device=device)
    except RankwellError as error:
        raise InputError(
            folder, None, f"cannot open its frozen encoder; give its folder as encoder ({error})"
        ) from None
    if opened.digest != config.encoder_digest:
        raise InputError(folder, None, f"{find_model(name)} is not the encoder it was trained on")
    return opened


def _open_tagger(config: SdnetConfig, folder: Path) -> Tagger | None:
    """Open the tagger of a network. Raises unless it is the version that the network was trained with."""
    if config.tagger is None:
        return None
    tagger = open_tagger(config.tagger)
    if tagger.version != config.tagger_version:
        raise InputError(folder, None, f"was trained with the tagger {config.tagger_version}, found {tagger.version}")
    return tagger


def open_table(
    config: SdnetConfig, encoder: FeatureEncoder, folder: Path, vectors: str | Path | None = None
) -> WordTable:
    """Open the word vectors of a network. Raises unless they are those the network was trained on."""
    name = vectors or config.vectors
    if name is None:
        return WordTable(encoder.vocabulary, encoder.encoder, encoder.device)
    opened = open_vectors(find_vectors(name))
    if opened.digest != config.vectors_digest:
        raise InputError(folder, None, f"{name} does not have the word vectors it was trained on")
    return WordTable(encoder.vocabulary, opened, encoder.device)
