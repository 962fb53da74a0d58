"""Choosing a setting by cross-validation, from figures that are there already for every setting and query."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """What :func:`cross_validate` found.

    ``best`` is the setting to use from now on (best on all queries), ``chosen[f]`` the one chosen without fold ``f``,
    ``values`` each query's figure under the setting chosen without it: their mean is the honest estimate. ``settings``
    holds that setting's number for each query.
    """

    best: int
    chosen: tuple[int, ...]
    values: NDArray[np.float64]
    settings: NDArray[np.int64]

    @property
    def mean(self) -> float:
        """The cross-validated figure."""
        return float(self.values.mean())


def check_folds(queries: int, folds: int) -> None:
    """To be had before the settings are tried."""
    if not 2 <= folds <= queries:
        raise RankwellError(f"{folds} folds for {queries} queries: there must be at least 2, and a query for each")


def cross_validate(values: NDArray[np.float64], *, folds: int = 5, seed: int = 0) -> CrossValidation:
    """Choose among settings given ``values (settings, queries)``; equal means go to the earlier setting.

    >>> found = cross_validate(np.array([[0, 1, 0, 0, 0, 0], [1, 0, 1, 1, 1, 0.5]]), folds=2)
    >>> found.best, found.mean
    (1, 0.75)
    """
    settings, queries = values.shape
    if settings == 0:
        raise RankwellError("there is no setting to choose from")
    check_folds(queries, folds)
    fold_of = np.random.default_rng(seed).permutation(queries) % folds
    chosen = tuple(int(values[:, fold_of != fold].mean(axis=1).argmax()) for fold in range(folds))
    setting_of = np.array(chosen, np.int64)[fold_of]
    held_out = values[setting_of, np.arange(queries)]
    return CrossValidation(int(values.mean(axis=1).argmax()), chosen, held_out, setting_of)
