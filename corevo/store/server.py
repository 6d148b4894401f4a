"""What the start gate asks the server."""

from __future__ import annotations

from dataclasses import dataclass

from corevo.store import events, migrations
from corevo.store.connections import Connections


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """`schema_problem`: None, or one line that says what to do."""

    version: int
    in_recovery: bool
    encoding: str
    schema_problem: str | None
    partitions_ahead: int


async def facts(db: Connections) -> ServerFacts:
    row = await db.row(
        "select current_setting('server_version_num')::int / 10000 as version, pg_is_in_recovery() as in_recovery, "
        "current_setting('server_encoding') as encoding"
    )
    assert row is not None
    problem = migrations.compare(await migrations.read_state(db.row), migrations.release())
    ahead = 0 if problem else await events.partitions_ahead(db)
    return ServerFacts(row["version"], row["in_recovery"], row["encoding"], problem, ahead)


async def answers(db: Connections) -> None:
    """Raises Unavailable unless the database takes a statement now."""
    await db.fetch("select 1")
