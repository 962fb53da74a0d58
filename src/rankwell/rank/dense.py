"""Dense ranking: re-ranking and exact search by a bi-encoder's similarity.

The vectors of a store's documents are stored beside its texts, in fp16 and memory-mapped, under the name of the model
that computed them. They are computed in shards (:mod:`rankwell.core.shards`), so interrupted work can be resumed.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.mapped import MappedArray
from rankwell.core.shards import Shards, map_shards, recorded_size
from rankwell.core.types import Rows
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.stored import StoredTokens
from rankwell.models.bi_encoder import BiEncoder, Vectors
from rankwell.models.compute import lane_threads
from rankwell.models.devices import Precision
from rankwell.models.kernels.top_k import top_k
from rankwell.rank.rankers import open_encoder, queries_by_id
from rankwell.rank.texts import Texts, is_writable, stores_of
from rankwell.retrieve.bm25 import Hits
from rankwell.retrieve.index import Index
from rankwell.retrieve.numbering import NumberedDocuments, NumberedRun

SMALLEST_SHARD, LARGEST_SHARD = 1 << 5, 1 << 14
SHARD_OPERATIONS = 1.4e12
"""Arithmetic operations of a shard on a CPU. If interrupted, at most a shard's work is lost."""
WORTH_STORING = 0.5
"""The vectors of a whole collection are computed and stored if a run needs at least this part of its documents."""
DOCUMENTS_AT_A_TIME = (1 << 14, 1 << 18)
"""Documents whose best are found together: the fewer queries, the more."""
FEW_QUERIES = 4
"""Up to this many queries are compared one by one; more together, as a matrix product."""
PIECE = 1 << 11
"""Vectors converted to fp32 at once on a CPU: 3 MB of MiniLM's."""
SCORES_AT_A_TIME = {"cuda": 1 << 28, "cpu": 1 << 24}
DEEP, TIES = 1000, 100
"""Search goes at least this deep, and this far below the requested depth: documents with equal scores are ordered by
id, so a short list must be the top of a long one."""
_ON_ARM = platform.machine() in ("aarch64", "arm64")
Half = NDArray[np.float16]
Block = NDArray[np.floating]


class PassageVectors:
    """The vectors of all documents of a store, numbered as the store numbers them."""

    def __init__(self, store: DocumentStore, shards: Shards, width: int):
        shards.check()
        self.store, self.width = store, width
        self.folder = shards.folder
        self._parts = [
            shards.map(number, np.float16, (len(shards.items(number)), width)) for number in range(len(shards))
        ]
        self._size = shards.size
        self._finite: set[MappedArray] = set()
        """Those whose numbers have been looked at."""

    @classmethod
    def open(cls, store: DocumentStore, encoder: BiEncoder, *, shard_size: int | None = None) -> PassageVectors:
        """Open the vectors stored beside the store's texts, after computing those that are missing."""
        shards = _shards(store, encoder, shard_size)
        if shards.pending():
            _compute(store, encoder, shards)
        return cls(store, shards, encoder.width)

    @staticmethod
    def is_complete(store: DocumentStore, encoder: BiEncoder) -> bool:
        """Whether all vectors are stored."""
        return not _shards(store, encoder).pending()

    def __len__(self) -> int:
        return len(self.store)

    def at(self, numbers: Rows) -> Half:
        """The vectors (N, H) of these documents."""
        vectors = np.empty((len(numbers), self.width), np.float16)
        shard_of = numbers // self._size
        for shard in np.unique(shard_of):
            rows = shard_of == shard
            part, local = self._parts[shard], numbers[rows] - shard * self._size
            part.check(local, local + 1)
            vectors[rows] = part.values[local]
        if not np.isfinite(vectors).all():
            raise InputError(self.folder, None, "damaged: a vector has numbers that are not finite")
        return vectors

    def blocks(self) -> Iterator[Half]:
        """All vectors, in the documents' order."""
        for part in self._parts:
            block = part.whole()
            if part not in self._finite:
                if not np.isfinite(block).all():
                    raise InputError(part.path, None, "damaged: a vector has numbers that are not finite")
                self._finite.add(part)
            yield block


@dataclass(frozen=True)
class VectorsJob:
    """Computing the vectors of a store's documents, for the workers of a cluster."""

    store: Path
    encoder: str
    device: str | None = None
    precision: Precision = "auto"

    def prepare(self) -> Shards:
        """See :class:`~rankwell.core.jobs.Job`. Tokenises the documents, once for all workers."""
        store, encoder = DocumentStore.open(self.store), open_encoder(self.encoder, "cpu", self.precision)
        shards = _shards(store, encoder)
        if shards.pending() and encoder.takes_tokens:
            StoredTokens.open(store, encoder.tokenizer)
        return shards

    def work(self, shards: Shards) -> None:
        """See :class:`~rankwell.core.jobs.Job`."""
        _compute(DocumentStore.open(self.store), open_encoder(self.encoder, self.device, self.precision), shards)


def _compute(store: DocumentStore, encoder: BiEncoder, shards: Shards) -> None:
    """Compute the shards that are not done."""
    # Dense layers are applied to stored vectors, which are much more expensive to compute.
    base = None if encoder.base is None else PassageVectors.open(store, encoder.base)
    tokens = StoredTokens.open(store, encoder.tokenizer) if base is None and encoder.takes_tokens else None

    def work(items: range, file: IO[bytes]) -> None:
        numbers = np.arange(items.start, items.stop)
        if base is not None:
            vectors = encoder.map_documents(base.at(numbers))
        elif tokens is not None:
            vectors = encoder.encode_tokens(tokens, numbers)
        else:
            vectors = encoder.encode_documents(store.texts_at(numbers))
        half = vectors.astype(np.float16)
        if (wrong := ~np.isfinite(half).all(axis=1)).any():
            docid = store.docids[items.start + int(wrong.argmax())]
            raise RankwellError(f"the vector of document {docid!r} has numbers that are not finite in 16 bits")
        file.write(half.data)

    how = " in int8 (exact: --precision fp32)" if encoder.precision == "int8" else ""
    map_shards(shards, work, description=f"computing vectors{how}")


def _shards(store: DocumentStore, encoder: BiEncoder, size: int | None = None) -> Shards:
    """The shards of the encoder's vectors; those of the exact ones if they are complete, made on a GPU, say."""
    if not encoder.name:
        raise RankwellError("this bi-encoder has no name to store its vectors under")
    exact, own = (_shards_named(name, store, encoder, size) for name in (encoder.exact_name, encoder.name))
    return exact if exact.folder.is_dir() and not exact.pending() else own


def _shards_named(name: str, store: DocumentStore, encoder: BiEncoder, size: int | None) -> Shards:
    folder = store.folder / f"vectors-{name}"
    config = {"model": name, "tokens": encoder.tokenizer.digest, "width": encoder.width}
    size = size or recorded_size(folder) or shard_size(encoder)
    return Shards(folder, len(store), size, config, suffix=".f16")


def shard_size(encoder: BiEncoder) -> int:
    """The documents of a shard: a power of two with some 20 seconds of work for two cores in fp32."""
    if encoder.device.type != "cpu" or encoder.base is not None:
        return LARGEST_SHARD
    config, tokens = encoder.encoder.config, encoder.reader.template.max_length / 2
    operations = 24 * config.num_hidden_layers * config.hidden_size**2 * tokens
    fitting = int(SHARD_OPERATIONS / operations)
    return min(LARGEST_SHARD, max(SMALLEST_SHARD, 1 << max(0, fitting.bit_length() - 1)))


def search_vectors(
    queries: Vectors, blocks: Iterator[Block], k: int, *, device: torch.device | str = "cpu"
) -> tuple[Rows, Vectors]:
    """The ``k`` documents nearest to each query, best first: their numbers and similarities, both (Q, k).

    Exact: every document is compared, in fp32. ``blocks`` are the documents' vectors in order.
    """
    device = torch.device(device)
    vectors = torch.from_numpy(np.ascontiguousarray(queries, np.float32)).to(device)
    scores = torch.full((len(vectors), 0), 0.0, device=device)
    numbers = torch.zeros((len(vectors), 0), dtype=torch.int64, device=device)
    first = 0
    scores_at_a_time, (fewest, most) = SCORES_AT_A_TIME.get(device.type, 1 << 24), DOCUMENTS_AT_A_TIME
    for group in _groups(blocks, min(max(scores_at_a_time // max(1, len(vectors)), fewest), most)):
        products = _on_cpu(group) if device.type == "cpu" else _on_device(group, device)
        count = sum(map(len, group))
        step = max(1, scores_at_a_time // max(1, count))
        parts = [top_k(products(vectors[b : b + step]), k) for b in range(0, len(vectors), step)]
        if parts:
            scores = torch.cat([scores, torch.cat([values for values, _ in parts])], dim=1)
            numbers = torch.cat([numbers, torch.cat([places for _, places in parts]) + first], dim=1)
            scores, order = top_k(scores, k)
            numbers = numbers.gather(1, order)
        first += count
    return numbers.cpu().numpy(), scores.cpu().numpy()


def _on_device(group: Sequence[Block], device: torch.device) -> Callable[[Tensor], Tensor]:
    documents = torch.from_numpy(np.concatenate(group)).to(device).float()
    return lambda queries: queries @ documents.T


def _on_cpu(group: Sequence[Block]) -> Callable[[Tensor], Tensor]:
    """Like :func:`_on_device`, but converts to fp32 piece by piece to stay in the processor's cache."""
    count = sum(map(len, group))

    def products(queries: Tensor) -> Tensor:
        scores = queries.new_empty(len(queries), count)
        if len(queries) <= FEW_QUERIES and _has_kernel(group[0]):
            _scan(group, queries.numpy(), scores.numpy())
            return scores
        narrow = np.empty((min(PIECE, count), queries.shape[1]), group[0].dtype)
        wide = queries.new_empty(narrow.shape)
        for begin, parts in _pieces(group, len(narrow)):
            filled = 0
            for part in parts:
                # numpy converts four times as fast as torch on Arm; elsewhere torch is faster, but takes no read-only
                # array.
                np.copyto((wide.numpy() if _ON_ARM else narrow)[filled : filled + len(part)], part)
                filled += len(part)
            if not _ON_ARM:
                wide.copy_(torch.from_numpy(narrow))
            scores[:, begin : begin + filled] = queries @ wide[:filled].T
        return scores

    return products


def _has_kernel(block: Block) -> bool:
    return _ON_ARM and block.dtype == np.float16 and block.shape[1] % 8 == 0


def _scan(group: Sequence[Block], queries: Vectors, scores: Vectors) -> None:
    """Compare a few queries with all documents, on all cores."""
    from rankwell.rank.dense_kernels import half_products  # imports numba

    def compare(piece: tuple[int, list[Block]]) -> None:
        begin, parts = piece
        for part in parts:
            for query, row in zip(queries, scores, strict=True):
                half_products(part.view(np.uint16), query, row[begin : begin + len(part)])
            begin += len(part)

    lanes = torch.get_num_threads()
    pieces = list(_pieces(group, PIECE))
    if lanes > 1 and len(pieces) > 1:
        for _ in lane_threads(lanes).map(compare, pieces):
            pass
    else:
        for piece in pieces:
            compare(piece)


def _pieces(group: Sequence[Block], size: int) -> Iterator[tuple[int, list[Block]]]:
    """The rows of some blocks, ``size`` at a time: the number of the first, and the parts of blocks they are in."""
    begin, parts, left = 0, [], size
    for block in group:
        taken = 0
        while taken < len(block):
            parts.append(block[taken : taken + left])
            taken += len(parts[-1])
            left -= len(parts[-1])
            if not left:
                yield begin, parts
                begin, parts, left = begin + size, [], size
    if parts:
        yield begin, parts


def _groups(blocks: Iterator[Block], size: int) -> Iterator[list[Block]]:
    """Blocks of at least ``size`` rows together, for fewer and larger steps."""
    group: list[Block] = []
    for block in blocks:
        group.append(block)
        if sum(map(len, group)) >= size:
            yield group
            group = []
    if group:
        yield group


class DenseRanker:
    """Re-ranks and searches with a bi-encoder, given as an object or by name."""

    def __init__(self, encoder: BiEncoder | str):
        self.encoder = encoder if isinstance(encoder, BiEncoder) else BiEncoder.from_pretrained(encoder)
        self._opened: dict[Path, PassageVectors] = {}

    def rerank(
        self, run: Run, queries: Sequence[Query], texts: Texts, *, depth: int = 1000, name: str = "dense"
    ) -> Run:
        """A run of the same candidates, the first ``depth`` of each query, by similarity."""
        if depth < 1:
            raise RankwellError(f"the depth must be at least 1, not {depth}")
        by_qid = queries_by_id(run, queries)
        head = run.head(depth)
        docids = list(dict.fromkeys(chain.from_iterable(ranking.docids for ranking in head.values())))
        documents = self._documents(docids, texts)
        row_of = {docid: row for row, docid in enumerate(docids)}
        vectors = self.encoder.encode_queries([by_qid[qid].text for qid in head])
        rankings = {}
        for query, (qid, ranking) in zip(vectors, head.items(), strict=True):
            candidates = documents[[row_of[docid] for docid in ranking.docids]]
            rankings[qid] = Ranking.of(ranking.docids, candidates.astype(np.float32) @ query)
        return Run(rankings, name=name)

    def search(self, queries: Sequence[Query], texts: Index | DocumentStore, k: int = 1000) -> Run:
        """The ``k`` nearest documents of each query; vectors that are not stored yet are computed first."""
        if k < 1:
            raise RankwellError(f"k must be at least 1, not {k}")
        documents = texts.documents if isinstance(texts, Index) else NumberedDocuments([texts])
        nearest = self._nearest([query.text for query in queries], documents.stores, max(k, DEEP) + TIES)
        parts = []
        for store, (numbers, scores) in zip(documents.stores, nearest, strict=True):
            if (wrong := np.isnan(scores)).any():
                raise RankwellError(f"document {store.docids.strings(numbers[wrong][:1])[0]} has the score NaN")
            # Adding 0 turns -0.0 into 0.0, so that equal scores are also equal bits.
            parts.append(Hits(numbers, scores + np.float32(0)))
        hits = documents.join(parts, k, ordered=False)
        return NumberedRun([(queries, hits)], documents, name="dense")

    def _nearest(
        self, queries: Sequence[str], stores: Sequence[DocumentStore], k: int
    ) -> Iterable[tuple[Rows, Vectors]]:
        """The ``k`` nearest documents of each store: their numbers within it, and their similarities."""
        vectors = self.encoder.encode_queries(queries)
        for store in stores:
            yield search_vectors(vectors, self.vectors(store).blocks(), k, device=self.encoder.device)

    def vectors(self, store: DocumentStore) -> PassageVectors:
        """The vectors of a store's documents."""
        if store.folder not in self._opened:
            self._opened[store.folder] = PassageVectors.open(store, self.encoder)
        return self._opened[store.folder]

    def _has_vectors(self, store: DocumentStore) -> bool:
        return store.folder in self._opened or PassageVectors.is_complete(store, self.encoder)

    def _documents(self, docids: list[str], texts: Texts) -> NDArray[np.floating]:
        """The vectors of documents: stored ones, or computed for these alone if storing all does not pay."""
        stores = stores_of(texts) if self.encoder.name else []
        pays = len(docids) >= WORTH_STORING * sum(map(len, stores)) and all(map(is_writable, stores))
        if not stores or not (pays or all(map(self._has_vectors, stores))):
            return self.encoder.encode_documents(texts.texts(docids))
        documents = NumberedDocuments(stores)
        numbers = documents.find(docids)
        if (missing := numbers < 0).any():
            raise RankwellError(f"document {docids[int(missing.argmax())]!r} is not among the texts")
        vectors = np.empty((len(docids), self.encoder.width), np.float16)
        for store, rows, local in documents.split(numbers):
            vectors[rows] = self.vectors(store).at(local)
        return vectors
