"""Workers and the agents they serve."""

from __future__ import annotations

from collections.abc import Sequence

from corevo.contracts import AgentSpec, WorkerId
from corevo.store.connections import Connections


async def register(
    db: Connections, worker_id: WorkerId, *, name: str, version: str, agents: Sequence[AgentSpec]
) -> None:
    """Makes the row of a new incarnation and registers its agents."""
    await db.fetch(
        "select corevo.register_worker($1, $2, $3, $4, $5, $6, $7, $8)",
        worker_id,
        name,
        version,
        [a.name for a in agents],
        [a.lane for a in agents],
        [a.timeout_seconds for a in agents],
        [a.retry_safe for a in agents],
        [a.max_attempts for a in agents],
    )


async def drain(db: Connections, worker_id: WorkerId) -> None:
    await db.fetch("select corevo.drain_worker($1)", worker_id)


async def retire(db: Connections, worker_id: WorkerId) -> None:
    """The last word of a worker that stops by itself."""
    await db.fetch("select corevo.retire_worker($1)", worker_id)


async def agents_served(db: Connections, seconds: float = 60.0) -> list[AgentSpec]:
    """Agents that some worker has served within the last `seconds`."""
    rows = await db.fetch("select name, lane, timeout_seconds from corevo.agents_served($1) order by name", seconds)
    return [AgentSpec(**row) for row in rows]
