"""Errors reach the process that shows them as they are."""

from __future__ import annotations

import copy

import pytest

from rankwell.core.errors import InputError, MissingExtraError, RankwellError
from rankwell.corpus.store import RepeatedIdError


@pytest.mark.parametrize(
    "error",
    [
        RankwellError("no"),
        InputError("queries.tsv", 3, "no text"),
        MissingExtraError("ray", "scale", "working on a cluster"),
        RepeatedIdError("d1"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_go_from_process_to_process(error: RankwellError) -> None:
    found = copy.copy(error)  # by the way of pickle
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))
