"""The kinds of rankers: which kind a folder holds, and which options each kind takes.

A new kind is one line of :data:`RANKERS` and a class with the methods of :class:`~rankwell.rank.rankers.AnyRanker`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rankwell.core.errors import RankwellError
from rankwell.models.checkpoints.names import find_model


@dataclass(frozen=True)
class RankerKind:
    """One kind of ranker.

    ``home`` is the class, imported only when a model is opened because it may need torch. Folders of this kind contain
    the file ``marker``. ``takes`` lists the options it supports; ``None`` means all.
    """

    name: str
    home: str
    marker: str | None = None
    takes: frozenset[str] | None = None

    def check(self, model: str | Path, **options: object) -> None:
        """Raise for the first option that is set but not supported; ``auto`` leaves the choice to the ranker.

        Needs only the model's name, not the model.
        """
        for option, value in options.items():
            if value not in (None, {}, "auto") and self.takes is not None and option not in self.takes:
                raise RankwellError(f"{model}: {self.name} rankers have no option {option.replace('_', '-')}")


CROSS_ENCODER = RankerKind("cross-encoder", "rankwell.rank.ranker:Ranker")
RANKERS = (
    RankerKind("SDNet", "rankwell.rank.sdnet:SdnetRanker", marker="sdnet.json", takes=frozenset({"device"})),
    CROSS_ENCODER,  # last: it has no marker, since any BERT checkpoint will do
)


def kind_of(model: str | Path) -> RankerKind:
    """The kind of ranker in a folder, which may be given by a model's name."""
    folder = find_model(model)
    return next(kind for kind in RANKERS if kind.marker is None or (folder / kind.marker).is_file())


def check_cross_encoder(folder: Path) -> None:
    """Raise if a folder holds a ranker of another kind."""
    if (kind := kind_of(folder)) is not CROSS_ENCODER:
        raise RankwellError(
            f"{folder} is an {kind.name} ranker, not a cross-encoder; open it with rankwell.open_ranker"
        )
