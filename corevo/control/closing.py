"""The word that this process stops: every open stream hears it at once, says good-bye and ends."""

from __future__ import annotations

import asyncio
import random


class Closing:
    """`wakes` are those of the open streams; a stream waits on its own and looks at `begun`."""

    def __init__(self) -> None:
        self.begun = False
        self._wakes: set[asyncio.Event] = set()

    def begin(self) -> None:
        """May be called again."""
        self.begun = True
        for wake in self._wakes:
            wake.set()

    def add(self, wake: asyncio.Event) -> None:
        self._wakes.add(wake)
        if self.begun:
            wake.set()

    def discard(self, wake: asyncio.Event) -> None:
        self._wakes.discard(wake)

    def return_in_ms(self) -> int:
        """When a client should come back: spread, so that the next gateway is not met by all of them at once."""
        return int(random.uniform(100, 1_000 + min(20 * len(self._wakes), 30_000)))
