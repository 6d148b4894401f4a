"""Natural batching: calls that wait while one is under way travel together in the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from corevo.errors import ProtocolError

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Batcher(Generic[Request, Answer]):
    """`ask` returns the answer to one request; `call` gets whatever waits, at most `limit`, and answers in order.

    The first request goes at once. A batch that fails whole as a bad call is sent again one by one, so that one bad
    request does not fail its neighbours; any other error reaches everyone who waits for that batch.
    """

    def __init__(self, call: Callable[[Sequence[Request]], Awaitable[Sequence[Answer]]], *, limit: int = 100) -> None:
        self._call = call
        self._limit = limit
        self._waiting: list[tuple[Request, asyncio.Future[Answer]]] = []
        self._task: asyncio.Task[None] | None = None

    async def ask(self, request: Request) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send_all())
        return await future

    async def _send_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
            try:
                answers = await self._call([request for request, _ in batch])
            except ProtocolError as error:
                if len(batch) == 1:
                    _fail(batch, error)
                else:
                    for one in batch:
                        await self._send_one(one)
            except Exception as error:
                _fail(batch, error)
            else:
                for (_, future), answer in zip(batch, answers, strict=True):
                    if not future.done():
                        future.set_result(answer)

    async def _send_one(self, one: tuple[Request, asyncio.Future[Answer]]) -> None:
        try:
            (answer,) = await self._call([one[0]])
        except Exception as error:
            _fail([one], error)
        else:
            if not one[1].done():
                one[1].set_result(answer)


def _fail(batch: list[tuple[Request, asyncio.Future[Answer]]], error: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)
