"""Drawing lists: sizes, labels and fairness."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from rankwell.core.errors import RankwellError
from rankwell.corpus.lexicon import Lexicon
from rankwell.training.data.candidates import UNJUDGED, TrainingCandidates
from rankwell.training.data.sampling import Plan, draw

SEED = 7


def make(*queries: tuple[int, int], shuffle: bool = False) -> TrainingCandidates:
    """Queries with so many positives and negatives; documents are numbered through, so each is of one query only."""
    sizes = np.array(queries)
    grades = np.concatenate([[2] * p + [UNJUDGED] * n for p, n in queries]).astype(np.int32)
    ends = np.cumsum(sizes.sum(axis=1))
    if shuffle:
        random = np.random.default_rng(0)
        for begin, end in zip(ends - sizes.sum(axis=1), ends, strict=True):
            grades[begin:end] = random.permutation(grades[begin:end])
    documents = np.arange(len(grades)) * 5 + 1
    scores = -np.arange(len(grades), dtype=np.float32)
    return TrainingCandidates(tuple(f"q{i}" for i in range(len(queries))), ends, documents, grades, scores, Lexicon())


SIZES = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=6)
PLANS = st.builds(
    Plan,
    positives=st.integers(1, 4),
    negatives=st.integers(1, 12),
    weighting=st.sampled_from(["uniform", "rank"]),
    per=st.sampled_from(["positive", "query"]),
)


@given(SIZES, PLANS, st.integers(0, 2**32), st.integers(0, 50))
def test_lists_are_what_the_plan_says(sizes: list[tuple[int, int]], plan: Plan, seed: int, epoch: int) -> None:
    candidates = make(*sizes, shuffle=True)
    relevant = set(candidates.documents[candidates.relevant].tolist())
    query_of = dict(zip(candidates.documents.tolist(), candidates.rows.tolist(), strict=True))
    lists = draw(candidates, plan, seed, epoch)
    assert lists.documents.shape == lists.labels.shape == (len(lists), plan.positives + plan.negatives)
    assert lists.labels.dtype == np.float32
    for query, documents, labels in zip(lists.queries.tolist(), lists.documents, lists.labels, strict=True):
        positives, negatives = documents[: plan.positives].tolist(), documents[plan.positives :].tolist()
        assert labels.tolist() == [1] * plan.positives + [0] * plan.negatives
        assert set(positives) <= relevant
        assert relevant.isdisjoint(negatives)
        assert {query_of[document] for document in documents.tolist()} == {query}
        # None twice where there are enough; as evenly as possible where there are not.
        for drawn, pool in ((positives, sizes[query][0]), (negatives, sizes[query][1])):
            times = Counter(drawn)
            assert len(times) == min(len(drawn), pool)
            assert max(times.values()) - min(times.values()) <= 1
    if plan.per == "positive":
        assert sorted(lists.documents[:, 0].tolist()) == sorted(relevant)
    else:
        assert sorted(lists.queries.tolist()) == list(range(len(sizes)))
    again = draw(candidates, plan, seed, epoch)
    assert np.array_equal(again.queries, lists.queries)
    assert np.array_equal(again.documents, lists.documents)


def test_epochs_and_seeds_draw_differently() -> None:
    candidates = make(*[(2, 30)] * 20)
    first, later, other = (draw(candidates, Plan(), *key) for key in ((SEED, 0), (SEED, 1), (SEED + 1, 0)))
    for lists in (later, other):
        assert not np.array_equal(lists.queries, first.queries)
        by_positive = [
            dict(zip(x.documents[:, 0].tolist(), x.documents[:, 1:].tolist(), strict=True)) for x in (first, lists)
        ]
        same = sum(by_positive[0][key] == by_positive[1][key] for key in by_positive[0])
        assert same < 4


def test_every_set_of_negatives_is_equally_likely() -> None:
    lists = draw(make(*[(1, 5)] * 12_000), Plan(negatives=2), SEED, 0)
    begins = lists.queries[:, None] * 6 + 1
    found = Counter(tuple(sorted(row)) for row in ((lists.documents[:, 1:] - 1) // 5 - begins).tolist())
    assert found.keys() == set(combinations(range(5), 2))
    assert chisquare(list(found.values())).pvalue > 0.01


def test_by_rank_the_rth_negative_has_the_weight_1_over_r() -> None:
    lists = draw(make(*[(1, 4)] * 20_000), Plan(negatives=2, weighting="rank"), SEED, 0)
    begins = lists.queries[:, None] * 5 + 1
    found = Counter(map(tuple, ((lists.documents[:, 1:] - 1) // 5 - begins).tolist()))
    weights = 1 / np.arange(1, 5)
    pairs = list(permutations(range(4), 2))
    # One after the other: the second is drawn from what the first left.
    expected = [weights[i] / weights.sum() * weights[j] / (weights.sum() - weights[i]) for i, j in pairs]
    assert chisquare([found[pair] for pair in pairs], np.array(expected) * len(lists)).pvalue > 0.01


def test_other_positives_are_drawn_alike_and_never_the_own_one() -> None:
    lists = draw(make(*[(4, 1)] * 6_000), Plan(positives=2, negatives=1), SEED, 0)
    own, other = ((lists.documents[:, column] - 1) // 5 - lists.queries * 5 for column in (0, 1))
    found = Counter(zip(own.tolist(), other.tolist(), strict=True))
    assert found.keys() == set(permutations(range(4), 2))
    assert chisquare(list(found.values())).pvalue > 0.01


def test_the_order_of_lists_is_shuffled_fairly() -> None:
    candidates = make(*[(1, 1)] * 3)
    orders = Counter(tuple(draw(candidates, Plan(negatives=1), SEED, epoch).queries.tolist()) for epoch in range(1200))
    assert len(orders) == 6
    assert chisquare(list(orders.values())).pvalue > 0.01


def test_queries_with_few_and_many_candidates_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankwell.training.data.sampling.KEYS_AT_A_TIME", 40)
    candidates = make(*[(1, 1 + 3 * i) for i in range(12)])
    lists = draw(candidates, Plan(negatives=6), SEED, 0)
    rows = dict(zip(candidates.documents.tolist(), candidates.rows.tolist(), strict=True))
    for query, documents in zip(lists.queries.tolist(), lists.documents.tolist(), strict=True):
        assert {rows[document] for document in documents} == {query}
        assert len(set(documents[1:])) == min(6, 1 + 3 * query)


def test_labels_can_be_grades() -> None:
    candidates = make((1, 2))
    candidates.grades[2] = 0
    graded = TrainingCandidates(**{**vars(candidates), "level": 2})
    lists = draw(graded, Plan(negatives=2, labels="grade"), SEED, 0)
    assert lists.labels.tolist() == [[2, 0, 0]]


def test_lists_can_be_reordered() -> None:
    lists = draw(make(*[(1, 3)] * 4), Plan(negatives=1), SEED, 0)
    lists = replace(lists, others=lists.documents[:, ::-1])
    turned = lists.take(np.array([2, 0]))
    assert turned.others is not None
    assert lists.others is not None
    assert turned.queries.tolist() == lists.queries[[2, 0]].tolist()
    assert turned.others.tolist() == lists.others[[2, 0]].tolist()


def test_a_query_without_one_kind_is_named() -> None:
    with pytest.raises(RankwellError, match="query 'q1' has no non-relevant candidate"):
        draw(make((1, 1), (2, 0)), Plan(), SEED, 0)
    with pytest.raises(RankwellError, match="query 'q0' has no relevant document"):
        draw(make((0, 1), (2, 1)), Plan(), SEED, 0)
