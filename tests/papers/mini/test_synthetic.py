"""Queries made of passages."""

from __future__ import annotations

import re

import numpy as np
import pytest

from rankwell.core.errors import RankwellError
from rankwell.papers.mini.synthetic import make_query, synthetic_queries

PASSAGE = (
    "Our galaxy has about 150 globular clusters, some of which were captured by the Milky Way. It is so. "
    "The giant elliptical galaxy contains over a thousand clusters."
)


def test_synthetic_queries_are_short_and_of_the_passages_words() -> None:
    random = np.random.default_rng(0)
    made = [make_query(PASSAGE, random) for _ in range(300)]
    known = set(re.findall(r"\w+", PASSAGE.lower()))
    assert all(query and query == query.lower() and len(query.split()) <= 12 for query in made)
    # Besides the passage's own words there is at most an opening of three, such as "what is the".
    assert all(len([word for word in query.split() if word not in known]) <= 3 for query in made if query)
    assert "what is milky way" in made
    assert any("globular clusters" in query for query in made if query)
    assert len(set(made)) > 100
    assert make_query("It is. The.", random) is None


def test_synthetic_queries_are_a_function_of_seed_and_epoch() -> None:
    texts = [PASSAGE, "It is so.", "Iron bridges cross the old river at London since 1820."]

    def draw(seed: int, epoch: int) -> tuple[list[str], list[int]]:
        queries, owners = synthetic_queries(lambda rows: [texts[row] for row in rows], 3, 20, seed, epoch)
        return queries, owners.tolist()

    assert draw(1, 0) == draw(1, 0)
    assert draw(1, 0) != draw(1, 1)
    assert draw(1, 0) != draw(2, 0)
    queries, owners = draw(1, 0)
    assert len(queries) == 20
    assert set(owners) == {0, 2}
    with pytest.raises(RankwellError, match="only 0 could be"):
        synthetic_queries(lambda rows: ["It is so."] * len(rows), 3, 20, 1, 0)
