"""Accuracy and confusion matrix of a classification."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rankwell.evaluation.tables import Table, as_text, name_cell

NO_LABEL = "none"


@dataclass(frozen=True)
class Confusion:
    """Counts of (true label, predicted label). A text without a prediction counts as wrong, under ``none``."""

    counts: dict[tuple[str, str], int]
    labels: tuple[str, ...]

    @classmethod
    def of(cls, truth: Sequence[str], predicted: Iterable[str | None], labels: Iterable[str] = ()) -> Confusion:
        """Count the labels. ``labels`` come first in the table, others follow alphabetically."""
        pairs = Counter(zip(truth, (label or NO_LABEL for label in predicted), strict=True))
        seen = {label for pair in pairs for label in pair}
        first = [label for label in labels if label in seen]
        return cls(dict(pairs), (*first, *sorted(seen - {*first, NO_LABEL}), *([NO_LABEL] if NO_LABEL in seen else [])))

    @property
    def total(self) -> int:
        """The number of texts."""
        return sum(self.counts.values())

    @property
    def accuracy(self) -> float:
        """The share of texts with the right label; 0 without texts."""
        right = sum(count for (true, predicted), count in self.counts.items() if true == predicted)
        return right / self.total if self.total else 0.0

    def recall(self, label: str) -> float:
        """The recall of a label: the share of its texts with the right label."""
        of_label = sum(count for (true, _), count in self.counts.items() if true == label)
        return self.counts.get((label, label), 0) / of_label if of_label else 0.0

    def as_dict(self) -> dict[str, Any]:
        """The figures for a JSON file; ``confusion[true][predicted]``."""
        rows = {label: {p: n for (t, p), n in sorted(self.counts.items()) if t == label} for label in self.labels}
        return {"accuracy": self.accuracy, "texts": self.total, "confusion": {k: row for k, row in rows.items() if row}}

    def __str__(self) -> str:
        """A table with a row for each true label and a column for each predicted label."""
        rows = []
        for true in (label for label in self.labels if any(label == true for true, _ in self.counts)):
            counts = [f"{self.counts.get((true, predicted), 0):,}" for predicted in self.labels]
            rows.append(tuple(map(name_cell, (true, *counts, f"{self.recall(true):.3f}"))))
        table = as_text(Table(("true \\ found", *self.labels, "recall"), tuple(rows)))
        return f"accuracy {self.accuracy:.4f} ({self.total:,} texts)\n{table}"
