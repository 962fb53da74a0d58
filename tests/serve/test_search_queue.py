"""Queries that wait are searched in one batch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from rankwell.serve.engine import SearchQueue


class Squares:
    """Work that waits until it is let go, and remembers its batches."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.batches: list[list[int]] = []

    def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.batches.append(list(numbers))
        assert self.go.wait(120)
        if 13 in numbers:
            raise ArithmeticError("thirteen")
        return [number * number for number in numbers]


async def begun(squares: Squares, batches: int) -> None:
    while len(squares.batches) < batches:
        await asyncio.sleep(0.001)


async def ask_while_busy(squares: Squares, first: int, others: Sequence[int], most: int = 3) -> list[object]:
    """``others`` are asked for while ``first`` is worked on."""
    with ThreadPoolExecutor(2) as pool:
        queue = SearchQueue(squares, pool, most)
        tasks = [asyncio.create_task(queue.submit(first))]
        await begun(squares, 1)
        tasks += [asyncio.create_task(queue.submit(number)) for number in others]
        await asyncio.sleep(0)
        squares.go.set()
        return await asyncio.gather(*tasks, return_exceptions=True)


def test_what_waits_is_worked_on_together_and_each_gets_its_own() -> None:
    squares = Squares()
    assert asyncio.run(ask_while_busy(squares, 2, [3, 4, 5, 6, 7])) == [4, 9, 16, 25, 36, 49]
    assert squares.batches == [[2], [3, 4, 5], [6, 7]]


def test_an_error_reaches_those_of_its_batch_alone() -> None:
    found = asyncio.run(ask_while_busy(Squares(), 2, [3, 13, 5, 6]))
    assert [type(one) for one in found] == [int, ArithmeticError, ArithmeticError, ArithmeticError, int]


def test_who_has_left_is_not_worked_on_and_keeps_nobody_waiting() -> None:
    squares = Squares()

    async def leave() -> int:
        with ThreadPoolExecutor(1) as pool:
            queue = SearchQueue(squares, pool, 1)
            working, waiting = (asyncio.create_task(queue.submit(number)) for number in (2, 3))
            await begun(squares, 1)
            working.cancel()
            waiting.cancel()
            staying = asyncio.create_task(queue.submit(4))
            await asyncio.sleep(0)
            squares.go.set()
            found = await staying
            assert working.cancelled()
            assert waiting.cancelled()
            return found + await queue.submit(5)  # and after a pause it begins anew

    assert asyncio.run(leave()) == 16 + 25
    assert squares.batches == [[2], [4], [5]]


def test_a_pool_that_has_ended_is_an_error_not_a_wait() -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="shutdown"):
        asyncio.run(SearchQueue(Squares(), pool, 1).submit(2))
