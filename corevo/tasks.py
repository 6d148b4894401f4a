"""A role's background tasks: each has a name, and a dead one is seen by /readyz instead of being forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

log = structlog.get_logger()

CANCEL_SECONDS = 1.0


class Background:
    """Owns the long-lived tasks of one process."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """A task that is meant to run until `stop`."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    async def stop(self) -> None:
        """Cancels all, the newest first, and waits for them."""
        while self._tasks:
            task = self._tasks.pop()
            while not task.done():  # a library below may swallow one cancellation
                task.cancel()
                await asyncio.wait([task], timeout=CANCEL_SECONDS)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        self.failures.append(f"the {task.get_name()} task has ended")
        log.error("a background task has ended", task=task.get_name(), exc_info=error)
