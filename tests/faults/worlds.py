"""A database with a gateway on it and a client before that: where a scenario happens."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.faults.history import History
from tests.faults.proxy import Proxy, a_proxy
from tests.faults.roles import Role, Zygote
from tests.faults.servers import Server, execute
from tests.processes import QUICK

APP = "tests/faults/agents.py"
TTL_SECONDS = float(QUICK["COREVO_HEARTBEAT_TTL_SECONDS"])
PERIOD_SECONDS = float(QUICK["COREVO_JANITOR_SECONDS"])
TIMINGS = {"ttl_seconds": TTL_SECONDS, "stall_limit_seconds": 3.0, "period_seconds": PERIOD_SECONDS}
QUICKER = {"COREVO_POLL_SECONDS": "1"}

numbers = itertools.count(1)


@dataclass
class World:
    server: Server
    forks: Zygote
    dsn: str
    gateway: Role
    settings: Mapping[str, str] = field(default_factory=dict)

    def history(self, seed: int | str) -> History:
        return History(self.dsn, [self.gateway.url], seed)

    async def worker(
        self,
        *,
        database: str = "",
        plans: Sequence[str] = (),
        ready: bool = True,
        settings: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> Role:
        merged = {**self.settings, **(settings or {})}
        return await self.forks.spawn(
            database or self.dsn, "worker", APP, *options, plans=plans, ready=ready, settings=merged
        )

    async def janitor(self, *, plans: Sequence[str] = (), settings: Mapping[str, str] | None = None) -> Role:
        merged = {**self.settings, **(settings or {})}
        return await self.forks.spawn(self.dsn, "janitor", plans=plans, settings=merged)

    @contextlib.asynccontextmanager
    async def proxy(self) -> AsyncIterator[Proxy]:
        async with a_proxy(self.server.socket_path) as proxy:
            yield proxy

    async def sql(self, sql: str, *args: object) -> list[dict[str, object]]:
        return [dict(row) for row in await execute(self.dsn, sql, *args)]


@contextlib.asynccontextmanager
async def a_world(
    server: Server, forks: Zygote, *, settings: Mapping[str, str] | None = None, gateways: int = 1
) -> AsyncIterator[World]:
    """The agents are known from the start: a worker served them and went."""
    name = f"world_{next(numbers)}"
    dsn = await server.make(name, "corevo_template")
    settings = {**QUICKER, **(settings or {})}
    async with forks.role(dsn, "worker", APP, settings=settings):
        pass
    async with forks.role(dsn, "web", "--port", "0", settings=settings) as gateway:
        yield World(server, forks, dsn, gateway, settings)
    await server.run(f'drop database "{name}" with (force)')
