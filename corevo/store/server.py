"""What the start gate and the doctor ask the server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from corevo import clock
from corevo.errors import Unavailable
from corevo.store import events, migrations
from corevo.store.connections import Connections, connect


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """`schema_problem`: None, or one line that says what to do; `migrating`: a migration runs now."""

    version: int
    read_only: bool
    encoding: str
    schema_version: int
    schema_problem: str | None
    migrating: bool
    partitions_ahead: int


@dataclass(frozen=True, slots=True)
class Room:
    """Connections: how many this role may open on this database, and how many are open on it now."""

    allowed: int
    open: int


async def facts(db: Connections) -> ServerFacts:
    row = await db.row(
        "select current_setting('server_version_num')::int / 10000 as version, "
        "pg_is_in_recovery() or current_setting('default_transaction_read_only')::bool as read_only, "
        "current_setting('server_encoding') as encoding, "
        "exists (select 1 from pg_locks l where l.locktype = 'advisory' and l.objsubid = 1 and l.granted "
        "  and l.database = (select d.oid from pg_database d where d.datname = current_database()) "
        "  and l.classid::bigint = $1::bigint >> 32 and l.objid::bigint = $1::bigint & 4294967295) as migrating",
        migrations.LOCK,
    )
    assert row is not None
    state = await migrations.read_state(db.row)
    problem = migrations.compare(state, migrations.release())
    ahead = 0 if problem else await events.partitions_ahead(db)
    return ServerFacts(
        row["version"], row["read_only"], row["encoding"], state.version, problem, row["migrating"], ahead
    )


async def takes_writes(db: Connections) -> None:
    """Raises Unavailable, with the reason, unless the database answers now and lets us write."""
    row = await db.row(
        "select current_setting('transaction_read_only') = 'on' as read_only, "
        "has_table_privilege('corevo.jobs', 'insert') and has_table_privilege('corevo.jobs', 'update') as may_write"
    )
    assert row is not None
    if row["read_only"]:
        raise Unavailable("the database is read-only")
    if not row["may_write"]:
        raise Unavailable("the right to write was revoked")


async def room(db: Connections) -> Room:
    """The narrowest of the limits of server, database and role; -1 means none there."""
    row = await db.row(
        "select least("
        " current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"
        "  - coalesce(current_setting('reserved_connections', true), '0')::int,"
        " (select case when d.datconnlimit < 0 then 1000000 else d.datconnlimit end from pg_database d"
        "   where d.datname = current_database()),"
        " (select case when r.rolconnlimit < 0 then 1000000 else r.rolconnlimit end from pg_roles r"
        "   where r.rolname = current_user)) as allowed,"
        " (select count(*)::int from pg_stat_activity a where a.datname = current_database()) as open"
    )
    assert row is not None
    return Room(row["allowed"], row["open"])


async def listen_round_trip(url: str, seconds: float) -> float | None:
    """Seconds from NOTIFY to hearing it on one direct connection; None when it does not come back."""
    connection = await connect(url, name="corevo doctor")
    heard = asyncio.Event()
    try:
        await connection.add_listener("corevo_doctor", lambda *_: heard.set())
        began = clock.seconds()
        await connection.execute("select pg_notify('corevo_doctor', '')")
        try:
            async with asyncio.timeout(seconds):
                await heard.wait()
        except TimeoutError:
            return None
        return clock.seconds() - began
    finally:
        await connection.close(timeout=2)


async def fleet(db: Connections) -> dict[str, Any]:
    """Live workers, and the greatest event loop lag that any of them had between its last two heartbeats."""
    row = await db.row("select workers, lag_ms from corevo.fleet()")
    assert row is not None
    return dict(row)
