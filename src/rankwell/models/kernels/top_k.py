"""The largest numbers of each row in one pass over them."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 128


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` largest scores of each row (R, N), in 32 bits, and their places, the largest first; all N if fewer.

    They lie in the ``k`` blocks with the largest maxima, so one pass over the scores finds these blocks, and only they
    are sorted. On a GPU, torch's top-k reads long rows many times.
    """
    rows, size = scores.shape
    blocks = size // BLOCK
    if blocks < 2 * k:
        best, places = scores.float().topk(min(k, size))
        return best, places
    whole, rest = scores[:, : blocks * BLOCK].view(rows, blocks, BLOCK), scores[:, blocks * BLOCK :]
    best_blocks = whole.amax(dim=2).topk(k).indices
    inside = torch.arange(BLOCK, device=scores.device)
    places = (best_blocks[:, :, None] * BLOCK + inside).view(rows, k * BLOCK)
    after = torch.arange(blocks * BLOCK, size, device=scores.device).expand(rows, -1)
    candidates = torch.cat([whole.gather(1, best_blocks[:, :, None].expand(-1, -1, BLOCK)).flatten(1), rest], dim=1)
    best, order = candidates.float().topk(k)
    return best, torch.cat([places, after], dim=1).gather(1, order)
