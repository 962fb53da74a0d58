"""Compressed search among vectors: one bit for each number of a vector, and exact similarities for the best.

The code of a vector is the signs of its numbers after the mean of the collection is subtracted and the rest is rotated
at random, so that all bits are equally informative. A search has three steps:

1. All codes are compared with that of the query, bit by bit. The nearest few per cent remain.
2. Their similarities are estimated from their codes and the query's numbers, in four bits each.
3. The similarities of the best are computed from their vectors in fp16, exactly.

A result therefore differs from that of exact search only in what the first two steps miss, which is measured when the
codes are made.
"""

from __future__ import annotations

import json
import warnings
from functools import cached_property, lru_cache
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray

from rankwell.core.checksums import checksums_beside
from rankwell.core.errors import InputError, Notice, RankwellError
from rankwell.core.files import checked_binary
from rankwell.core.jsonfile import read_object
from rankwell.core.shards import Shards, map_shards
from rankwell.core.types import Rows
from rankwell.models.bi_encoder import Vectors
from rankwell.models.compute import map_lanes
from rankwell.rank.passage_vectors import PassageVectors
from rankwell.rank.vector_search import has_kernel, search_vectors

CODES_PER_SHARD = 1 << 20
CODE_UNIT = 16
"""The bytes of a code are a multiple of this, as the kernels read them."""
WIDEST = 31 * 8 * CODE_UNIT
"""The kernels count the bits of wider codes wrongly."""
CANDIDATES = 0.005
"""The share of the documents that the first step leaves; at least ``CANDIDATES_PER_HIT`` for each requested one."""
CANDIDATES_PER_HIT, FEWEST_CANDIDATES = 16, 16_000
RESCORED_PER_HIT, FEWEST_RESCORED = 4, 3_000
"""Documents whose exact similarity is computed for each requested one."""
RESCORING_PARTS = 8
"""Parts of one query's rows that threads rescore, so that all cores share its work."""
QUERY_BITS = 4
SAMPLE = 1 << 14
"""Documents from which the limits of the first step and the mean of a collection are estimated."""
RECALL = "recall.json"
RECALL_DEPTH, RECALL_QUERIES = 100, 64
_RANGE = 1 << 16
"""Documents that a thread compares at a time."""
_QUERIES_AT_A_TIME = 64
_VECTORS_AT_A_TIME = 1 << 13
Codes = NDArray[np.uint8]


class VectorCodes:
    """The codes of the vectors of a store's documents, in the folder ``codes`` beside them."""

    def __init__(self, vectors: PassageVectors, shards: Shards):
        shards.check()
        self.vectors = vectors
        width = code_bytes(vectors.width)
        self._parts = [
            shards.map(number, np.uint8, (len(shards.items(number)), width)) for number in range(len(shards))
        ]
        self._centre = _centre(vectors)

    @classmethod
    def open(cls, vectors: PassageVectors) -> VectorCodes:
        """Open the codes of some vectors. Codes that are missing are made, and the recall of a search is measured."""
        if vectors.width > WIDEST:
            raise RankwellError(f"vectors of {vectors.width:,} numbers cannot be compressed (at most {WIDEST:,})")
        shards = _shards(vectors)
        if shards.pending():
            _compute(vectors, shards)
        codes = cls(vectors, shards)
        if not (shards.folder / RECALL).exists():
            recall = codes.measure_recall()
            record = {f"recall@{RECALL_DEPTH}": round(recall, 4), "queries": RECALL_QUERIES}
            with checked_binary(shards.folder / RECALL) as file:
                file.write(json.dumps(record).encode())
            warnings.warn(
                f"compressed search finds {recall:.1%} of the {RECALL_DEPTH} nearest documents (measured with "
                f"{RECALL_QUERIES} documents as queries; to compare all: --vectors exact)",
                Notice,
                stacklevel=2,
            )
        return codes

    @staticmethod
    def is_complete(vectors: PassageVectors) -> bool:
        """Whether all codes are stored."""
        return not _shards(vectors).pending()

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def recall(self) -> float:
        """The share of the 100 nearest documents that compressed search finds, as measured when the codes were made."""
        path = self.vectors.folder / "codes" / RECALL
        if (checksums := checksums_beside(path)) is not None:
            checksums.check_file(path)
        value = read_object(path).get(f"recall@{RECALL_DEPTH}")
        if not isinstance(value, float | int):
            raise InputError(path, None, "not a record of a recall")
        return float(value)

    def measure_recall(self, queries: int = RECALL_QUERIES, k: int = RECALL_DEPTH) -> float:
        """The share of the ``k`` nearest documents that compressed search finds, with some documents as queries."""
        rows = _spread(len(self), queries)
        vectors = self.vectors.at(rows).astype(np.float32)
        exact, _ = search_vectors(vectors, self.vectors.blocks(), k)
        found, _ = self.search(vectors, k)
        pairs = zip(exact, found, strict=True)
        return float(np.mean([len(np.intersect1d(left, right)) / len(left) for left, right in pairs]))

    def search(self, queries: Vectors, k: int) -> tuple[Rows, Vectors]:
        """Like :func:`~rankwell.rank.vector_search.search_vectors`, approximately."""
        k = min(k, len(self))
        if compares_all(len(self), k):
            return search_vectors(queries, self.vectors.blocks(), k)
        numbers, scores = np.empty((len(queries), k), np.int64), np.empty((len(queries), k), np.float32)
        for begin in range(0, len(queries), _QUERIES_AT_A_TIME):
            some = slice(begin, begin + _QUERIES_AT_A_TIME)
            self._search(np.ascontiguousarray(queries[some], np.float32), k, numbers[some], scores[some])
        return numbers, scores

    def _search(self, queries: Vectors, k: int, numbers: Rows, scores: Vectors) -> None:
        rotated = (queries - self._centre) @ _rotation(self.vectors.width)
        codes, (planes, weights) = _pack(rotated >= 0), _query_planes(rotated.astype(np.float32))
        found = self._scan(codes, planes, weights, self._limits(codes, _candidates(len(self), k)))
        rescored = max(RESCORED_PER_HIT * k, FEWEST_RESCORED)
        # The kernel's products do not depend on how the rows are divided.
        divides = len(queries) == 1 and has_kernel(self.vectors.width)

        def rescore(query: int) -> None:
            rows, estimates = (np.concatenate([part[query][column] for part in found]) for column in range(2))
            if rescored < len(rows):
                rows = rows[np.argpartition(-estimates, rescored)[:rescored]]
            rows.sort()
            parts = np.array_split(rows, RESCORING_PARTS) if divides else [rows]
            exact = np.concatenate(map_lanes(lambda part: self.vectors.products(part, queries[query]), parts))
            # Ties in the order of the numbers, as in any other list.
            best = np.argsort(-exact, kind="stable")[:k]
            numbers[query], scores[query] = rows[best], exact[best]

        map_lanes(rescore, list(range(len(queries))))

    def _limits(self, queries: Codes, candidates: int) -> NDArray[np.uint16]:
        """For each query, the distance that some ``candidates`` documents do not exceed."""
        from rankwell.rank.vector_kernels import bit_distances  # imports numba

        sample = self._sample
        wanted = min(len(sample) - 1, -(-candidates * len(sample) // len(self)))
        distances, limits = np.empty(len(sample), np.uint16), np.empty(len(queries), np.uint16)
        for number, query in enumerate(queries):
            bit_distances(sample, query, distances)
            limits[number] = np.partition(distances, wanted)[wanted]
        return limits

    @cached_property
    def _sample(self) -> Codes:
        rows = _spread(len(self), SAMPLE)
        sample = np.empty((len(rows), self._parts[0].values.shape[1]), np.uint8)
        for number, part in enumerate(self._parts):
            inside = rows // CODES_PER_SHARD == number
            sample[inside] = part.whole()[rows[inside] % CODES_PER_SHARD]
        return sample

    def _scan(
        self, queries: Codes, planes: Codes, weights: Vectors, limits: NDArray[np.uint16]
    ) -> list[list[tuple[Rows, Vectors]]]:
        """The first two steps: for each range of documents and each query, the candidates and their estimates."""
        from rankwell.rank.vector_kernels import scan_codes  # imports numba

        def scan(place: tuple[int, int]) -> list[tuple[Rows, Vectors]]:
            part, begin = place
            codes = self._parts[part].values[begin : begin + _RANGE]
            rows, estimates = (
                np.empty((len(queries), len(codes)), np.int64),
                np.empty((len(queries), len(codes)), np.float32),
            )
            counts, first = np.zeros(len(queries), np.int64), part * CODES_PER_SHARD + begin
            scan_codes(codes, first, limits, queries, planes, weights, rows, estimates, counts)
            return [(rows[q, :n].copy(), estimates[q, :n].copy()) for q, n in enumerate(counts.tolist())]

        sizes = [len(part.whole()) for part in self._parts]
        return map_lanes(scan, [(n, begin) for n, size in enumerate(sizes) for begin in range(0, size, _RANGE)])


def code_bytes(width: int) -> int:
    """The bytes of the code of a vector."""
    return -(-width // (8 * CODE_UNIT)) * CODE_UNIT


def compares_all(documents: int, k: int) -> bool:
    """Whether there are so few documents that the first step of a search would leave them all."""
    return _candidates(documents, k) >= documents


def _shards(vectors: PassageVectors) -> Shards:
    config = {"vectors": vectors.folder.name, "width": vectors.width}
    return Shards(vectors.folder / "codes", len(vectors), CODES_PER_SHARD, config, suffix=".bits")


def _candidates(documents: int, k: int) -> int:
    """How many documents the first step of a search leaves."""
    return max(round(CANDIDATES * documents), CANDIDATES_PER_HIT * k, FEWEST_CANDIDATES)


def _compute(vectors: PassageVectors, shards: Shards) -> None:
    """Make the codes that are missing."""
    centre, rotation = _centre(vectors), torch.from_numpy(_rotation(vectors.width))

    def work(items: range, file: IO[bytes]) -> None:
        for begin in range(items.start, items.stop, _VECTORS_AT_A_TIME):
            some = vectors.at(np.arange(begin, min(begin + _VECTORS_AT_A_TIME, items.stop))).astype(np.float32)
            file.write(_pack((torch.from_numpy(some - centre) @ rotation).numpy() >= 0).data)

    map_shards(shards, work, description="compressing vectors")


def _pack(bits: NDArray[np.bool_]) -> Codes:
    """Bits (N, W) as bytes (N, B)."""
    packed = np.packbits(bits, axis=1)
    return np.pad(packed, ((0, 0), (0, code_bytes(bits.shape[1]) - packed.shape[1])))


def _query_planes(rotated: Vectors) -> tuple[Codes, Vectors]:
    """The numbers of queries (Q, W) in a few bits: planes of bits (Q, P, B), and what each is worth (Q, P).

    The first plane is all ones and worth the least number, the others are the digits of the rest.
    """
    least, most = rotated.min(axis=1, keepdims=True), rotated.max(axis=1, keepdims=True)
    step = np.maximum((most - least) / (2**QUERY_BITS - 1), np.float32(1e-30))
    digits = np.rint((rotated - least) / step).astype(np.int64)
    bits = [np.ones_like(digits), *(digits >> place & 1 for place in range(QUERY_BITS))]
    planes = np.stack([_pack(plane > 0) for plane in bits], axis=1)
    weights = np.concatenate([least, *(step * 2**place for place in range(QUERY_BITS))], axis=1)
    return planes, weights.astype(np.float32)


def _centre(vectors: PassageVectors) -> Vectors:
    """The mean of a sample of the vectors. In 16 bits, so that it does not depend on the order of the sum."""
    sample = vectors.at(_spread(len(vectors), SAMPLE // 16))
    mean: Vectors = sample.mean(axis=0, dtype=np.float64).astype(np.float16).astype(np.float32)
    return mean


@lru_cache(maxsize=4)
def _rotation(width: int) -> Vectors:
    """A random orthogonal matrix (W, W), the same on every machine."""
    # RandomState's numbers are the same in all versions of numpy, and with a positive diagonal a QR factorisation is
    # unique.
    normal = np.random.RandomState(0).standard_normal((width, width))
    orthogonal, triangle = np.linalg.qr(normal)
    rotation: Vectors = (orthogonal * np.sign(np.diag(triangle))).astype(np.float32)
    return rotation


def _spread(documents: int, count: int) -> Rows:
    """Up to ``count`` numbers of documents, evenly spread over all."""
    return np.unique(np.linspace(0, documents - 1, min(count, documents)).astype(np.int64))
