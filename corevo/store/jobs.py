"""Jobs and their ownership: admit, claim, release, start, finish, and what people read of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from corevo.contracts import (
    AccountId,
    Admission,
    Admitted,
    Claim,
    ClaimedJob,
    Finish,
    Finished,
    JobId,
    JobView,
    Lane,
    Message,
    Row,
    Started,
    ThreadId,
    WorkerId,
)
from corevo.store.connections import Connections

JOB_COLUMNS = (
    "id, account_id, thread_id, agent, lane, state, epoch, execution_id, queue_position, created_at, started_at, "
    "finished_at, error_code, error_message, cancel_requested"
)


async def admit(
    db: Connections, admission: Admission, *, next_limit: int, worker_id: WorkerId | None = None
) -> Admitted:
    """Admits one request, or raises the refusal. `worker_id`: take the job at once if nobody waits (local direct)."""
    row = await db.row(
        "select outcome, job_id, thread_id, command_id, epoch, token, lane, touched "
        "from corevo.admit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        admission.account_id,
        admission.text,
        json.dumps(admission.input, ensure_ascii=False),
        None if admission.metadata is None else json.dumps(admission.metadata, ensure_ascii=False),
        admission.agent,
        admission.thread_id,
        admission.on_busy,
        admission.idempotency_key,
        admission.body_hash,
        next_limit,
        worker_id,
    )
    assert row is not None
    claim = None
    if row["token"] is not None:
        claim = Claim(job_id=row["job_id"], epoch=row["epoch"], token=row["token"])
    return Admitted(
        outcome=row["outcome"],
        job_id=row["job_id"],
        thread_id=row["thread_id"],
        command_id=row["command_id"],
        lane=row["lane"],
        claim=claim,
        touched=tuple(row["touched"]),
    )


async def claim(
    db: Connections, worker_id: WorkerId, request: UUID, agents: Sequence[str], lane: Lane, limit: int
) -> list[Claim]:
    """Claims up to `limit` jobs of one lane. The same `request` again returns those that did not start yet."""
    rows = await db.fetch(
        "select job_id, epoch, token from corevo.claim($1, $2, $3, $4, $5)",
        worker_id,
        request,
        list(agents),
        lane,
        limit,
    )
    return [Claim(**row) for row in rows]


async def next_due(db: Connections, agents: Sequence[str], lanes: Sequence[Lane]) -> float | None:
    """Seconds until the next waiting job may be claimed, below 0 when one may be already; None when none waits."""
    value: float | None = await db.value("select corevo.next_due($1, $2)", list(agents), list(lanes))
    return value


async def release(db: Connections, claim: Claim) -> None:
    """Gives a claim back that did not start. Raises Stale."""
    await db.fetch("select corevo.release($1, $2, $3)", claim.job_id, claim.epoch, claim.token)


async def read_claims(db: Connections, worker_id: WorkerId, claims: Sequence[Claim]) -> list[ClaimedJob]:
    """What these claims need to run; those that were lost meanwhile are missing."""
    rows = await db.fetch(
        "select job_id, thread_id, account_id, turn, agent, lane, input, metadata, timeout_seconds, attempt, "
        "max_attempts, created_at, has_commands from corevo.read_claims($1, $2, $3)",
        worker_id,
        [c.job_id for c in claims],
        [c.token for c in claims],
    )
    return [
        ClaimedJob(**{**row, "input": json.loads(row["input"]), "metadata": json.loads(row["metadata"] or "null")})
        for row in rows
    ]


async def read_context(
    db: Connections, thread_id: ThreadId, turn: int, *, limit: int, limit_characters: int
) -> list[Message]:
    """The messages a run sees, oldest first; the oldest are left out where a limit is reached."""
    rows = await db.fetch(
        "select role, text, status, created_at from corevo.read_context($1, $2, $3, $4)",
        thread_id,
        turn,
        limit,
        limit_characters,
    )
    return [Message(**row) for row in reversed(rows)]


async def start(db: Connections, worker_id: WorkerId, claims: Sequence[Claim]) -> list[Started]:
    """Starts claims; one answer each, in the same order. Sent again it answers the same."""
    rows = await db.fetch(
        "select job_id, result, execution_id, remaining_seconds, ended_by from corevo.start($1, $2, $3, $4)",
        worker_id,
        [c.job_id for c in claims],
        [c.epoch for c in claims],
        [c.token for c in claims],
    )
    return [Started(**row) for row in rows]


async def finish(db: Connections, endings: Sequence[Finish]) -> list[Finished]:
    """Ends executions and their jobs in one transaction; one answer each, in the same order."""
    events = [(e.execution_id, event) for e in endings for event in e.tail]
    rows = await db.fetch(
        "select execution_id, result, ended_by, stored_seq, job_id, terminal_seq, terminal_data, promoted "
        "from corevo.finish($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        [e.execution_id for e in endings],
        [e.token for e in endings],
        [e.outcome for e in endings],
        [e.reason for e in endings],
        [e.message for e in endings],
        [execution for execution, _ in events],
        [event.seq for _, event in events],
        [event.type for _, event in events],
        [event.data for _, event in events],
    )
    return [Finished(**row) for row in rows]


async def read(db: Connections, account_id: AccountId, job_id: JobId) -> JobView | None:
    row = await db.row(f"select {JOB_COLUMNS} from corevo.read_job($1, $2)", account_id, job_id)
    return None if row is None else view(row)


async def read_many(db: Connections, job_ids: Sequence[JobId]) -> list[JobView]:
    """For streams whose owner was checked when they were opened."""
    rows = await db.fetch(f"select {JOB_COLUMNS} from corevo.job_rows($1)", list(job_ids))
    return [view(row) for row in rows]


async def list_newest(
    db: Connections,
    account_id: AccountId,
    *,
    thread_id: ThreadId | None = None,
    before: tuple[datetime, UUID] | None = None,
    limit: int,
) -> list[JobView]:
    at, last = before or (None, None)
    rows = await db.fetch(
        f"select {JOB_COLUMNS} from corevo.list_jobs($1, $2, $3, $4, $5)", account_id, thread_id, at, last, limit
    )
    return [view(row) for row in rows]


def view(row: Row) -> JobView:
    values: dict[str, Any] = dict(row)
    return JobView(**values)
