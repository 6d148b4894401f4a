"""Threads and their messages."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from corevo.contracts import AccountId, MessageView, ThreadId, ThreadView
from corevo.store.connections import Connections

THREAD_COLUMNS = "id, title, agent, current_job_id, current_state, created_at, updated_at"


async def create(db: Connections, account_id: AccountId, title: str) -> ThreadId:
    value: ThreadId = await db.value("select corevo.create_thread($1, $2)", account_id, title)
    return value


async def read(db: Connections, account_id: AccountId, thread_id: ThreadId) -> ThreadView | None:
    row = await db.row(f"select {THREAD_COLUMNS} from corevo.read_thread($1, $2)", account_id, thread_id)
    return None if row is None else ThreadView(**row)


async def list_newest(
    db: Connections, account_id: AccountId, *, before: tuple[datetime, UUID] | None = None, limit: int
) -> list[ThreadView]:
    at, last = before or (None, None)
    rows = await db.fetch(
        f"select {THREAD_COLUMNS} from corevo.list_threads($1, $2, $3, $4)", account_id, at, last, limit
    )
    return [ThreadView(**row) for row in rows]


async def rename(db: Connections, account_id: AccountId, thread_id: ThreadId, title: str) -> None:
    """Raises NotFound."""
    await db.fetch("select corevo.rename_thread($1, $2, $3)", account_id, thread_id, title)


async def delete(db: Connections, account_id: AccountId, thread_id: ThreadId) -> None:
    """Raises NotFound, ThreadBusy."""
    await db.fetch("select corevo.delete_thread($1, $2)", account_id, thread_id)


async def messages(
    db: Connections, account_id: AccountId, thread_id: ThreadId, *, after: tuple[int, int] = (0, 0), limit: int
) -> list[MessageView]:
    """Messages in the thread's order after a (turn, part)."""
    rows = await db.fetch(
        "select id, turn, part, role, text, job_id, status, created_at from corevo.list_messages($1, $2, $3, $4, $5)",
        account_id,
        thread_id,
        after[0],
        after[1],
        limit,
    )
    return [MessageView(**row) for row in rows]
