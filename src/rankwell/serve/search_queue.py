"""A queue that batches searches: requests that arrive while a batch runs form the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, TypeVar

Query = TypeVar("Query")
Result = TypeVar("Result")


class SearchQueue(Generic[Query, Result]):
    """Runs ``search`` in ``pool`` on one batch of at most ``size`` queries at a time; none waits for a fuller batch.

    Use it within one event loop.
    """

    def __init__(self, search: Callable[[Sequence[Query]], Sequence[Result]], pool: Executor, size: int):
        self._search, self._pool, self._size = search, pool, size
        self._waiting: list[tuple[Query, asyncio.Future[Result]]] = []
        self._running: asyncio.Task[None] | None = None

    async def submit(self, query: Query) -> Result:
        """The result for ``query``. If cancelled before its batch begins, it is not searched."""
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((query, answer))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = [(query, answer) for query, answer in self._waiting[: self._size] if not answer.done()]
                del self._waiting[: self._size]
                await self._answer([query for query, _ in batch], [answer for _, answer in batch])
        finally:
            self._running = None

    async def _answer(self, queries: Sequence[Query], answers: Sequence[asyncio.Future[Result]]) -> None:
        if not queries:
            return
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._pool, self._search, queries)
        except Exception as error:  # every query of the batch gets the error
            for answer in answers:
                if not answer.done():
                    answer.set_exception(error)
        else:
            for answer, result in zip(answers, results, strict=True):
                if not answer.done():
                    answer.set_result(result)
