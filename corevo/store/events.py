"""Events: the append of a worker, the history that gateways serve, and the day partitions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from corevo.contracts import Append, Appended, ExecutionId, JobId, StoredEvent, StreamHead
from corevo.errors import ProtocolError
from corevo.store.connections import Connections

PARTITION_NAME = re.compile(r"events_\d{8}")


async def append(db: Connections, runs: Sequence[Append]) -> list[Appended]:
    """Stores events of several runs, each run once; one answer a run. Never waits for a lock."""
    events = [(run.execution_id, event) for run in runs for event in run.events]
    rows = await db.fetch(
        "select execution_id, result, ended_by, stored_seq, insert_lsn, flush_lsn "
        "from corevo.append_events($1, $2, $3, $4, $5, $6, $7)",
        [run.execution_id for run in runs],
        [run.token for run in runs],
        [run.first_seq for run in runs],
        [execution for execution, _ in events],
        [event.seq for _, event in events],
        [event.type for _, event in events],
        [event.data for _, event in events],
    )
    return [Appended(**row) for row in rows]


async def read(
    db: Connections, job_id: JobId, *, epoch: int, seq: int, limit: int, limit_bytes: int = 262_144
) -> list[StoredEvent]:
    """Stored events of a job after (epoch, seq), in that order. A full page may be cut by bytes before `limit`."""
    rows = await db.fetch(
        "select execution_id, epoch, seq, type, data from corevo.read_events($1, $2, $3, $4, $5)",
        job_id,
        epoch,
        seq,
        limit,
        limit_bytes,
    )
    return [StoredEvent(**row) for row in rows]


async def heads(db: Connections, job_ids: Sequence[JobId]) -> list[StreamHead]:
    """Where these jobs' streams stand, in one statement."""
    rows = await db.fetch(
        "select job_id, state, cancel_requested, last_execution_id, last_epoch, last_seq, last_ended, last_will_retry "
        "from corevo.stream_heads($1)",
        list(job_ids),
    )
    return [StreamHead(**row) for row in rows]


async def execution_epoch(db: Connections, job_id: JobId, execution_id: ExecutionId) -> int | None:
    """The epoch of an execution of this job; None when it is not one of its executions."""
    value: int | None = await db.value("select corevo.execution_epoch($1, $2)", job_id, execution_id)
    return value


async def ensure_partitions(db: Connections, days_ahead: int) -> int:
    value: int = await db.value("select corevo.ensure_partitions($1)", days_ahead)
    return value


async def partitions_ahead(db: Connections) -> int:
    value: int = await db.value("select corevo.partitions_ahead()")
    return value


async def old_partitions(db: Connections, days: int) -> list[tuple[str, str]]:
    """(name, state) of day partitions that retention may remove; state: attached, pending or detached."""
    rows = await db.fetch("select name, state from corevo.old_partitions($1)", days)
    return [(row["name"], row["state"]) for row in rows]


async def remove_partition(db: Connections, name: str, state: str) -> None:
    """Removes one day in steps that lock out nobody; what is interrupted goes on from its state at the next try.

    The one transition that is no function: DETACH … CONCURRENTLY cannot run inside one.
    """
    if not PARTITION_NAME.fullmatch(name):
        raise ProtocolError(f"{name!r} is no day partition")
    if state == "attached":
        await db.fetch(f"alter table corevo.events detach partition corevo.{name} concurrently")
    elif state == "pending":
        await db.fetch(f"alter table corevo.events detach partition corevo.{name} finalize")
    await db.fetch(f"drop table corevo.{name}")


async def prune_events(db: Connections, days: int, limit: int) -> int:
    """Deletes old events row by row, where this role may not change tables; how many."""
    value: int = await db.value("select corevo.prune_events($1, $2)", days, limit)
    return value


async def log_position(db: Connections) -> tuple[int, int]:
    """The server's insert and flush positions now, as append returns them."""
    row = await db.row("select insert_lsn, flush_lsn from corevo.log_position()")
    assert row is not None
    return row["insert_lsn"], row["flush_lsn"]
