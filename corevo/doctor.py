"""`corevo doctor`: every check of the start gate, the connection sum of a formation, and the channel, a line each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import click

from corevo.errors import CorevoError, Unavailable
from corevo.gate import Check, judge
from corevo.settings import RoleName, Settings, load_settings
from corevo.store import server
from corevo.store.connections import Connections

LISTEN_SECONDS = 5.0
#: Old and new processes run side by side in a rolling deploy.
DEPLOY_FACTOR = 2


def run(formation: Mapping[RoleName, int]) -> bool:
    """Prints the checks; True when all are well."""
    settings = load_settings()
    checks = asyncio.run(_examine(settings, formation))
    for check in checks:
        if check.problem is None:
            click.echo(f"ok    {check.name}: {check.note}")
        else:
            click.echo(f"FAIL  {check.name}: {check.problem}")
    return all(check.problem is None for check in checks)


async def _examine(settings: Settings, formation: Mapping[RoleName, int]) -> list[Check]:
    db = Connections(settings.database_url, limit=1, name="corevo doctor", pooled=settings.behind_pooler)
    checks = [_grace(settings)]
    try:
        facts = await server.facts(db)
        checks += judge(facts)
        checks.append(await _channel(settings))
        checks.append(_connections(settings, formation, await server.room(db)))
        if facts.schema_problem is None:
            fleet = await server.fleet(db)
            note = f"{fleet['workers']} live, greatest event loop lag {fleet['lag_ms']:.0f} ms"
            checks.append(Check("workers", note))
    except Unavailable as error:
        checks.append(Check("database", "", f"{error}: is DATABASE_URL right, and does the server run?"))
    finally:
        await db.close()
    return checks


def _grace(settings: Settings) -> Check:
    note = f"grace {settings.stop_grace_seconds:g} s, longest run {settings.agent_timeout_seconds:g} s"
    if settings.stop_grace_seconds < settings.agent_timeout_seconds:
        note += "; a deploy interrupts runs that need longer than the grace"
    return Check("timings", note)


async def _channel(settings: Settings) -> Check:
    if settings.notify == "off":
        return Check("notifications", "off by COREVO_NOTIFY; everything polls")
    try:
        seconds = await server.listen_round_trip(settings.direct_url, LISTEN_SECONDS)
    except (OSError, CorevoError) as error:
        return Check("notifications", "", f"the dedicated connection cannot be made: {error}")
    if seconds is None:
        fix = "set COREVO_DATABASE_DIRECT_URL to the server itself, or COREVO_NOTIFY=off"
        return Check("notifications", "", f"nothing came back; a pooler does not carry LISTEN: {fix}")
    return Check("notifications", f"heard after {seconds * 1000:.1f} ms")


def _connections(settings: Settings, formation: Mapping[RoleName, int], room: server.Room) -> Check:
    """One process = its connections and the dedicated one (a janitor has none)."""
    once = sum(count * connections_of(settings, role) for role, count in formation.items())
    words = ", ".join(f"{count} {role}" for role, count in formation.items() if count)
    note = f"{words}: {once}, in a rolling deploy {DEPLOY_FACTOR * once} of {room.allowed} allowed"
    note += f" ({room.open} open now)"
    if DEPLOY_FACTOR * once <= room.allowed:
        return Check("connections", note)
    return Check("connections", note, f"{note}: lower COREVO_DB_CONNECTIONS or run fewer processes")


def connections_of(settings: Settings, role: RoleName) -> int:
    """The most that one process of a role opens."""
    beats = role in ("worker", "solo")
    dedicated = role != "janitor" and (beats or settings.notify == "on")
    return settings.connections(role) + dedicated
