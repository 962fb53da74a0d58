"""Exact search among vectors: every document is compared with every query, in fp32."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankwell.core.arrays import Rows
from rankwell.models.bi_encoder import Vectors
from rankwell.models.compute import map_lanes
from rankwell.models.devices import cpu_flags

DOCUMENTS_AT_A_TIME = (1 << 14, 1 << 18)
"""Documents whose best are found together: the fewer queries, the more."""
FEW_QUERIES = 4
"""Up to this many queries are compared one by one; more together, as a matrix product."""
PIECE = 1 << 11
"""Vectors converted to fp32 at once on a CPU: 3 MB of MiniLM's."""
SCORES_AT_A_TIME = {"cuda": 1 << 28, "cpu": 1 << 24}
_ON_ARM = platform.machine() in ("aarch64", "arm64")
_CONVERTS = _ON_ARM or "f16c" in cpu_flags()
"""Whether the processor converts fp16 numbers itself."""
Block = NDArray[np.floating]


def search_vectors(
    queries: Vectors,
    blocks: Iterator[Block | Tensor],
    k: int,
    *,
    device: torch.device | str = "cpu",
    allowed: NDArray[np.bool_] | None = None,
) -> tuple[Rows, Vectors]:
    """The ``k`` documents nearest to each query, best first: their numbers and similarities, both (Q, k).

    Exact: every document is compared, in fp32. ``blocks`` are the documents' vectors in order; tensors are on
    ``device`` already. If fewer than ``k`` documents are ``allowed``, the rest of a row is -1 and 0.
    """
    device = torch.device(device)
    vectors = torch.from_numpy(np.ascontiguousarray(queries, np.float32)).to(device)
    scores = torch.full((len(vectors), 0), 0.0, device=device)
    numbers = torch.zeros((len(vectors), 0), dtype=torch.int64, device=device)
    first = 0
    excluded = None if allowed is None else torch.from_numpy(~allowed).to(device)
    scores_at_a_time, (fewest, most) = SCORES_AT_A_TIME.get(device.type, 1 << 24), DOCUMENTS_AT_A_TIME
    for group in _groups(blocks, min(max(scores_at_a_time // max(1, len(vectors)), fewest), most)):
        products = _on_cpu(group) if device.type == "cpu" else _on_device(group, device)
        count = sum(map(len, group))
        step = max(1, scores_at_a_time // max(1, count))
        hidden = None if excluded is None else excluded[first : first + count]
        parts = [top_k(_hide(products(vectors[b : b + step]), hidden), k) for b in range(0, len(vectors), step)]
        if parts:
            scores = torch.cat([scores, torch.cat([values for values, _ in parts])], dim=1)
            numbers = torch.cat([numbers, torch.cat([places for _, places in parts]) + first], dim=1)
            scores, order = top_k(scores, k)
            numbers = numbers.gather(1, order)
        first += count
    if excluded is not None:
        missing = scores == -torch.inf
        numbers, scores = numbers.masked_fill(missing, -1), scores.masked_fill(missing, 0.0)
    return numbers.cpu().numpy(), scores.cpu().numpy()


def _hide(scores: Tensor, excluded: Tensor | None) -> Tensor:
    """Scores (Q, N) in which excluded documents (N,) come last."""
    return scores if excluded is None else scores.masked_fill_(excluded, -torch.inf)


def _on_device(group: Sequence[Block | Tensor], device: torch.device) -> Callable[[Tensor], Tensor]:
    copies = [block if isinstance(block, Tensor) else torch.from_numpy(np.array(block)).to(device) for block in group]
    documents = torch.cat(copies).float()
    return lambda queries: queries @ documents.T


def _on_cpu(group: Sequence[Block]) -> Callable[[Tensor], Tensor]:
    """Like :func:`_on_device`, but converts to fp32 piece by piece to stay in the processor's cache."""
    count = sum(map(len, group))

    def products(queries: Tensor) -> Tensor:
        scores = queries.new_empty(len(queries), count)
        if len(queries) <= FEW_QUERIES and group[0].dtype == np.float16 and has_kernel(queries.shape[1]):
            _scan(group, queries.numpy(), scores.numpy())
            return scores
        narrow = np.empty((min(PIECE, count), queries.shape[1]), group[0].dtype)
        wide = queries.new_empty(narrow.shape)
        for begin, parts in _pieces(group, len(narrow)):
            filled = 0
            for part in parts:
                # numpy converts four times as fast as torch on Arm; elsewhere torch is faster, but takes no read-only
                # array.
                np.copyto((wide.numpy() if _ON_ARM else narrow)[filled : filled + len(part)], part)
                filled += len(part)
            if not _ON_ARM:
                wide.copy_(torch.from_numpy(narrow))
            scores[:, begin : begin + filled] = queries @ wide[:filled].T
        return scores

    return products


def has_kernel(width: int) -> bool:
    """Whether this machine has a kernel for vectors of this width in fp16."""
    return _CONVERTS and width % 8 == 0


def _scan(group: Sequence[Block], queries: Vectors, scores: Vectors) -> None:
    """Compare a few queries with all documents, on all cores."""
    from rankwell.rank.vector_kernels import row_products  # imports numba

    rows = np.arange(PIECE)

    def compare(piece: tuple[int, list[Block]]) -> None:
        begin, parts = piece
        for part in parts:
            address, count = np.array([part.ctypes.data]), len(part)
            for query, row in zip(queries, scores, strict=True):
                row_products(address, count, rows[:count], query, row[begin : begin + count])
            begin += count

    map_lanes(compare, list(_pieces(group, PIECE)))


def _pieces(group: Sequence[Block], size: int) -> Iterator[tuple[int, list[Block]]]:
    """The rows of some blocks, ``size`` at a time: the number of the first, and the parts of blocks they are in."""
    begin, parts, left = 0, [], size
    for block in group:
        taken = 0
        while taken < len(block):
            parts.append(block[taken : taken + left])
            taken += len(parts[-1])
            left -= len(parts[-1])
            if not left:
                yield begin, parts
                begin, parts, left = begin + size, [], size
    if parts:
        yield begin, parts


def _groups(blocks: Iterator[Block | Tensor], size: int) -> Iterator[list[Any]]:
    """Blocks of at least ``size`` rows together, for fewer and larger steps."""
    group: list[Any] = []
    for block in blocks:
        group.append(block)
        if sum(map(len, group)) >= size:
            yield group
            group = []
    if group:
        yield group


# The largest numbers of each row in one pass over them


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
