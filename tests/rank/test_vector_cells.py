"""Cells of vectors around k-means centroids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from rankwell.core.shards import Shards, map_shards
from rankwell.rank.passage_vectors import PassageVectors
from rankwell.rank.vector_codes import centre, count_cells, nearest_cells, spread, train_centroids

WIDTH = 16


def clusters(folder: Path, count: int) -> tuple[PassageVectors, np.ndarray]:
    """Vectors near the unit vectors of 8 axes, document by document."""
    half = (np.eye(8, WIDTH)[np.arange(count) % 8] + 0.01).astype(np.float16)
    half += np.random.default_rng(0).normal(scale=0.05, size=half.shape).astype(np.float16)
    shards = Shards(folder, count, 256, {}, suffix=".f16")
    map_shards(shards, lambda items, file: file.write(half[items.start : items.stop].data) and None)
    return PassageVectors(shards, WIDTH), half.astype(np.float32)


def test_few_documents_are_one_cell() -> None:
    assert count_cells(1) == count_cells(199_999) == 1
    assert count_cells(241_186) == 256
    assert count_cells(1_000_000) == count_cells(100_000_000) == 1024


def test_a_single_centroid_is_the_mean(tmp_path: Path) -> None:
    vectors, values = clusters(tmp_path, 600)
    np.testing.assert_array_equal(train_centroids(vectors, 1), centre(vectors)[None])
    np.testing.assert_allclose(centre(vectors), values.mean(axis=0), atol=1e-3)
    assert not nearest_cells(torch.from_numpy(values), torch.zeros(1, WIDTH)).any()


def test_clusters_become_cells(tmp_path: Path) -> None:
    vectors, values = clusters(tmp_path, 2000)
    centroids = train_centroids(vectors, 32)
    np.testing.assert_array_equal(centroids, train_centroids(vectors, 32))
    cells = nearest_cells(torch.from_numpy(values), torch.from_numpy(centroids))
    distances = np.linalg.norm(values[:, None] - centroids, axis=2)
    np.testing.assert_array_equal(cells, distances.argmin(axis=1))
    # No cell mixes vectors of two axes.
    assert all(len(set(np.flatnonzero(cells == cell) % 8)) <= 1 for cell in range(32))


def test_numbers_are_spread_over_all() -> None:
    assert spread(5, 10).tolist() == [0, 1, 2, 3, 4]
    assert spread(101, 3).tolist() == [0, 50, 100]
