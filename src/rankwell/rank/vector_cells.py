"""Cells of vectors: k-means centroids, each with the vectors nearest to it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankwell.core.types import Rows
from rankwell.models.bi_encoder import Vectors
from rankwell.rank.passage_vectors import PassageVectors

FEWEST_IN_CELLS = 200_000
"""Among fewer documents comparing all codes is cheap, and there is one cell."""
CELL_SIZE, MOST_CELLS = 1000, 1024
TRAINED_ON, ROUNDS = 32, 6
"""Vectors of the sample for each cell, and how often the centroids are moved."""
CENTRE_SAMPLE = 1 << 10
_VECTORS_AT_A_TIME = 1 << 13


def count_cells(documents: int) -> int:
    """The number of cells for so many documents: a power of two."""
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
        # In 16 bits, so that they hardly depend on the order of the sums.
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
