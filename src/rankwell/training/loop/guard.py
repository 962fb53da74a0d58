"""Warns when training collapses: a loss at chance level, scores that are all alike, a loss that is not a number."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path

from rankwell.core.errors import RankwellError

NEAR_CHANCE = 0.01
LEAST_SPREAD = 1e-3
LEAST_SHARE_OF_SPREAD = 0.02


class CollapseGuard:
    """Watches the means that are logged; warns once of each cause.

    ``chance`` is the loss of a model that scores all documents alike, ln N for a softmax over lists of N
    (``Loss.chance``); without it, only spread and broken numbers are seen.
    Nothing is said in the first ``after`` of the steps, when a model is still warming up, nor before ``patience`` logs
    in a row look the same. Lists of one document have no spread and are not taken for collapsed.
    """

    def __init__(self, chance: float | None = None, *, after: float = 0.2, patience: int = 3):
        self.chance = chance
        self.after = after
        self.patience = patience
        self._widest = 0.0
        self._in_a_row = {"chance": 0, "spread": 0}
        self._warned: set[str] = set()

    def check(
        self, step: int, steps: int, means: Mapping[str, float], checkpoint: str | Path | None = None
    ) -> list[str]:
        """Look at the means of ``loss`` and, where they are there, ``spread`` (the scores' deviation within lists).

        Returns the warnings it gave, for the log. A loss that is no finite number is an error that names the step and
        ``checkpoint``, the last that was saved.
        """
        loss, spread = means["loss"], means.get("spread")
        if not math.isfinite(loss) or (spread is not None and not math.isfinite(spread)):
            rescue = f"the last checkpoint is {checkpoint}" if checkpoint else "no checkpoint of this run was named"
            name, value = ("loss", loss) if not math.isfinite(loss) else ("spread of the scores", spread)
            raise RankwellError(
                f"step {step}: the {name} is {value}; try a lower learning rate, or bf16 or fp32 for fp16 ({rescue})"
            )
        causes = {"chance": self.chance is not None and abs(loss - self.chance) <= NEAR_CHANCE * abs(self.chance)}
        if spread is not None:
            self._widest = max(self._widest, spread)
            causes["spread"] = self._widest > 0 and spread <= max(LEAST_SPREAD, LEAST_SHARE_OF_SPREAD * self._widest)
        messages = []
        for cause, seen in causes.items():
            late = step > self.after * steps
            self._in_a_row[cause] = self._in_a_row[cause] + 1 if seen and late else 0
            if self._in_a_row[cause] == self.patience and cause not in self._warned:
                self._warned.add(cause)
                messages.append(self._describe(cause, step, loss, spread))
        for text in messages:
            warnings.warn(text, stacklevel=2)
        return messages

    def _describe(self, cause: str, step: int, loss: float, spread: float | None) -> str:
        if cause == "chance":
            return (
                f"step {step}: the loss is {loss:.4f}, that of a model that scores all documents alike "
                f"({self.chance:.4f}); try a lower learning rate or a longer warm-up, and look at the labels"
            )
        return (
            f"step {step}: the scores of a list hardly differ (deviation {spread:.2g}, once {self._widest:.2g}); "
            "the model has collapsed: try a lower learning rate or a longer warm-up"
        )
