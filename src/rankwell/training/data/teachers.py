"""Teachers: models whose scores a student learns; bi-encoders, cross-encoders, or several of them.

Both distillation losses depend on score differences only, so a teacher's mean does not matter but its unit does. Before
they are averaged, teachers are brought to one unit: the standard deviation of their scores within a list.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankwell.core.arrays import Rows, Scores, save_array
from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_folder
from rankwell.core.manifest import digest
from rankwell.core.mapped import map_array
from rankwell.corpus.records import Query, Ranking, Run
from rankwell.corpus.store import DocumentStore
from rankwell.models.bi_encoder import BiEncoder, Vectors
from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.names import find_model
from rankwell.rank.passage_vectors import PassageVectors
from rankwell.rank.ranker import Ranker
from rankwell.rank.vector_search import search_vectors
from rankwell.training.stage import write_once

PAIRS_AT_A_TIME = 1 << 16


class Teacher(ABC):
    """Scores documents for queries, both by number."""

    def scores(self, queries: Rows, documents: Rows) -> Scores:
        """The scores (L, N) of lists: query ``queries[i]`` with the documents ``documents[i]`` (L, N)."""
        scores = np.empty(documents.shape, np.float32)
        step = max(1, PAIRS_AT_A_TIME // max(1, documents.shape[1]))
        for begin in range(0, len(queries), step):
            part = slice(begin, begin + step)
            scores[part] = self._score(queries[part], documents[part])
        return scores

    @abstractmethod
    def _score(self, queries: Rows, documents: Rows) -> Scores:
        """The same, of as many lists as fit into memory."""


class BiEncoderTeacher(Teacher):
    """Scores by the cosine of precomputed vectors; on a GPU they are held in its memory."""

    def __init__(self, queries: Vectors, vectors: PassageVectors, device: torch.device, prompt: str = ""):
        self.queries = queries
        self.vectors = vectors
        self.device = device
        self.name = vectors.folder.name + prompt
        """Identifies what decides which documents are near: their vectors, and the queries' ``prompt``."""
        self._on_device: tuple[Tensor, Tensor] | None = None

    def _score(self, queries: Rows, documents: Rows) -> Scores:
        if self.device.type != "cuda":
            vectors = self.vectors.at(documents.reshape(-1)).astype(np.float32).reshape(*documents.shape, -1)
            scores: Scores = np.einsum("lh,lnh->ln", self.queries[queries], vectors)
            return scores
        if self._on_device is None:
            blocks = [torch.from_numpy(np.array(block)).to(self.device) for block in self.vectors.blocks()]
            self._on_device = torch.from_numpy(self.queries).to(self.device), torch.cat(blocks)
        query_vectors, document_vectors = self._on_device
        rows, numbers = torch.from_numpy(queries).to(self.device), torch.from_numpy(documents).to(self.device)
        return torch.einsum("lh,lnh->ln", query_vectors[rows], document_vectors[numbers].float()).cpu().numpy()

    def similarities(self, queries: Rows, documents: Rows) -> Tensor:
        """The cosines (Q, M) of all these queries with all these documents, whose vectors are read from disk."""
        of_queries, vectors = torch.from_numpy(self.queries[queries]), torch.from_numpy(self.vectors.at(documents))
        return of_queries.to(self.device) @ vectors.to(self.device).float().T

    def nearest(self, k: int) -> Rows:
        """The ``k`` documents nearest to each query, best first: (Q, k)."""
        numbers, _ = search_vectors(self.queries, self.vectors.blocks(), k, device=self.device)
        return numbers


class CrossEncoderTeacher(Teacher):
    """A trained ranker."""

    def __init__(self, ranker: Ranker, queries: Sequence[str], store: DocumentStore):
        self._ranker, self._queries, self._store = ranker, queries, store

    def _score(self, queries: Rows, documents: Rows) -> Scores:
        """Re-ranks the lists as a run, which reads the tokens that are stored with the documents."""
        docids = self._store.docids.strings(documents.reshape(-1))
        rows = np.repeat(queries, documents.shape[1]).tolist()
        lists: dict[int, dict[str, None]] = {}
        for row, docid in zip(rows, docids, strict=True):
            lists.setdefault(row, {})[docid] = None
        run = Run({str(row): Ranking.of(list(found), np.zeros(len(found))) for row, found in lists.items()})
        asked = [Query(str(row), self._queries[row]) for row in lists]
        ranked = self._ranker.rerank(run, asked, self._store, depth=max(map(len, lists.values())))
        rankings = {row: ranked[str(row)] for row in lists}
        by_row = {row: dict(zip(own.docids, own.scores.tolist(), strict=True)) for row, own in rankings.items()}
        scores = [by_row[row][docid] for row, docid in zip(rows, docids, strict=True)]
        return np.array(scores, np.float32).reshape(documents.shape)


def load_teachers(
    store: DocumentStore, names: Sequence[str], texts: Sequence[str], max_length: int | None, device: str | None
) -> list[Teacher]:
    """The teachers, ready to score the queries ``texts`` by number."""
    teachers: list[Teacher] = []
    for folder in map(find_model, names):
        if describe(folder).scores_pairs:
            ranker = Ranker.from_pretrained(folder, engine={"device": device})
            teachers.append(CrossEncoderTeacher(ranker, texts, store))
        else:
            teachers.append(load_bi_encoder(store, folder, texts, max_length, device))
    return teachers


def load_bi_encoder(
    store: DocumentStore, folder: Path, texts: Sequence[str], max_length: int | None, device: str | None
) -> BiEncoderTeacher:
    """A bi-encoder as a teacher of the queries ``texts``, whose vectors are stored beside the collection's.

    Of several processes, the first encodes the queries and the others wait: all must see the same vectors.
    """
    encoder = BiEncoder.from_pretrained(folder, device=device, max_length=max_length)
    place = store.folder / f"asked-{digest([encoder.name, [encoder.query_prompt + text for text in texts]])}"
    write_once(place, lambda: store_arrays(place, {"vectors": encoder.encode_queries(texts).reshape(-1)}))
    vectors = map_array(place / "vectors.npy", np.float32).reshape(-1, encoder.width)
    documents = PassageVectors.open(store, encoder)
    return BiEncoderTeacher(np.array(vectors), documents, encoder.device, encoder.query_prompt)


def store_arrays(place: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays as a folder. If another run has just written it, its arrays are the same and stay."""
    try:
        with atomic_folder(place) as temporary:
            for name, array in arrays.items():
                save_array(temporary / f"{name}.npy", array)
    except (OSError, RankwellError):
        if not place.is_dir():
            raise


def teach(teachers: Sequence[Teacher], queries: Rows, documents: Rows) -> Scores:
    """The teachers' mean scores of lists: (L, N), with mean 0 in each list.

    Each teacher's scores are divided by their deviation within the list, so that all lists are equally wide.
    """
    whole = np.zeros(documents.shape, np.float64)
    for teacher in teachers:
        scores = teacher.scores(queries, documents).astype(np.float64)
        scores -= scores.mean(axis=1, keepdims=True)
        widths = scores.std(axis=1, keepdims=True)
        # A list of equal scores has no width, and rounding must not give it one.
        whole += scores / np.where(widths > 1e-6, widths, np.inf)
    return (whole / len(teachers)).astype(np.float32)
