"""Batches by token budget, and taking sequences out of many."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankwell.inputs.batching import take_sequences, token_batches
from rankwell.inputs.templates import Template


@given(lengths=st.lists(st.integers(1, 600), max_size=40), budget=st.integers(1, 3000))
def test_batches_are_within_the_budget_longest_first_and_hold_each_sequence_once(
    lengths: list[int], budget: int
) -> None:
    sizes = np.array(lengths, np.int64)
    batches = list(token_batches(sizes, budget))
    order = np.concatenate([np.zeros(0, np.int64), *batches])
    assert sorted(order.tolist()) == list(range(len(lengths)))
    assert np.all(np.diff(sizes[order]) <= 0)
    for batch in batches:
        assert len(batch) == 1 or len(batch) * sizes[batch].max() <= budget
    # No batch could have taken the first of the next one: there are as few as this order allows.
    for batch in batches[:-1]:
        assert (len(batch) + 1) * sizes[batch].max() > budget


def test_taken_sequences_are_what_they_were(lay: Any) -> None:
    laid = lay(Template(), query=["bank", "bogue", ""], document=["tea", "", "insouciantly numeric"])
    rows = [2, 0, 2]
    found = take_sequences(laid.sequences, np.array(rows))
    assert found.lengths().tolist() == [len(laid.tokens[row]) for row in rows]
    for name in ("tokens", "segments", "positions", "words", "last"):
        assert getattr(found, name).tolist() == [value for row in rows for value in laid.rows(name)[row]], name


def test_none_of_them_is_none(lay: Any) -> None:
    laid = lay(Template(), query=["bank"], document=["tea"])
    found = take_sequences(laid.sequences, np.zeros(0, np.int64))
    assert len(found) == 0
    assert len(found.tokens) == 0
