"""Tests against scipy, against enumeration, and on inputs that are no evidence."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from scipy import special, stats

from rankwell.evaluation.significance import (
    TESTS,
    Values,
    bootstrap_interval,
    holm,
    mean_interval,
    paired_t_test,
    randomisation_test,
    signed_rank_p,
    student_t_p,
    wilcoxon_test,
)


def sample(size: int, shift: float = 0.1, seed: int = 3) -> tuple[Values, Values]:
    random = np.random.default_rng(seed)
    theirs = random.random(size)
    return theirs + random.normal(shift, 0.2, size), theirs


@pytest.mark.parametrize("size", [2, 5, 30, 400])
def test_t_test_agrees_with_scipy(size: int) -> None:
    ours, theirs = sample(size)
    assert paired_t_test(ours, theirs) == pytest.approx(stats.ttest_rel(ours, theirs).pvalue, rel=1e-9)


def test_wilcoxon_with_ties_and_zeros_agrees_with_scipy() -> None:
    gaps = np.array([0.5, 0.5, -0.5, 0.25, 0.25, 0.0, 0.0, 1.0, 1.0, -0.25])
    expected = stats.wilcoxon(gaps[gaps != 0], method="asymptotic").pvalue
    assert wilcoxon_test(gaps, np.zeros(10)) == pytest.approx(expected, rel=1e-10)


def test_student_t_agrees_with_scipy_everywhere() -> None:
    random = np.random.default_rng(1)
    freedoms = [*range(1, 60), *np.geomspace(60, 1e5, 60).astype(int).tolist()]
    for freedom in freedoms:
        for t in [1e-3, 0.5, 1.7, 1.75, 1.96, 8.0, 37.0, *random.normal(0, 3, 10).tolist()]:
            expected = 2 * special.stdtr(freedom, -abs(t))
            assert student_t_p(t, freedom) == pytest.approx(expected, rel=1e-10, abs=1e-300), (t, freedom)
    assert (student_t_p(0.0, 5), student_t_p(np.inf, 5)) == (1.0, 0.0)


@pytest.mark.parametrize("grid", [None, 3, 10], ids=["no ties", "many ties", "some ties"])
def test_signed_ranks_agree_with_scipy(grid: int | None) -> None:
    random = np.random.default_rng(2)
    for size in [1, 2, 3, 7, 20, 49, 50, 51, 200, 5000]:
        gaps = random.normal(0.2, 1, size)
        if grid is not None:
            gaps = (np.round(gaps * grid) + 0.5) / grid
        exact = size <= 50 and len(np.unique(np.abs(gaps))) == size
        expected = stats.wilcoxon(gaps, method="exact" if exact else "asymptotic").pvalue
        assert signed_rank_p(gaps) == pytest.approx(expected, rel=1e-10), size


@pytest.mark.parametrize("size", [1, 2, 6, 11])
def test_randomisation_tries_every_sign_where_it_can(size: int) -> None:
    ours, theirs = sample(size)
    gaps = ours - theirs
    means = [abs(np.mean(gaps * signs)) for signs in product([-1, 1], repeat=size)]
    expected = np.mean(np.array(means) >= abs(gaps.mean()) - 1e-12)
    assert randomisation_test(ours, theirs) == pytest.approx(expected)


def test_random_signs_come_close_to_all_signs() -> None:
    ours, theirs = sample(12, shift=0.08)
    exact = randomisation_test(ours, theirs)
    assert 0.02 < exact < 0.9
    assert randomisation_test(ours, theirs, rounds=4000) == pytest.approx(exact, abs=0.03)


def test_randomisation_never_gives_zero_and_repeats() -> None:
    ours, theirs = sample(200, shift=5.0)
    assert randomisation_test(ours, theirs, rounds=999) == 1 / 1000
    ours, theirs = sample(200, shift=0.01)
    assert randomisation_test(ours, theirs, seed=7) == randomisation_test(ours, theirs, seed=7)
    assert randomisation_test(ours, theirs, seed=7) != randomisation_test(ours, theirs, seed=8)


@pytest.mark.parametrize("test", TESTS.values(), ids=list(TESTS))
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [([], []), ([0.5], [0.5]), ([0.2], [0.9]), ([0.1, 0.2, 0.3], [0.1, 0.2, 0.3])],
    ids=["no query", "one equal query", "one query", "equal runs"],
)
def test_no_evidence_gives_p_1(test: Callable[[Values, Values], float], ours: list[float], theirs: list[float]) -> None:
    assert test(np.array(ours), np.array(theirs)) == 1.0


@pytest.mark.parametrize("test", TESTS.values(), ids=list(TESTS))
def test_p_does_not_depend_on_the_direction(test: Callable[[Values, Values], float]) -> None:
    ours, theirs = sample(40)
    assert test(ours, theirs) == pytest.approx(test(theirs, ours), abs=0.01)


@pytest.mark.parametrize("test", TESTS.values(), ids=list(TESTS))
def test_the_same_gain_everywhere_is_significant(test: Callable[[Values, Values], float]) -> None:
    theirs = np.linspace(0.1, 0.7, 30)
    assert test(theirs + 0.1, theirs) < 0.001


def test_unpaired_values_are_refused() -> None:
    with pytest.raises(ValueError, match="not paired"):
        paired_t_test(np.zeros(3), np.zeros(4))


def test_bootstrap_interval_agrees_with_the_normal_one() -> None:
    ours, theirs = sample(500)
    gaps = ours - theirs
    half = 1.96 * gaps.std(ddof=1) / np.sqrt(500)
    low, high = bootstrap_interval(ours, theirs)
    assert low == pytest.approx(gaps.mean() - half, abs=0.1 * half)
    assert high == pytest.approx(gaps.mean() + half, abs=0.1 * half)


def test_bootstrap_interval_repeats_and_narrows() -> None:
    ours, theirs = sample(100)
    wide, narrow = bootstrap_interval(ours, theirs, confidence=0.99), bootstrap_interval(ours, theirs, confidence=0.5)
    assert wide == bootstrap_interval(ours, theirs, confidence=0.99)
    assert wide.low < narrow.low < np.mean(ours - theirs) < narrow.high < wide.high


@pytest.mark.parametrize(("gaps", "end"), [([], 0.0), ([0.25], 0.25), ([0.0, 0.0], 0.0), ([0.5, 0.5], 0.5)])
def test_bootstrap_interval_without_spread_is_a_point(gaps: list[float], end: float) -> None:
    assert bootstrap_interval(np.array(gaps), np.zeros(len(gaps))) == (end, end)


def test_holm_by_hand() -> None:
    # Sorted: 0.005 x 4, 0.01 x 3, 0.03 x 2, 0.04 x 1 (raised to the one before).
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


def test_the_interval_is_about_two_standard_errors_around_the_mean() -> None:
    values = np.random.default_rng(0).uniform(size=400)
    low, high = mean_interval(values)
    error = values.std(ddof=1) / np.sqrt(len(values))
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.3 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.3 * error)
    assert mean_interval(np.full(9, 0.25)) == (0.25, 0.25)
