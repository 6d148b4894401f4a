"""Two calls at once, in an order that is proven: the first is held open, the second is seen waiting for it.

The product never opens a transaction around a protocol call; these tests do, to stretch the moment that matters.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from tests.protocol import Protocol

WAIT_SECONDS = 10.0
T = TypeVar("T")


async def waiting_for(holder: Protocol, waiter: Protocol, onlooker: Protocol, task: asyncio.Task[Any]) -> None:
    """Returns once the server says that the waiter's call waits for a lock of the holder."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not await onlooker.value(
            "select $1 = any (pg_blocking_pids($2))",
            holder.connection.get_server_pid(),
            waiter.connection.get_server_pid(),
        ):
            assert not task.done(), f"it did not wait: {task.result()}"


class Meeting:
    """`await meeting.waits(call)` starts a call on the second connection and returns once it waits for the first."""

    def __init__(self, first: Protocol, second: Protocol, onlooker: Protocol) -> None:
        self.first, self.second, self.onlooker = first, second, onlooker
        self.task: asyncio.Task[Any] | None = None

    async def waits(self, call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(call)
        self.task = task
        await waiting_for(self.first, self.second, self.onlooker, task)
        return task


@asynccontextmanager
async def held(connections: list[Protocol]) -> AsyncIterator[Meeting]:
    """The block's calls on the first connection stay uncommitted until it ends."""
    meeting = Meeting(*connections[:3])
    async with connections[0].connection.transaction():
        yield meeting
    if meeting.task:
        await asyncio.wait_for(asyncio.wait([meeting.task]), WAIT_SECONDS)
