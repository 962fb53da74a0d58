"""The models that systems have open.

A system and its first stage are values: they name their models. What is open lies here, is shared by all values that
name it, and is never copied.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

from rankwell.models.devices import Computing
from rankwell.rank.rankers import AnyRanker, VectorSearch, open_encoder

if TYPE_CHECKING:
    from rankwell.rank.dense import DenseRanker

Model = TypeVar("Model")


class Models:
    """Bi-encoders and re-rankers, each opened when it is first needed."""

    def __init__(self) -> None:
        self._open: dict[tuple[object, ...], Any] = {}
        self._lock = RLock()

    def dense(self, encoder: str | Path, vectors: VectorSearch, computing: Computing) -> DenseRanker:
        """A bi-encoder that searches its vectors in the given way."""
        from rankwell.rank.dense import DenseRanker

        def open_dense() -> DenseRanker:
            return DenseRanker(open_encoder(encoder, computing), vectors=vectors)

        return self._held(("dense", encoder, vectors, computing), open_dense)

    def ranker(self, ranker: str | Path, computing: Computing) -> AnyRanker:
        """A re-ranker."""
        from rankwell.rank.ranker import open_ranker

        return self._held(("ranker", ranker, computing), lambda: open_ranker(ranker, computing))

    def _held(self, key: tuple[object, ...], opened: Callable[[], Model]) -> Model:
        with self._lock:
            if key not in self._open:
                self._open[key] = opened()
            model: Model = self._open[key]
            return model
