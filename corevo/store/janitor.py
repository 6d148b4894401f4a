"""The janitor's calls: its duty, the fence, and one job at a time."""

from __future__ import annotations

from uuid import UUID

from corevo.contracts import Duty, JobId, Swept, WorkerId
from corevo.store.connections import Connections


async def hold_duty(
    db: Connections, name: str, holder: UUID, token: UUID, *, lease_seconds: float, ttl_seconds: float
) -> Duty:
    row = await db.row(
        "select held, watched_seconds from corevo.hold_duty($1, $2, $3, $4, $5)",
        name,
        holder,
        token,
        lease_seconds,
        ttl_seconds,
    )
    assert row is not None
    return Duty(**row)


async def drop_duty(db: Connections, name: str, token: UUID) -> None:
    await db.fetch("select corevo.drop_duty($1, $2)", name, token)


async def fence_workers(db: Connections, ttl_seconds: float) -> list[tuple[WorkerId, str]]:
    rows = await db.fetch("select worker_id, name from corevo.fence_workers($1)", ttl_seconds)
    return [(row["worker_id"], row["name"]) for row in rows]


async def end_stuck_backends(db: Connections, seconds: float) -> int:
    """Ends sessions whose client is frozen inside a reply, with a transaction older than `seconds`; how many."""
    value: int = await db.value("select corevo.end_stuck_backends($1)", seconds)
    return value


async def prune_rows(db: Connections, limit: int) -> int:
    """Deletes small rows that nobody asks for any more; how many."""
    value: int = await db.value("select corevo.prune_rows($1)", limit)
    return value


async def jobs_to_sweep(db: Connections, *, late_seconds: float, limit: int) -> list[JobId]:
    rows = await db.fetch("select job_id from corevo.jobs_to_sweep($1, $2)", late_seconds, limit)
    return [row["job_id"] for row in rows]


async def sweep_job(db: Connections, job_id: JobId, *, late_seconds: float) -> Swept:
    row = await db.row(
        "select result, execution_id, epoch, terminal_seq, terminal_data, promoted from corevo.sweep_job($1, $2)",
        job_id,
        late_seconds,
    )
    assert row is not None
    result: str = row["result"]
    ended = row["execution_id"] is not None
    return Swept(
        job_id=job_id,
        result=result,
        execution_id=row["execution_id"],
        epoch=row["epoch"],
        terminal_type=f"run.{'lost' if result == 'retry' else result}" if ended else None,
        terminal_seq=row["terminal_seq"],
        terminal_data=row["terminal_data"],
        promoted=row["promoted"],
    )


async def jobs_to_expire(db: Connections, *, limit_seconds: float, limit: int) -> list[JobId]:
    rows = await db.fetch("select job_id from corevo.jobs_to_expire($1, $2)", limit_seconds, limit)
    return [row["job_id"] for row in rows]


async def expire_job(db: Connections, job_id: JobId, *, limit_seconds: float) -> tuple[bool, JobId | None]:
    """Whether it expired, and the next job that became current."""
    row = await db.row("select expired, promoted from corevo.expire_job($1, $2)", job_id, limit_seconds)
    assert row is not None
    return row["expired"], row["promoted"]
