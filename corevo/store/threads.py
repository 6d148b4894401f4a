"""Threads and their messages."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from corevo.contracts import AccountId, MessageView, ThreadId, ThreadView
from corevo.store.connections import Connections

THREAD_COLUMNS = "id, title, agent, current_job_id, current_state, unread, created_at, updated_at"
MESSAGE_COLUMNS = "id, turn, part, role, text, job_id, status, error_code, error_message, created_at"
#: Above every turn.
NEWEST = (2**31 - 1, 0)


async def create(db: Connections, account_id: AccountId, title: str) -> ThreadId:
    value: ThreadId = await db.value("select corevo.create_thread($1, $2)", account_id, title)
    return value


async def read(db: Connections, account_id: AccountId, thread_id: ThreadId) -> ThreadView | None:
    row = await db.row(f"select {THREAD_COLUMNS} from corevo.thread_view($1, $2)", account_id, thread_id)
    return None if row is None else ThreadView(**row)


async def list_newest(
    db: Connections,
    account_id: AccountId,
    *,
    words: str | None = None,
    before: tuple[datetime, UUID] | None = None,
    limit: int,
) -> list[ThreadView]:
    """`words`: only threads with these words in the title."""
    at, last = before or (None, None)
    rows = await db.fetch(
        f"select {THREAD_COLUMNS} from corevo.find_threads($1, $2, $3, $4, $5)", account_id, words, at, last, limit
    )
    return [ThreadView(**row) for row in rows]


async def rename(db: Connections, account_id: AccountId, thread_id: ThreadId, title: str) -> None:
    """Raises NotFound."""
    await db.fetch("select corevo.rename_thread($1, $2, $3)", account_id, thread_id, title)


async def mark(db: Connections, account_id: AccountId, thread_id: ThreadId, *, unread: bool) -> None:
    """Raises NotFound."""
    await db.fetch("select corevo.mark_thread($1, $2, $3)", account_id, thread_id, unread)


async def delete(db: Connections, account_id: AccountId, thread_id: ThreadId) -> None:
    """Raises NotFound, ThreadBusy."""
    await db.fetch("select corevo.delete_thread($1, $2)", account_id, thread_id)


async def messages(
    db: Connections, account_id: AccountId, thread_id: ThreadId, *, after: tuple[int, int] = (0, 0), limit: int
) -> list[MessageView]:
    """Messages in the thread's order after a (turn, part)."""
    return await _messages(db, "messages_after", account_id, thread_id, after, limit)


async def messages_newest(
    db: Connections, account_id: AccountId, thread_id: ThreadId, *, before: tuple[int, int] = NEWEST, limit: int
) -> list[MessageView]:
    """Messages from the newest on, before a (turn, part)."""
    return await _messages(db, "messages_before", account_id, thread_id, before, limit)


async def _messages(
    db: Connections, function: str, account_id: AccountId, thread_id: ThreadId, place: tuple[int, int], limit: int
) -> list[MessageView]:
    rows = await db.fetch(
        f"select {MESSAGE_COLUMNS} from corevo.{function}($1, $2, $3, $4, $5)", account_id, thread_id, *place, limit
    )
    return [MessageView(**row) for row in rows]
