"""A ranker as the judge of written queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankwell.core.arrays import Scores
from rankwell.core.errors import InputError
from rankwell.models.checkpoints.names import find_model, model_digest
from rankwell.rank.ranker import Ranker


@dataclass(frozen=True)
class RankerJudge:
    """The folder of a trained ranker, which is loaded where the judging is done."""

    folder: Path

    @classmethod
    def find(cls, model: str | Path) -> RankerJudge:
        """Find a judge by name or folder; raises unless it is a ranker's folder."""
        folder = find_model(model)
        if not (folder / "config.json").is_file():
            raise InputError(folder, None, "not a ranker's folder (it has no config.json); expected that of the judge")
        return cls(folder.absolute())

    def digest(self) -> str:
        """A hash of everything that the judgments depend on."""
        return model_digest(self.folder)

    def open(self, device: str | None = None) -> Callable[[Sequence[tuple[str, str]]], Scores]:
        """Load the ranker; returns p(relevant) of (query, passage) pairs."""
        ranker = Ranker.from_pretrained(self.folder, engine={} if device is None else {"device": device})
        return lambda pairs: ranker.predict(pairs, activation="probability")
