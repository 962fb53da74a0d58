"""How documents are searched that nothing was fitted to: the one place of these settings.

``--hybrid``, the service, the demo and the first steps of a fit take them from here. On eight data sets
(docs/retrieve.md) the bi-encoder gains beside BM25 on all, and the re-ranker gains over BM25 but not over both: by
default it re-ranks only where BM25 searches alone. Word vectors gain on most but lose on one: they are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankwell.models.checkpoints.names import DEFAULT


@dataclass(frozen=True)
class Unfitted:
    """The settings: a bi-encoder and its weight beside BM25.

    A service that was not told how to search uses it if the vectors of all documents are stored, or if there are no
    more than ``few``, whose vectors take seconds. It makes those of up to ``many`` beside its searches.
    """

    encoder: str = DEFAULT
    share: float = 0.7
    few: int = 1000
    many: int = 300_000


UNFITTED = Unfitted()
