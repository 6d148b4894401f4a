"""Commands: requested by people, accepted by the run's owner."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal
from uuid import UUID

from corevo.contracts import AcceptedCommand, AccountId, Cancelled, Command, CommandId, ExecutionId, JobId
from corevo.store.connections import Connections


async def request_cancel(db: Connections, account_id: AccountId, job_id: JobId) -> Cancelled:
    """Raises NotFound, also for somebody else's job."""
    row = await db.row("select command_id, ended, promoted from corevo.request_cancel($1, $2)", account_id, job_id)
    assert row is not None
    return Cancelled(**row)


async def request(
    db: Connections, account_id: AccountId, job_id: JobId, kind: Literal["input", "answer"], payload: Any
) -> CommandId:
    """Raises NotFound, also for somebody else's job, and TooManyCommands."""
    value: CommandId = await db.value(
        "select corevo.request_command($1, $2, $3, $4)",
        account_id,
        job_id,
        kind,
        json.dumps(payload, ensure_ascii=False),
    )
    return value


async def settle(db: Connections, execution_id: ExecutionId, token: UUID, command_id: CommandId, state: str) -> str:
    """Settles an accepted command as done or returned; the state it has now. Raises Stale. Repeatable."""
    row = await db.row(
        "select state from corevo.settle_commands($1, $2, $3, $4)", execution_id, token, [command_id], state
    )
    return "unknown" if row is None else str(row["state"])


async def accept(db: Connections, runs: Sequence[tuple[ExecutionId, UUID]]) -> list[AcceptedCommand]:
    """Accepts the open commands of these (execution, token); a stale identity gets none."""
    rows = await db.fetch(
        "select command_id, execution_id, kind, payload from corevo.accept_commands($1, $2)",
        [execution for execution, _ in runs],
        [token for _, token in runs],
    )
    return [AcceptedCommand(**{**row, "payload": json.loads(row["payload"] or "null")}) for row in rows]


async def read(db: Connections, account_id: AccountId, job_id: JobId, command_id: CommandId) -> Command | None:
    row = await db.row(
        "select id, kind, state, requested_at, accepted_at, done_at from corevo.read_command($1, $2, $3)",
        account_id,
        job_id,
        command_id,
    )
    return None if row is None else Command(**row)
