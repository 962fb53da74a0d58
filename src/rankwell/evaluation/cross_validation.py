"""Tuning: every setting is measured on every judged query, and cross-validation over the queries chooses one.

The best setting on all queries is the one to use from now on. Its mean is too optimistic, because it was chosen on the
same queries. The figure to quote is the cross-validated one, for which each query is ranked under the setting chosen on
the other folds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from rankwell.core.arrays import Rows, Values
from rankwell.core.errors import RankwellError

Setting = TypeVar("Setting")
Label = str | float


def check_folds(queries: int, folds: int) -> None:
    """Raise unless there are at least two folds and a query for each. Called before the settings are measured."""
    if not 2 <= folds <= queries:
        raise RankwellError(f"{folds} folds for {queries} queries: expected at least 2 folds and a query for each")


@dataclass(frozen=True, eq=False)
class Tuned(Generic[Setting]):
    """The figures ``values (settings, queries)`` of a measure, and the settings that cross-validation chooses.

    ``fold_of`` (queries,) is the fold of each query. Equal means go to the earlier setting.
    """

    measure: str
    settings: tuple[Setting, ...]
    qids: tuple[str, ...]
    values: Values
    fold_of: Rows

    @classmethod
    def choose(
        cls,
        measure: str,
        settings: Sequence[Setting],
        qids: Sequence[str],
        values: Values,
        *,
        folds: int = 5,
        seed: int = 0,
    ) -> Tuned[Setting]:
        """Split the queries into folds at random, and choose.

        >>> values = np.array([[0, 1, 0, 0, 0, 0], [1, 0, 1, 1, 1, 0.5]])
        >>> tuned = Tuned.choose("RR@10", ["plain", "stemmed"], "abcdef", values, folds=2)
        >>> tuned.best, tuned.cross_validated
        ('stemmed', 0.75)
        """
        if not settings:
            raise RankwellError("there is no setting to choose from")
        check_folds(len(qids), folds)
        fold_of = np.random.default_rng(seed).permutation(len(qids)) % folds
        return cls(measure, tuple(settings), tuple(qids), values, fold_of)

    @cached_property
    def means(self) -> list[float]:
        """The mean over all queries under each setting."""
        means: list[float] = self.values.mean(axis=1).tolist()
        return means

    @cached_property
    def best(self) -> Setting:
        """The best setting on all queries."""
        return self.settings[int(self.values.mean(axis=1).argmax())]

    @cached_property
    def _fold_choices(self) -> Rows:
        """For each fold, the number of the setting that is best on the others."""
        folds = range(int(self.fold_of.max()) + 1)
        return np.array([self.values[:, self.fold_of != fold].mean(axis=1).argmax() for fold in folds], np.int64)

    @property
    def fold_settings(self) -> list[Setting]:
        """For each fold, the setting that is best on the others."""
        return [self.settings[number] for number in self._fold_choices]

    @cached_property
    def held_out(self) -> Values:
        """The figure of each query under the setting chosen without its fold."""
        held_out: Values = self.values[self._fold_choices[self.fold_of], np.arange(len(self.qids))]
        return held_out

    @property
    def cross_validated(self) -> float:
        """The mean of the held-out figures: the one to quote."""
        return float(self.held_out.mean())

    def setting_for(self, qid: str) -> Setting:
        """The setting chosen without this query's fold; the best one for a query that is not judged."""
        return self._setting_of.get(qid, self.best)

    @cached_property
    def _setting_of(self) -> dict[str, Setting]:
        numbers = self._fold_choices[self.fold_of].tolist()
        return {qid: self.settings[number] for qid, number in zip(self.qids, numbers, strict=True)}

    def table(
        self,
        title: str = "setting",
        row: Callable[[Setting], Label] = str,
        column: Callable[[Setting], Label] = lambda setting: "mean",
        name: Callable[[Setting], str] = str,
    ) -> str:
        """The means as text, a row and column for each setting, the best marked with a star, and the figures to quote.

        ``name`` is how the line below the table names the best setting.
        """
        cells = {
            (row(setting), column(setting)): f"{mean:.4f}{'*' if setting == self.best else ' '}"
            for setting, mean in zip(self.settings, self.means, strict=True)
        }
        rows, columns = _in_order(label for label, _ in cells), _in_order(label for _, label in cells)
        margin = max(map(len, rows.values()))
        lines = [f"{self.measure} by {title}", ""]
        if len(columns) > 1:
            lines.append(" " * margin + "".join(f"{text:>8} " for text in columns.values()).rstrip())
        for label, text in rows.items():
            begin = text.ljust(margin) if isinstance(label, str) else text.rjust(margin)
            line = begin + "".join(f"{cells.get((label, across), ''):>9}" for across in columns)
            lines.append(line.rstrip())
        best = f"best on all {len(self.qids):,} queries: {name(self.best)}, {max(self.means):.4f}"
        quoted = f"cross-validated, {len(self._fold_choices)} folds: {self.cross_validated:.4f}"
        return "\n".join([*lines, "", best, quoted])

    def as_dict(self, describe: Callable[[Setting], dict[str, Any]]) -> dict[str, Any]:
        """The grid and the choice for a JSON file; ``describe`` is a setting as JSON."""
        return {
            "measure": self.measure,
            "best": describe(self.best),
            "cross_validated": self.cross_validated,
            "folds": [describe(setting) for setting in self.fold_settings],
            "grid": [{**describe(point), "mean": mean} for point, mean in zip(self.settings, self.means, strict=True)],
        }


def _in_order(labels: Iterable[Label]) -> dict[Label, str]:
    """Labels and their text: numbers ascending, names in order of appearance."""
    unique = list(dict.fromkeys(labels))
    numbers = [label for label in unique if not isinstance(label, str)]
    return {label: label if isinstance(label, str) else f"{label:g}" for label in sorted(numbers) or unique}
