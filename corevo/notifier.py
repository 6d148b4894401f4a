"""The coalescing notifier: at once when idle, in batches under load, never inside the transaction it announces."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from corevo.contracts import EVENT_CHANNEL, NOTIFY_LIMIT_BYTES
from corevo.errors import CorevoError
from corevo.store import notify
from corevo.store.connections import Connections

#: More than this waiting means that the database does not take it; the rest is dropped, polling finds it.
WAITING_LIMIT = 10_000


class Notifier:
    """`post` never blocks and never fails; one task sends. Messages of a channel keep their order."""

    def __init__(self, db: Connections, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.dropped = 0
        self._db = db
        self._waiting: list[tuple[str, str]] = []
        self._wake = asyncio.Event()

    def post(self, channel: str, payload: str) -> None:
        if not self.enabled:
            return
        if len(self._waiting) >= WAITING_LIMIT:
            self.dropped += 1
            return
        self._waiting.append((channel, payload))
        self._wake.set()

    def post_lines(self, channel: str, payloads: Iterable[object]) -> None:
        for payload in payloads:
            self.post(channel, str(payload))

    async def run(self) -> None:
        """Sends until cancelled. While one batch travels the next one gathers."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._waiting = self._waiting, []
            try:
                await notify.send(self._db, _merge(batch))
            except CorevoError:
                self.dropped += len(batch)  # messages only hurry; whoever needs the state polls for it

    async def flush(self) -> None:
        """Sends what waits, for a process that stops."""
        batch, self._waiting = self._waiting, []
        if batch:
            try:
                await notify.send(self._db, _merge(batch))
            except CorevoError:
                self.dropped += len(batch)


def _merge(batch: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Joins messages of one channel up to the payload limit: blocks by an empty line, ids and lanes by a newline."""
    merged: list[tuple[str, str]] = []
    open_at: dict[str, tuple[int, int]] = {}  # channel → place in merged, bytes
    seen: set[tuple[str, str]] = set()
    for channel, payload in batch:
        if channel != EVENT_CHANNEL:
            if (channel, payload) in seen:
                continue
            seen.add((channel, payload))
        size = len(payload.encode())
        place = open_at.get(channel)
        if place is not None and place[1] + size + 2 <= NOTIFY_LIMIT_BYTES:
            index, before = place
            joint = "\n\n" if channel == EVENT_CHANNEL else "\n"
            merged[index] = (channel, merged[index][1] + joint + payload)
            open_at[channel] = (index, before + size + 2)
        else:
            merged.append((channel, payload))
            open_at[channel] = (len(merged) - 1, size)
    return merged
