"""The start gate: what must be true before a role serves. It refuses with one line a problem, each with its fix.

A database that does not answer yet is no refusal: the process waits for it, so that an outage is no restart storm.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import structlog

from corevo.errors import GateRefused, Unavailable
from corevo.settings import Settings
from corevo.store import server
from corevo.store.connections import Connections
from corevo.store.server import ServerFacts

log = structlog.get_logger()

OLDEST_POSTGRES = 14
PARTITIONS_AHEAD = 2
WAIT_SECONDS = (0.5, 10.0)
LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must be true. `problem`: None, or what is wrong and the fix; `note`: what was seen."""

    name: str
    note: str
    problem: str | None = None


async def pass_gate(db: Connections) -> None:
    """Returns when the role may serve. Waits for a database that is away and for a migration that runs.

    Raises GateRefused.
    """
    delay = WAIT_SECONDS[0]
    while True:
        try:
            facts = await server.facts(db)
            if not (facts.schema_problem and facts.migrating):
                break
            why = "a migration is running"
        except Unavailable as error:
            why = str(error)
        log.warning("waiting for the database", why=why, retry_seconds=round(delay, 1))
        await asyncio.sleep(random.uniform(0.5, 1.0) * delay)
        delay = min(delay * 2, WAIT_SECONDS[1])
    problems = [check.problem for check in judge(facts) if check.problem is not None]
    if problems:
        raise GateRefused(problems)


def judge(facts: ServerFacts) -> list[Check]:
    """The start gate's checks of the server; `corevo doctor` shows the same ones."""
    old = facts.version < OLDEST_POSTGRES
    few = facts.schema_problem is None and facts.partitions_ahead < PARTITIONS_AHEAD
    return [
        Check(
            "Postgres",
            f"version {facts.version}",
            f"Postgres {facts.version} is too old: use {OLDEST_POSTGRES} or newer" if old else None,
        ),
        Check(
            "primary",
            "takes writes",
            "the database is a standby or read-only: point DATABASE_URL at the primary" if facts.read_only else None,
        ),
        Check(
            "encoding",
            facts.encoding,
            None
            if facts.encoding == "UTF8"
            else f"the database's encoding is {facts.encoding}: create one with ENCODING 'UTF8'",
        ),
        Check("schema", f"version {facts.schema_version}", facts.schema_problem),
        Check(
            "days of events",
            f"room for {facts.partitions_ahead} days",
            f"events have room for {facts.partitions_ahead} days only: run `corevo migrate`" if few else None,
        ),
    ]


def check_identity(settings: Settings, host: str) -> None:
    """With COREVO_AUTH=off everyone who reaches the port is the one local account. Raises GateRefused."""
    if settings.auth == "on":
        raise GateRefused(
            [
                "this release has no sign-in yet: set COREVO_AUTH=off, "
                "and keep the port on loopback or behind a sign-in of your own"
            ]
        )
    if host not in LOOPBACK_HOSTS and not settings.auth_off_anywhere:
        raise GateRefused(
            [
                f"COREVO_AUTH=off on {host} would let everyone in: use --host 127.0.0.1, "
                "or set COREVO_AUTH_OFF_ANYWHERE=true if something else guards the port"
            ]
        )
