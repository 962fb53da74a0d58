"""Opening whatever ranker a folder holds: a cross-encoder, or an SDNet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.inputs.templates import TruncationReport
from rankwell.models.checkpoints.names import find_model, holds_sdnet
from rankwell.rank.engines.precision import Precision, engine_options
from rankwell.rank.pipeline import Reranker
from rankwell.rank.ranker import Ranker


class AnyRanker(Reranker, Protocol):
    """What all rankers can do."""

    @property
    def truncation(self) -> TruncationReport:
        """What was cut from texts so far."""
        ...

    def predict(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Scores of (query, document) pairs."""
        ...

    def rank(self, query: str, documents: Sequence[str], top_k: int | None = None) -> list[dict[str, Any]]:
        """The documents, best first: ``corpus_id`` and ``score``."""
        ...


def open_ranker(
    folder: str | Path,
    *,
    backend: str = "torch",
    device: str | None = None,
    precision: Precision | None = None,
    **options: Any,
) -> AnyRanker:
    """The ranker of a folder; ``options`` are those of :meth:`Ranker.from_pretrained
    <rankwell.rank.ranker.Ranker.from_pretrained>`, of which an SDNet has none.
    """
    folder = find_model(folder)
    if not holds_sdnet(folder):
        own = engine_options(backend, device, precision)
        return Ranker.from_pretrained(folder, backend=backend, engine=own, **options)
    options["precision"] = precision
    given = [name for name, value in options.items() if value not in (None, {})]
    if backend != "torch":
        raise RankwellError(f"{folder} is an SDNet ranker, which runs on the backend torch alone, not on {backend}")
    if given:
        raise RankwellError(f"{folder} is an SDNet ranker: it has no {given[0]} to change")
    from rankwell.rank.sdnet_ranker import SdnetRanker

    return SdnetRanker.from_pretrained(folder, device=device)
