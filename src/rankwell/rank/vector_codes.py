"""Compressed search among vectors: one bit for each number of a vector, and exact similarities for the best.

Vectors are grouped into cells around k-means centroids. The code of a vector is the signs of its difference from the
centroid of its cell, rotated at random so that all bits are equally informative. A search has three steps:

1. Codes are compared with that of the query, bit by bit, which gives a rough estimate of their similarity. Cells that
   are too far from the query are left out. The nearest few per cent remain.
2. The similarities of these are estimated from their codes and the query's numbers, in four bits each.
3. The similarities of the best are computed from their vectors in fp16, exactly.

A result therefore differs from that of exact search only in what the first two steps miss. How far a cell may be is
chosen by the recall that is measured when the codes are made.
"""

from __future__ import annotations

import json
import math
import warnings
from functools import cached_property
from threading import local
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankwell.core.arrays import Rows
from rankwell.core.checksums import checksums_beside
from rankwell.core.errors import InputError, Notice, RankwellError
from rankwell.core.files import checked_binary
from rankwell.core.manifest import read_object
from rankwell.core.shards import Shards, map_shards
from rankwell.models.bi_encoder import Vectors
from rankwell.models.compute import map_lanes
from rankwell.rank.passage_vectors import PassageVectors
from rankwell.rank.vector_records import (
    NUMBER_BITS,
    QUERY_BITS,
    TAIL,
    WIDEST,
    Codes,
    Records,
    code_bytes,
    pack_bits,
    random_rotation,
)
from rankwell.rank.vector_search import search_vectors

FEWEST_IN_CELLS = 200_000
"""Among fewer documents comparing all codes is cheap, and there is one cell."""
CELL_SIZE, MOST_CELLS = 1000, 1024
TRAINED_ON, ROUNDS = 32, 6
"""Vectors of the sample for each cell, and how often the centroids are moved."""
CENTRE_SAMPLE = 1 << 10
_VECTORS_AT_A_TIME = 1 << 13


def count_cells(documents: int) -> int:
    """The number of cells for a number of documents: a power of two."""
    if documents < FEWEST_IN_CELLS:
        return 1
    return min(MOST_CELLS, 1 << max(0, documents // CELL_SIZE).bit_length())


def train_centroids(vectors: PassageVectors, count: int) -> Vectors:
    """The centroids (C, W) of some vectors."""
    if count == 1:
        return centre(vectors)[None]
    sample = torch.from_numpy(vectors.at(spread(len(vectors), count * TRAINED_ON)).astype(np.float32))
    centroids = sample[spread(len(sample), count)].clone()
    for _ in range(ROUNDS):
        cells = torch.from_numpy(nearest_cells(sample, centroids))
        sums = torch.zeros_like(centroids).index_add_(0, cells, sample)
        sizes = torch.bincount(cells, minlength=count)[:, None]
        # In 16 bits, so that the order of the sums rarely changes them.
        centroids = torch.where(sizes > 0, sums / sizes.clamp(min=1), centroids).half().float()
    trained: Vectors = centroids.numpy()
    return trained


def nearest_cells(vectors: Tensor, centroids: Tensor) -> NDArray[np.int64]:
    """The number of the centroid nearest to each vector."""
    if len(centroids) == 1:
        return np.zeros(len(vectors), np.int64)
    lengths = centroids.square().sum(dim=1) / 2
    parts = (vectors[begin : begin + _VECTORS_AT_A_TIME] for begin in range(0, len(vectors), _VECTORS_AT_A_TIME))
    return torch.cat([(part @ centroids.T - lengths).argmax(dim=1) for part in parts]).numpy()


def centre(vectors: PassageVectors) -> Vectors:
    """The mean of a sample of the vectors. In 16 bits, so that it does not depend on the order of the sum."""
    sample = vectors.at(spread(len(vectors), CENTRE_SAMPLE))
    mean: Vectors = sample.mean(axis=0, dtype=np.float64).astype(np.float16).astype(np.float32)
    return mean


def spread(documents: int, count: int) -> Rows:
    """Up to ``count`` numbers of documents, evenly spread over all."""
    return np.unique(np.linspace(0, documents - 1, min(count, documents)).astype(np.int64))


CODES_PER_SHARD = 1 << 20
FEW_ALLOWED = 16
"""If a filter allows less than this part of the documents, or no more than are candidates anyway, all are compared."""
CANDIDATES = 0.005
"""The share of the documents that the first step leaves; at least ``CANDIDATES_PER_HIT`` for each requested one."""
CANDIDATES_PER_HIT, FEWEST_CANDIDATES = 16, 16_000
RESCORED_PER_HIT, FEWEST_RESCORED = 4, 1_500
"""Documents whose exact similarity is computed for each requested one."""
RESCORING_PARTS = 4
"""Parts of one query's rows that threads rescore, so that all cores share its work."""
SAMPLE = 1 << 14
"""Documents from which the limits of the first step are estimated."""
RECALL = "recall.json"
RECALL_DEPTH, RECALL_QUERIES = 100, 64
ENOUGH, REACHES = 0.99, (4.5, 5.0, 5.5, 6.0, 7.0, 8.0)
"""The recall that a search among cells must have, and how far they may be: the shortest reach that has it is taken.
Queries can be harder than the documents it is measured with, so there are no shorter ones."""
_RANGE, _RANGES = 1 << 16, 8
"""Documents that a thread compares with some queries at a time, at least, and into how many ranges more are divided."""
_SUFFIX = ".codes"
_TINY = np.float32(1e-30)
_QUERIES_AT_A_TIME = 64
Mask = NDArray[np.bool_]
"""Which documents may be found."""


class VectorCodes:
    """The codes of the vectors of a store's documents, in a folder beside them."""

    def __init__(self, vectors: PassageVectors, shards: Shards):
        shards.check()
        self.vectors, self.folder = vectors, shards.folder
        width = code_bytes(vectors.width) + TAIL
        self._mapped = [
            shards.map(number, np.uint8, (len(shards.items(number)), width)) for number in range(len(shards))
        ]
        self._centroids = _centroids(vectors, shards)
        self._origin = centre(vectors)
        self._reach = math.inf
        """How far below the limit of candidates a cell's centroid may be, in standard deviations."""

    @classmethod
    def open(cls, vectors: PassageVectors) -> VectorCodes:
        """Open the codes of some vectors. Codes that are missing are made, and the recall of a search is measured."""
        if vectors.width > WIDEST:
            raise RankwellError(f"vectors of {vectors.width:,} numbers cannot be compressed (at most {WIDEST:,})")
        shards = _shards(vectors)
        if shards.pending():
            _compute(vectors, shards)
        codes = cls(vectors, shards)
        if not (codes.folder / RECALL).exists():
            codes._choose_reach()
        codes._reach = codes._recorded("reach", math.inf)
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
        return self._recorded(f"recall@{RECALL_DEPTH}")

    def _recorded(self, name: str, default: float | None = None) -> float:
        path = self.folder / RECALL
        if (checksums := checksums_beside(path)) is not None:
            checksums.check_file(path)
        value = read_object(path).get(name, default)
        if not isinstance(value, float | int):
            raise InputError(path, None, "not a record of a recall")
        return float(value)

    def _choose_reach(self) -> None:
        """Store the shortest reach with the wanted recall, with some documents as queries; if none has it, no limit."""
        queries = self.vectors.at(spread(len(self), RECALL_QUERIES)).astype(np.float32)
        nearest, _ = search_vectors(queries, self.vectors.blocks(), RECALL_DEPTH)
        recall = 0.0
        for reach in (*(REACHES if len(self._centroids) > 1 else ()), math.inf):
            if recall < ENOUGH:
                self._reach = reach
                recall = self._recall_of(queries, nearest)
        record = {f"recall@{RECALL_DEPTH}": round(recall, 4), "queries": RECALL_QUERIES}
        if math.isfinite(self._reach):
            record["reach"] = self._reach
        with checked_binary(self.folder / RECALL) as file:
            file.write(json.dumps(record).encode())
        warnings.warn(
            f"compressed search finds {recall:.1%} of the {RECALL_DEPTH} nearest documents (measured with "
            f"{RECALL_QUERIES} documents as queries; to compare all: --set vectors=exact)",
            Notice,
            stacklevel=3,
        )

    def _recall_of(self, queries: Vectors, nearest: Rows) -> float:
        hits, _ = self.search(queries, nearest.shape[1])
        pairs = zip(nearest, hits, strict=True)
        return float(np.mean([len(np.intersect1d(left, right)) / len(left) for left, right in pairs]))

    def search(self, queries: Vectors, k: int, *, allowed: Mask | None = None) -> tuple[Rows, Vectors]:
        """Like :func:`~rankwell.rank.vector_search.search_vectors`, approximately."""
        k = min(k, len(self))
        if compares_all(len(self), k):
            return search_vectors(queries, self.vectors.blocks(), k, allowed=allowed)
        numbers, scores = np.full((len(queries), k), -1, np.int64), np.zeros((len(queries), k), np.float32)
        for begin in range(0, len(queries), _QUERIES_AT_A_TIME):
            some = slice(begin, begin + _QUERIES_AT_A_TIME)
            self._search(np.ascontiguousarray(queries[some], np.float32), k, numbers[some], scores[some], allowed)
        return numbers, scores

    def _search(self, queries: Vectors, k: int, numbers: Rows, scores: Vectors, allowed: Mask | None) -> None:
        candidates, rescored = _candidates(len(self), k), max(RESCORED_PER_HIT * k, FEWEST_RESCORED)
        few = None
        if allowed is not None:
            count = int(np.count_nonzero(allowed))
            k = min(k, count)
            # Of few documents all are compared; of many, so much more are looked at that enough of them are allowed.
            few = np.flatnonzero(allowed) if count <= max(FEWEST_CANDIDATES, len(self) // FEW_ALLOWED) else None
            candidates = min(len(self), candidates * len(self) // max(count, 1))
        scanned = [] if few is not None else self._scan(queries, max(candidates, rescored))
        parts = RESCORING_PARTS if len(queries) == 1 else 1

        def rescore(query: int) -> None:
            rows = few
            if rows is None:
                rows, estimates = (np.concatenate([part[query][column] for part in scanned]) for column in range(2))
                if allowed is not None:
                    rows, estimates = rows[allowed[rows]], estimates[allowed[rows]]
                if rescored < len(rows):
                    rows = rows[np.argpartition(-estimates, rescored)[:rescored]]
            if len(rows) < k:  # the sample misled, or the cells within reach hold too few
                one = queries[query][None]
                (nearest,), (values,) = search_vectors(one, self.vectors.blocks(), k, allowed=allowed)
                numbers[query, :k], scores[query, :k] = nearest, values
                return
            rows.sort()
            exact = self.vectors.products(rows, queries[query], parts)
            # Ties in the order of the numbers, as in any other list.
            best = np.argsort(-exact, kind="stable")[:k]
            numbers[query, :k], scores[query, :k] = rows[best], exact[best]

        map_lanes(rescore, list(range(len(queries))))

    def _scan(self, queries: Vectors, candidates: int) -> list[list[tuple[Rows, Vectors]]]:
        """The first two steps: for each range of documents and each query, the candidates and their estimates."""
        from rankwell.rank.vector_kernels import scan_cells  # imports numba

        bases: Vectors = queries @ self._centroids.T
        rotated = ((queries - self._origin) @ random_rotation(self.vectors.width)).astype(np.float32, copy=False)
        codes, (planes, weights) = pack_bits(rotated >= 0), _query_planes(rotated)
        limits = self._limits(codes, bases, np.abs(rotated).mean(axis=1), candidates)

        size = max(_RANGE, len(self) // (_RANGES * len(queries)))

        memory = local()  # each thread's memory, which would be made and cleared for each range

        def scan(place: tuple[int, int]) -> list[tuple[Rows, Vectors]]:
            number, begin = place
            part = self._parts[number]
            span = begin, min(begin + size, len(part.records))
            if not hasattr(memory, "hits"):
                memory.hits = np.empty((len(queries), size), np.int64), np.empty((len(queries), size), np.float32)
            (rows, estimates), counts = memory.hits, np.zeros(len(queries), np.int64)
            stored = part.records, part.numbers, part.factors, part.ends
            scan_cells(
                *stored, span, number * CODES_PER_SHARD, limits, codes, planes, weights, bases, rows, estimates, counts
            )
            return [(rows[q, :n].copy(), estimates[q, :n].copy()) for q, n in enumerate(counts.tolist())]

        sizes = [len(mapped.whole()) for mapped in self._mapped]
        return map_lanes(scan, [(n, begin) for n, count in enumerate(sizes) for begin in range(0, count, size)])

    def _limits(self, queries: Codes, bases: Vectors, scales: Vectors, candidates: int) -> NDArray[np.int32]:
        """For each query and cell, in how many bits a candidate may differ; -1 if the cell is too far.

        Some ``candidates`` documents are within the limits. ``bases`` (Q, C) are the products of queries and
        centroids, ``scales`` (Q,) the means of the queries' absolute numbers.
        """
        from rankwell.rank.vector_kernels import bit_distances  # imports numba

        sample, cells, factors = self._sample
        wanted = min(len(sample) - 1, -(-candidates * len(sample) // len(self)))
        width, distances = self.vectors.width, np.empty(len(sample), np.uint16)
        limits = np.empty(bases.shape, np.int32)
        for number, (query, base, scale) in enumerate(zip(queries, bases, scales, strict=True)):
            bit_distances(sample, query, distances)
            estimates = base[cells] + scale * factors * (width - 2 * distances.astype(np.float32))
            limit = -np.partition(-estimates, wanted)[wanted]
            least = (limit - base) / np.maximum(scale * self._factors, _TINY)
            most = np.floor(np.clip((width - least) / 2, -1, width))
            limits[number] = np.where(least <= self._reach * math.sqrt(width), most, -1)
        return limits

    @cached_property
    def _parts(self) -> list[Records]:
        width = code_bytes(self.vectors.width)
        parts = [Records(mapped.whole(), width, len(self._centroids)) for mapped in self._mapped]
        for part, mapped in zip(parts, self._mapped, strict=True):
            # The numbers are addresses in the kernels.
            if part.documents().max(initial=0) >= max(1, len(part.records)):
                raise InputError(mapped.path, None, "damaged: a document that the shard does not have")
        return parts

    @cached_property
    def _factors(self) -> Vectors:
        """The mean factor of each cell."""
        sums, counts = np.zeros(len(self._centroids)), np.zeros(len(self._centroids))
        for part in self._parts:
            sums += np.bincount(part.cells(), part.factors[:, 1], len(sums))
            counts += np.bincount(part.cells(), minlength=len(sums))
        return (sums / np.maximum(counts, 1)).astype(np.float32)

    @cached_property
    def _sample(self) -> tuple[Codes, Rows, Vectors]:
        """Codes of a sample of the documents, the cells they are in, and their factors."""
        places = spread(len(self), SAMPLE)
        codes, cells, factors = [], [], []
        for number, part in enumerate(self._parts):
            some = places[places // CODES_PER_SHARD == number] % CODES_PER_SHARD
            codes.append(part.records[some, : code_bytes(self.vectors.width)])
            cells.append(part.cells()[some])
            factors.append(part.factors[some, 1])
        return np.concatenate(codes), np.concatenate(cells), np.concatenate(factors)


def compares_all(documents: int, k: int) -> bool:
    """Whether there are so few documents that the first step of a search would leave them all."""
    return _candidates(documents, k) >= documents


def _shards(vectors: PassageVectors) -> Shards:
    """The shards of the codes."""
    config = {"vectors": vectors.folder.name, "width": vectors.width, "cells": count_cells(len(vectors))}
    return Shards(vectors.folder / "codes-in-cells", len(vectors), CODES_PER_SHARD, config, suffix=_SUFFIX)


def _centroids(vectors: PassageVectors, shards: Shards) -> Vectors:
    """The centroids of the cells, which are trained first."""
    count = int(shards.config["cells"])
    one = Shards(shards.folder / "centroids", count, count, shards.config, suffix=".f32")
    if one.pending():
        map_shards(one, lambda _, file: _write(file, train_centroids(vectors, count)), description="training cells")
    centroids: Vectors = one.map(0, np.float32, (count, vectors.width)).whole().copy()  # torch wants to write
    return centroids


def _write(file: IO[bytes], values: NDArray[Any]) -> None:
    file.write(np.ascontiguousarray(values).data)


def _candidates(documents: int, k: int) -> int:
    """How many documents the first step of a search leaves."""
    return max(round(CANDIDATES * documents), CANDIDATES_PER_HIT * k, FEWEST_CANDIDATES)


def _compute(vectors: PassageVectors, shards: Shards) -> None:
    """Make the codes that are missing."""
    centroids, rotation = (
        torch.from_numpy(_centroids(vectors, shards)),
        torch.from_numpy(random_rotation(vectors.width)),
    )
    width, origin = code_bytes(vectors.width), centre(vectors) @ random_rotation(vectors.width)

    def work(items: range, file: IO[bytes]) -> None:
        records = np.empty((len(items), width + TAIL), np.uint8)
        tails = records.view(np.uint32)[:, width // 4 :]
        for begin in range(0, len(items), _VECTORS_AT_A_TIME):
            numbers = np.arange(begin, min(begin + _VECTORS_AT_A_TIME, len(items)))
            some = torch.from_numpy(vectors.at(items.start + numbers).astype(np.float32))
            cells = nearest_cells(some, centroids)
            rest = ((some - centroids[cells]) @ rotation).numpy()
            records[numbers, :width] = pack_bits(rest >= 0)
            tails[numbers, 0] = cells << NUMBER_BITS | numbers
            # The product of a vector with a query is that of its centroid, plus that of the signs with the query
            # without the origin times the factor, on average, plus the term.
            tails.view(np.float32)[numbers, 1] = (rest**2).sum(axis=1) / np.maximum(np.abs(rest).sum(axis=1), _TINY)
            tails.view(np.float32)[numbers, 2] = rest @ origin
        _write(file, records[np.argsort(tails[:, 0])])

    map_shards(shards, work, description="compressing vectors")


def _query_planes(rotated: Vectors) -> tuple[Codes, Vectors]:
    """The numbers of queries (Q, W) in a few bits: planes of bits (Q, P, B), and what each is worth (Q, P + 1).

    The first plane is all ones and worth the least number, the others are the digits of the rest. The product of a
    query and signs, of which 1 bits are positive, is the last weight and what the bits in common with each plane are
    worth.
    """
    least, most = rotated.min(axis=1, keepdims=True), rotated.max(axis=1, keepdims=True)
    step = np.maximum((most - least) / (2**QUERY_BITS - 1), _TINY)
    digits = np.rint((rotated - least) / step).astype(np.uint8)
    bits = np.stack([np.ones_like(digits), *(digits >> place & 1 for place in range(QUERY_BITS))], axis=1)
    planes = pack_bits(bits.reshape(-1, rotated.shape[1]) > 0).reshape(len(rotated), QUERY_BITS + 1, -1)
    sums = (least + step * digits).sum(axis=1, keepdims=True)
    weights = np.concatenate([2 * least, *(2 * step * 2**place for place in range(QUERY_BITS)), -sums], axis=1)
    return planes, weights.astype(np.float32)
