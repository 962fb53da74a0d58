"""What the retrievers of all toolkits share: a folder that can be searched."""

from __future__ import annotations

from pathlib import Path

from rankwell.models.checkpoints.names import DEFAULT
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.system import System, is_system
from rankwell.retrieve.index import Index


def open_searched(
    folder: str | Path, *, hybrid: float = 0.0, encoder: str = DEFAULT, device: str | None = None
) -> System:
    """A system, or an index as a system of its own.

    ``hybrid`` is the share of the bi-encoder ``encoder`` in the search of an index; a system has its own settings.
    """
    if is_system(folder):
        return System.open(folder, device=device)
    first = FirstStage(Index.open(folder), encoder=encoder if hybrid else None, share=hybrid)
    return System(first, device=device)
