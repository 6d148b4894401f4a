"""The start gate: what must be true before a role serves. It refuses with one line a problem, each with its fix.

A database that does not answer yet is no refusal: the process waits for it, so that an outage is no restart storm.
"""

from __future__ import annotations

import asyncio
import random

import structlog

from corevo.errors import GateRefused, Unavailable
from corevo.settings import Settings
from corevo.store import server
from corevo.store.connections import Connections

log = structlog.get_logger()

OLDEST_POSTGRES = 14
PARTITIONS_AHEAD = 2
WAIT_SECONDS = (0.5, 10.0)
LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")


async def pass_gate(db: Connections) -> None:
    """Returns when the role may serve. Raises GateRefused."""
    delay = WAIT_SECONDS[0]
    while True:
        try:
            facts = await server.facts(db)
            break
        except Unavailable as error:
            log.warning("waiting for the database", error=str(error), retry_seconds=round(delay, 1))
            await asyncio.sleep(random.uniform(0.5, 1.0) * delay)
            delay = min(delay * 2, WAIT_SECONDS[1])
    problems = []
    if facts.version < OLDEST_POSTGRES:
        problems.append(f"Postgres {facts.version} is too old: use {OLDEST_POSTGRES} or newer")
    if facts.in_recovery:
        problems.append("the database is a standby: point DATABASE_URL at the primary")
    if facts.encoding != "UTF8":
        problems.append(f"the database's encoding is {facts.encoding}: create one with ENCODING 'UTF8'")
    if facts.schema_problem is not None:
        problems.append(facts.schema_problem)
    elif facts.partitions_ahead < PARTITIONS_AHEAD:
        problems.append(f"events have room for {facts.partitions_ahead} days only: run `corevo migrate`")
    if problems:
        raise GateRefused(problems)


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
