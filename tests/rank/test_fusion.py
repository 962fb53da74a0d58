"""Fusion of runs, by hand-computed numbers and by its laws."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwell.core.errors import RankwellError
from rankwell.core.registry import Normalisation
from rankwell.corpus.records import Run
from rankwell.rank.fusion import NORMALISATIONS, Shares, fuse

# Spans 8 and 4; the third document of each is the other's missing one.
A = Run.from_scores({"q": {"a": 10.0, "b": 6.0, "c": 2.0}}, name="A")
B = Run.from_scores({"q": {"b": 5.0, "a": 2.0, "d": 1.0}}, name="B")


def first_share(share: float, normalise: str = "min-max") -> Shares:
    return Shares.beside_model(first=share, normalise=normalise)


def pair(first: Run, model: Run) -> dict[str, Run]:
    return {"first": first, "model": model}


def test_z_score_has_mean_0_and_deviation_1_within_each_run() -> None:
    # A: mean 6, variance (16 + 0 + 16) / 3; B: mean 8/3, variance (49 + 4 + 25) / 27.
    a, b = (32 / 3) ** 0.5, (78 / 27) ** 0.5
    expected = {
        "a": 0.5 * 4 / a + 0.5 * (2 - 8 / 3) / b,
        "b": 0.5 * (5 - 8 / 3) / b,
        "c": 0.5 * -4 / a + 0.5 * (1 - 8 / 3) / b,
        "d": 0.5 * -4 / a + 0.5 * (1 - 8 / 3) / b,
    }
    assert dict(fuse(pair(A, B), first_share(0.5, "z-score"))["q"]) == pytest.approx(expected, rel=1e-6)


def test_options_offer_every_normalisation() -> None:
    assert set(get_args(Normalisation)) == set(NORMALISATIONS)


def test_three_runs_have_three_shares() -> None:
    c = Run.from_scores({"q": {"d": 9.0, "a": 8.0}})
    expected = {"a": 0.5 + 0.3 / 4, "b": 0.25 + 0.3, "c": 0.0, "d": 0.2}
    runs = {"first": c, "model": A, "similarity": B}
    shares = Shares(model=0.5, similarity=0.3, first=0.2)
    assert dict(fuse(runs, shares)["q"]) == pytest.approx(expected, abs=1e-7)


def test_runs_and_shares_must_name_the_same_parts() -> None:
    with pytest.raises(RankwellError, match="no weights for a run called 'bm25'; expected model, similarity, first"):
        fuse({"bm25": A, "model": B}, Shares(model=0.5, first=0.5))
    with pytest.raises(RankwellError, match="but there is no run called 'similarity'"):
        fuse(pair(A, B), Shares(model=0.5, similarity=0.5))
    with pytest.raises(RankwellError, match="1 run to fuse; expected two or more"):
        fuse({"model": A}, Shares(model=1))


def test_the_model_has_the_rest() -> None:
    assert Shares.beside_model(first=0.1, similarity=0.3) == Shares(model=0.6, similarity=0.3, first=0.1)
    assert Shares.beside_model(first=1) == Shares(first=1)
    assert Shares.hybrid(0.7) == Shares(similarity=0.7, first=0.3, normalise="z-score")


scores = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(-50, 50).map(float), min_size=1)


@given(scores, scores, st.sampled_from(["none", "min-max", "z-score"]))
def test_a_share_of_1_gives_that_runs_order(first: dict[str, float], second: dict[str, float], normalise: str) -> None:
    a, b = Run.from_scores({"q": first}), Run.from_scores({"q": second})
    for runs, alpha in ((pair(a, b), 1.0), (pair(b, a), 0.0)):
        found = fuse(runs, first_share(alpha, normalise))["q"].docids
        assert tuple(docid for docid in found if docid in first) == a["q"].docids


@given(scores, scores, st.floats(0, 1))
def test_the_runs_may_change_places_with_their_shares(
    first: dict[str, float], second: dict[str, float], alpha: float
) -> None:
    a, b = Run.from_scores({"q": first}), Run.from_scores({"q": second})
    one, other = Shares(first=alpha, model=1 - alpha), Shares(first=1 - alpha, model=alpha)
    assert dict(fuse(pair(a, b), one)["q"]) == pytest.approx(dict(fuse(pair(b, a), other)["q"]), abs=1e-6)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: first_share(1.5), r"a weight of 1\.5 for the first stage and 0 for the bi-encoder; expected"),
        (
            lambda: Shares.beside_model(first=0.6, similarity=0.6),
            "expected numbers of at least 0 that sum to at most 1",
        ),
        (lambda: first_share(float("nan")), "expected numbers of at least 0"),
        (lambda: Shares.hybrid(0), "a weight of 0 for the bi-encoder; expected more than 0 and at most 1"),
        (lambda: Shares(model=0.5, normalise="minmax"), "no normalisation is called 'minmax'; did you mean min-max?"),
        (lambda: Shares(model=1.0, first=1.0), "the weights are model 1, similarity 0, first 1; expected .* sum to 1"),
        (lambda: Shares(model=2.0, first=-1.0), "expected numbers of at least 0"),
        (lambda: Shares(model=float("nan")), "expected numbers of at least 0"),
        (lambda: Shares(), "that sum to 1"),
    ],
)
def test_settings_are_checked_when_they_are_made(make: object, problem: str) -> None:
    with pytest.raises(RankwellError, match=problem):
        make()  # type: ignore[operator]
