"""Requests that come while others are being worked on are worked on together, next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Given = TypeVar("Given")


class Together(Generic[Asked, Given]):
    """``work`` done in ``pool``, one batch of at most ``most`` requests at a time; none waits for a fuller one.

    To be used within one event loop.
    """

    def __init__(self, work: Callable[[Sequence[Asked]], Sequence[Given]], pool: Executor, most: int):
        self._work, self._pool, self._most = work, pool, most
        self._waiting: list[tuple[Asked, asyncio.Future[Given]]] = []
        self._working: asyncio.Task[None] | None = None

    async def ask(self, asked: Asked) -> Given:
        """What ``work`` makes of it. A request that is cancelled before its batch begins is not worked on."""
        answer: asyncio.Future[Given] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, answer))
        if self._working is None:
            self._working = asyncio.create_task(self._work_on())
        return await answer

    async def _work_on(self) -> None:
        try:
            while self._waiting:
                batch = [(asked, answer) for asked, answer in self._waiting[: self._most] if not answer.done()]
                del self._waiting[: self._most]
                await self._answer([asked for asked, _ in batch], [answer for _, answer in batch])
        finally:
            self._working = None

    async def _answer(self, asked: Sequence[Asked], answers: Sequence[asyncio.Future[Given]]) -> None:
        if not asked:
            return
        try:
            given = await asyncio.get_running_loop().run_in_executor(self._pool, self._work, asked)
        except Exception as error:  # whatever it is, it is the answer of those who asked
            for answer in answers:
                if not answer.done():
                    answer.set_exception(error)
        else:
            for answer, value in zip(answers, given, strict=True):
                if not answer.done():
                    answer.set_result(value)
