"""Queries that wait are searched in one batch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from rankwell.serve.engine import Entry, WorkQueue


class Squares:
    """Work that waits until it is let go, and remembers its batches."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.batches: list[list[int]] = []

    def __call__(self, group: str, numbers: Sequence[int]) -> list[int]:
        self.batches.append(list(numbers))
        assert self.go.wait(120)
        if 13 in numbers:
            raise ArithmeticError("thirteen")
        return [number * number for number in numbers]


@pytest.fixture
def squares() -> Squares:
    return Squares()


@pytest.fixture
def queue(squares: Squares) -> Iterator[WorkQueue[str, int, int]]:
    queue = WorkQueue("squares", squares, lambda group: 1 if group == "alone" else 3)
    queue.start()
    yield queue
    squares.go.set()
    queue.stop()


async def begun(squares: Squares, batches: int) -> None:
    while len(squares.batches) < batches:
        await asyncio.sleep(0.001)


async def ask_while_busy(queue: Any, squares: Squares, first: int, others: Sequence[int]) -> list[object]:
    """``others`` are asked for while ``first`` is worked on."""
    tasks = [asyncio.create_task(queue.ask(Entry(), "together", first))]
    await begun(squares, 1)
    tasks += [asyncio.create_task(queue.ask(Entry(), "together", number)) for number in others]
    await asyncio.sleep(0)
    squares.go.set()
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_what_waits_is_worked_on_together_and_each_gets_its_own(queue: Any, squares: Squares) -> None:
    assert asyncio.run(ask_while_busy(queue, squares, 2, [3, 4, 5, 6, 7])) == [4, 9, 16, 25, 36, 49]
    assert squares.batches == [[2], [3, 4, 5], [6, 7]]


def test_an_error_reaches_the_request_that_caused_it_alone(queue: Any, squares: Squares) -> None:
    results = asyncio.run(ask_while_busy(queue, squares, 2, [3, 13, 5, 6]))
    assert [type(one) for one in results] == [int, int, ArithmeticError, int, int]


def test_who_has_left_is_not_worked_on_and_keeps_nobody_waiting(queue: Any, squares: Squares) -> None:
    async def leave() -> int:
        working, waiting = (asyncio.create_task(queue.ask(Entry(), "alone", number)) for number in (2, 3))
        await begun(squares, 1)
        working.cancel()
        waiting.cancel()
        staying = asyncio.create_task(queue.ask(Entry(), "alone", 4))
        await asyncio.sleep(0)
        squares.go.set()
        result: int = await staying
        assert working.cancelled()
        assert waiting.cancelled()
        return result + await queue.ask(Entry(), "alone", 5)  # and after a pause it begins anew

    assert asyncio.run(leave()) == 16 + 25
    assert squares.batches == [[2], [4], [5]]


def test_a_queue_that_has_ended_is_an_error_not_a_wait(queue: Any, squares: Squares) -> None:
    squares.go.set()
    queue.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        asyncio.run(queue.ask(Entry(), "alone", 2))
