"""The largest of each row, against sorting them all."""

from __future__ import annotations

import pytest
import torch

from rankwell.rank.vector_search import top_k


@pytest.mark.parametrize("size", [7, 127, 2560, 2561, 30522])
def test_they_are_those_of_a_whole_sort(size: int) -> None:
    scores = torch.randn(50, size, generator=torch.Generator().manual_seed(size))
    scores[0] = torch.arange(size)  # all of the largest in the last block, or in what is left after it
    scores[1, 3:] = -torch.inf
    best, places = top_k(scores, 10)
    wanted = torch.sort(scores, dim=1, descending=True, stable=True)
    count = min(10, size)
    assert torch.equal(best, wanted.values[:, :count])
    assert torch.equal(scores.gather(1, places), best)
    assert torch.equal(places[0], wanted.indices[0, :count])
