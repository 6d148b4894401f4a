"""What every role is made of: connections, notifier, pulse and background tasks of one process, and how it feels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from starlette.routing import BaseRoute

from corevo import health, metrics
from corevo.errors import CorevoError
from corevo.gate import pass_gate
from corevo.notifier import Notifier
from corevo.pulse import Heart, Pulse
from corevo.settings import RoleName, Settings
from corevo.store import server
from corevo.store.connections import Connections
from corevo.tasks import Background

PROBE_SECONDS = 5.0
FLUSH_SECONDS = 1.0
#: A disk that is full refuses some statements and not others: one that was refused is a reason for so long.
REFUSAL_SECONDS = 5.0


class Process:
    """One process of Corevo. A role adds its parts, then calls `begin` and `end` from its lifespan.

    `checks`: each returns None, or why the role cannot serve now. `samplers`: set gauges before they are printed.
    """

    def __init__(self, settings: Settings, role: RoleName) -> None:
        self.settings = settings
        self.db = Connections(
            settings.database_url,
            limit=settings.connections(role),
            name=f"corevo {role}",
            pooled=settings.behind_pooler,
        )
        self.notifier = Notifier(self.db, enabled=settings.notify == "on")
        self.background = Background()
        self.pulse: Pulse | None = None
        self.checks: list[Callable[[], str | None]] = []
        self.samplers: list[Callable[[], None]] = []
        self.facts: dict[str, Callable[[], Any]] = {}

    def add_pulse(
        self,
        channels: Sequence[str],
        on_message: Callable[[str, str], None],
        on_resync: Callable[[], None],
        heart: Heart | None = None,
    ) -> None:
        self.pulse = Pulse(self.settings, channels=channels, on_message=on_message, on_resync=on_resync, heart=heart)
        self.checks.append(lambda: None if self.pulse and self.pulse.alive else "the pulse has ended")
        self.facts["listen"] = lambda: "healthy" if self.listening() else "polling"

    def listening(self) -> bool:
        return self.pulse is not None and self.pulse.listening

    async def pass_gate(self) -> None:
        await pass_gate(self.db)

    def begin(self) -> None:
        """Starts the pulse and the notifier; the role's own tasks follow."""
        if self.pulse is not None:
            self.pulse.start()
        self.background.start(self.notifier.run(), "notifier")

    async def end(self) -> None:
        """Stops everything, the pulse after the tasks. Each step is bounded: a database that hangs holds up no exit."""
        await self.background.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await self.notifier.flush()
        if self.pulse is not None:
            await self.pulse.stop()
        await self.db.close()

    def routes(self) -> list[BaseRoute]:
        return health.routes(self.settings, self._reasons, self._facts, self._sample)

    async def _reasons(self) -> list[str]:
        why = self.background.failures + [found for check in self.checks if (found := check()) is not None]
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await server.takes_writes(self.db)
        except CorevoError as error:
            why.append(error.detail)
        except TimeoutError:
            why.append("the database does not answer")
        else:
            refusal = self.db.refusal(REFUSAL_SECONDS)
            if refusal is not None:
                why.append(f"the database refused a statement: {refusal}")
        return why

    def _facts(self) -> dict[str, Any]:
        return {name: fact() for name, fact in self.facts.items()}

    def _sample(self) -> None:
        lag = self.pulse.lag_ms if self.pulse is not None else 0.0
        metrics.sample_process(lag, self.listening(), self.db.statements)
        for sample in self.samplers:
            sample()
