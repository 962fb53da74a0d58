"""Teachers: models whose scores a student learns. A bi-encoder or a cross-encoder, or several together.

Both distillation losses know differences of scores alone, so a teacher's mean does not matter; its unit does. Teachers
are brought to one unit, the deviation of their scores within a list, before they are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankwell.core.arrays import map_array, save_array
from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_folder
from rankwell.core.manifest import digest
from rankwell.core.types import Rows, Scores
from rankwell.corpus.store import DocumentStore
from rankwell.models.bi_encoder import BiEncoder, Vectors, is_cross_encoder
from rankwell.models.checkpoints.names import find_model
from rankwell.rank.dense import PassageVectors, search_vectors
from rankwell.rank.ranker import Ranker
from rankwell.training.processes import write_once

LISTS_AT_A_TIME = {"cuda": 1 << 14, "cpu": 1 << 11}
PAIRS_AT_A_TIME = 1 << 16
Unit = Literal["query", "teacher"]


class Teacher(Protocol):
    """Scores documents for queries, both by number."""

    def scores(self, queries: Rows, documents: Rows) -> Scores:
        """The scores (L, N) of lists: query ``queries[i]`` with the documents ``documents[i]`` (L, N)."""
        ...


class BiEncoderTeacher:
    """The cosine of query and document; all vectors are there already, and on a GPU they are held there."""

    def __init__(self, queries: Vectors, vectors: PassageVectors, device: torch.device, prompt: str = ""):
        self.queries = queries
        self.vectors = vectors
        self.device = device
        self.name = vectors.folder.name + prompt
        """Of what says which documents are near: the documents' vectors, and the ``prompt`` of the queries."""
        self._on_device: tuple[Tensor, Tensor] | None = None

    def scores(self, queries: Rows, documents: Rows) -> Scores:
        """See :class:`Teacher`."""
        found = np.empty(documents.shape, np.float32)
        step = LISTS_AT_A_TIME.get(self.device.type, 1 << 11)
        for begin in range(0, len(queries), step):
            some = slice(begin, begin + step)
            found[some] = self._score(queries[some], documents[some])
        return found

    def _score(self, queries: Rows, documents: Rows) -> Scores:
        if self.device.type != "cuda":
            own = self.vectors.at(documents.reshape(-1)).astype(np.float32).reshape(*documents.shape, -1)
            scores: Scores = np.einsum("lh,lnh->ln", self.queries[queries], own)
            return scores
        if self._on_device is None:
            whole = torch.cat([torch.from_numpy(np.array(block)).to(self.device) for block in self.vectors.blocks()])
            self._on_device = torch.from_numpy(self.queries).to(self.device), whole
        asked, whole = self._on_device
        rows, numbers = torch.from_numpy(queries).to(self.device), torch.from_numpy(documents).to(self.device)
        return torch.einsum("lh,lnh->ln", asked[rows], whole[numbers].float()).cpu().numpy()

    def nearest(self, k: int) -> Rows:
        """The ``k`` documents nearest to each query, best first: (Q, k)."""
        numbers, _ = search_vectors(self.queries, self.vectors.blocks(), k, device=self.device)
        return numbers


class CrossEncoderTeacher:
    """A trained ranker."""

    def __init__(self, ranker: Ranker, queries: Sequence[str], store: DocumentStore):
        self._ranker, self._queries, self._store = ranker, queries, store

    def scores(self, queries: Rows, documents: Rows) -> Scores:
        """See :class:`Teacher`."""
        found = np.empty(documents.shape, np.float32)
        step = max(1, PAIRS_AT_A_TIME // max(1, documents.shape[1]))
        for begin in range(0, len(queries), step):
            asked = np.repeat(queries[begin : begin + step], documents.shape[1]).tolist()
            some = documents[begin : begin + step]
            texts = self._store.texts_at(some.reshape(-1))
            pairs = [(self._queries[row], text) for row, text in zip(asked, texts, strict=True)]
            found[begin : begin + step] = self._ranker.predict(pairs).reshape(some.shape)
        return found


@dataclass(frozen=True, eq=False)
class Named:
    """A teacher by name, before it is loaded."""

    name: str
    folder: Path

    @classmethod
    def of(cls, name: str) -> Named:
        """The teacher ``name`` names; where there is none, that is an error now."""
        folder = find_model(name)
        if not (folder / "config.json").is_file():
            raise RankwellError(f"the teacher {name}: no model is there (it has no config.json)")
        return cls(name, folder)

    @property
    def pairs(self) -> bool:
        """Whether it is a cross-encoder, which scores pairs and has no vectors."""
        return is_cross_encoder(self.folder)

    def load_ranker(self, device: str | None) -> Ranker:
        """The cross-encoder."""
        engine: dict[str, Any] = {} if device is None else {"device": device}
        return Ranker.from_pretrained(self.folder, engine=engine)

    def load_encoder(self, device: str | None, max_length: int | None) -> BiEncoder:
        """The bi-encoder."""
        return BiEncoder.from_pretrained(self.folder, device=device, max_length=max_length)


def load_teachers(
    store: DocumentStore, names: Sequence[str], texts: Sequence[str], max_length: int | None, device: str | None
) -> list[Teacher]:
    """The teachers, ready to score the queries ``texts`` by number; query vectors are stored beside the collection's.

    Of several processes, the first encodes the queries and the others wait: all must see the same vectors.
    """
    teachers: list[Teacher] = []
    for named in map(Named.of, names):
        if named.pairs:
            teachers.append(CrossEncoderTeacher(named.load_ranker(device), texts, store))
            continue
        encoder = named.load_encoder(device, max_length)
        place = store.folder / f"asked-{digest([encoder.name, [encoder.query_prompt + text for text in texts]])}"

        def encode(encoder: BiEncoder = encoder, place: Path = place) -> None:
            store_arrays(place, {"vectors": encoder.encode_queries(texts).reshape(-1)})

        write_once(place, encode)
        vectors = map_array(place / "vectors.npy", np.float32).reshape(-1, encoder.width)
        documents = PassageVectors.open(store, encoder)
        teachers.append(BiEncoderTeacher(np.array(vectors), documents, encoder.device, encoder.query_prompt))
    return teachers


def store_arrays(place: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays as a folder. If another run has just written it, its arrays are the same and stay."""
    try:
        with atomic_folder(place) as temporary:
            for name, array in arrays.items():
                save_array(temporary / f"{name}.npy", array)
    except (OSError, RankwellError):
        if not place.is_dir():
            raise


def teach(teachers: Sequence[Teacher], queries: Rows, documents: Rows, *, unit: Unit = "query") -> Scores:
    """What the teachers say of lists, on the average: (L, N), 0 in the mean of each list.

    ``unit="query"`` divides each teacher's scores by their deviation within the list, so that every list is as wide as
    the others; ``teacher`` by the mean of these deviations, so that it may be surer of some lists than of others.
    """
    whole = np.zeros(documents.shape, np.float64)
    for teacher in teachers:
        scores = teacher.scores(queries, documents).astype(np.float64)
        scores -= scores.mean(axis=1, keepdims=True)
        deviations = scores.std(axis=1, keepdims=True)
        widths = deviations if unit == "query" else deviations.mean(keepdims=True)
        # A list of equal scores has no width, and rounding must not give it one.
        whole += scores / np.where(widths > 1e-6, widths, np.inf)
    return (whole / len(teachers)).astype(np.float32)
