"""Records that must come in the order of the collection."""

from __future__ import annotations

import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.alignment import InCollectionOrder
from rankwell.corpus.formats.expansions import Expansion

DOCIDS = [f"d{number}" for number in range(10)]


def take_all(records: list[Expansion]) -> list[Expansion]:
    aligned = InCollectionOrder(records, "expansions")
    taken = [aligned.take(docid) for docid in DOCIDS]
    aligned.finish()
    return taken


def test_records_in_order_are_given_one_by_one() -> None:
    records = [Expansion(docid, ()) for docid in DOCIDS]
    assert take_all(records) == records


def test_any_other_order_is_an_error() -> None:
    records = [Expansion(docid, ()) for docid in DOCIDS]
    for wrong, problem in (
        (records[:5], "the expansions end before document 'd5'"),
        ([*records, Expansion("d10", ())], "the expansions go on after the last document, with 'd10'"),
        (records[::-1], "expansions of 'd9' where 'd0' is expected; they must be in the collection's order"),
    ):
        with pytest.raises(RankwellError, match=problem):
            take_all(wrong)
