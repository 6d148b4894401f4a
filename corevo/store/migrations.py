"""Brings a database's schema up to this release. Only `corevo migrate` (and `corevo dev`) does; roles never do.

Migrations are numbered files that run once, forward only. Functions are re-applied whole. Everything happens under one
advisory lock that is polled: a session that waits for it inside Postgres would deadlock with CREATE INDEX CONCURRENTLY.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from corevo.errors import CorevoError, from_sqlstate
from corevo.store.connections import connect

LOCK = 0x636F7265766F  # "corevo"
LOCK_POLL_SECONDS = 0.2
MIGRATE_SECONDS = 600.0
DAYS_AHEAD = 7
DDL_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class Release:
    """What this release wants: its migrations, all functions as one text, and that text's checksum."""

    migrations: tuple[Migration, ...]
    functions: str
    checksum: str

    @property
    def version(self) -> int:
        return self.migrations[-1].version


@dataclass(frozen=True, slots=True)
class SchemaState:
    """`version` 0: nothing is there."""

    version: int
    checksum: str


def sql_directory() -> Path:
    """In an installed wheel the files lie inside the package, in a checkout beside it."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "_sql"
    return inside if inside.is_dir() else package.parent / "sql"


def release(directory: Path | None = None) -> Release:
    directory = directory or sql_directory()
    migrations = tuple(
        Migration(int(path.name[:4]), path.stem[5:], path.read_text("utf-8"))
        for path in sorted((directory / "migrations").glob("[0-9][0-9][0-9][0-9]_*.sql"))
    )
    if [m.version for m in migrations] != list(range(1, len(migrations) + 1)):
        raise CorevoError("sql/migrations must be numbered 0001, 0002, … without a hole")
    functions = "\n".join(path.read_text("utf-8") for path in sorted((directory / "functions").glob("*.sql")))
    return Release(migrations, functions, hashlib.sha256(functions.encode()).hexdigest())


async def read_state(fetchrow: Callable[..., Any]) -> SchemaState:
    """Asks with any `fetchrow`-like coroutine; a database without the schema is version 0."""
    there = await fetchrow("select to_regclass('corevo.schema_version') is not null as there")
    if not there["there"]:
        return SchemaState(0, "")
    row = await fetchrow(
        "select max(version) as version, (array_agg(functions order by version desc))[1] as functions "
        "from corevo.schema_version"
    )
    return SchemaState(row["version"] or 0, row["functions"] or "")


def compare(state: SchemaState, wanted: Release) -> str | None:
    """None when the schema fits this release; else one line that says what to do."""
    if state.version == 0:
        return "the database has no Corevo schema: run `corevo migrate`"
    if state.version < wanted.version:
        return f"the schema is at version {state.version}, this release needs {wanted.version}: run `corevo migrate`"
    if state.version == wanted.version and state.checksum != wanted.checksum:
        return "the schema's functions differ from this release's: run `corevo migrate`"
    return None  # a newer schema serves older programs: rolling deploys need it


async def check(dsn: str) -> str | None:
    """Compares without changing anything."""
    connection = await connect(dsn, name="corevo migrate --check")
    try:
        return compare(await read_state(connection.fetchrow), release())
    finally:
        await connection.close(timeout=5)


async def migrate(dsn: str, report: Callable[[str], None] = lambda line: None, directory: Path | None = None) -> None:
    """Applies what is missing. Safe to run many times and by many at once; changes nothing on a newer schema."""
    wanted = release(directory)
    connection = await connect(dsn, name="corevo migrate", command_seconds=MIGRATE_SECONDS)
    try:
        if compare(await read_state(connection.fetchrow), wanted) is None:
            await _partitions(connection, report)
            report(f"schema is up to date (version {wanted.version})")
            return
        await _lock(connection, report)
        await connection.execute("set statement_timeout = 0; set lock_timeout = '3s'")
        state = await read_state(connection.fetchrow)  # again, inside the lock
        if compare(state, wanted) is None:
            report(f"another migration was quicker; schema is at version {state.version}")
        else:
            await _apply(connection, state, wanted, report)
        await _partitions(connection, report)
    except asyncpg.PostgresError as error:
        raise from_sqlstate(error.sqlstate or "", str(error.message or error), str(error.detail or "")) from error
    finally:
        await connection.close(timeout=5)


async def _lock(connection: asyncpg.Connection[Any], report: Callable[[str], None]) -> None:
    """The lock belongs to the session: the kernel gives it back if this process dies."""
    waiting = False
    while not await connection.fetchval("select pg_try_advisory_lock($1)", LOCK):
        if not waiting:
            report("waiting for another migration …")
            waiting = True
        await asyncio.sleep(LOCK_POLL_SECONDS)


async def _apply(
    connection: asyncpg.Connection[Any], state: SchemaState, wanted: Release, report: Callable[[str], None]
) -> None:
    if state.version == 0:
        encoding = await connection.fetchval("show server_encoding")
        if encoding != "UTF8":
            raise CorevoError(f"the database's encoding is {encoding}; create one with ENCODING 'UTF8'")
        await connection.execute(
            "create schema if not exists corevo;"
            "create table if not exists corevo.schema_version ("
            " version int primary key, name text not null, functions text not null,"
            " applied_at timestamptz not null default clock_timestamp())"
        )
    todo = [m for m in wanted.migrations if m.version > state.version]
    for migration in todo:
        report(f"applying {migration.version:04d} {migration.name.replace('_', ' ')}")
        await _in_transaction(
            connection,
            migration.sql,
            "insert into corevo.schema_version (version, name, functions) values ($1, $2, '')",
            migration.version,
            migration.name,
        )
    report("applying functions")
    await _in_transaction(
        connection,
        wanted.functions,
        "update corevo.schema_version set functions = $2 where version = $1",
        wanted.version,
        wanted.checksum,
    )
    report(f"schema is at version {wanted.version}")


async def _in_transaction(connection: asyncpg.Connection[Any], sql: str, record: str, *args: object) -> None:
    """DDL with a short lock time-out, again until it gets its locks: a waiting DDL would queue everybody behind it."""
    for attempt in range(DDL_ATTEMPTS):
        try:
            async with connection.transaction():
                await connection.execute(sql)
                await connection.execute(record, *args)
            return
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            if attempt + 1 == DDL_ATTEMPTS:
                raise
            await asyncio.sleep(0.5 + 0.5 * attempt)


async def _partitions(connection: asyncpg.Connection[Any], report: Callable[[str], None]) -> None:
    made = await connection.fetchval("select corevo.ensure_partitions($1)", DAYS_AHEAD)
    if made:
        report(f"made {made} day partitions for events")
