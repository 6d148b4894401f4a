"""A database that refuses: clients hear 503, /readyz says why, nobody ends, runs go on, and all is well soon after."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

import httpx
import pytest

from tests.faults.history import History
from tests.faults.roles import Role, Zygote
from tests.faults.servers import MountError, Server, a_server, with_user
from tests.faults.worlds import APP, QUICKER, TIMINGS, TTL_SECONDS
from tests.processes import eventually

FAULT_SECONDS = 3 * TTL_SECONDS + 0.5
ANSWER_SECONDS = 10.0
RECOVERY_SECONDS = 10.0
NUMBERS = 100  # of the run that is under way: 20 ms each
LARGE = "".join(random.Random(1).choices("0123456789abcdef", k=150_000))  # finds a full disk: it needs new pages

GRANTS = """
create role app login;
grant usage on schema corevo to app;
grant select, insert, update, delete on all tables in schema corevo to app;
grant usage on all sequences in schema corevo to app;
"""


@dataclass
class Scene:
    server: Server
    forks: Zygote
    dsn: str  # the superuser's
    app_dsn: str
    gateway: Role
    worker: Role


@contextlib.asynccontextmanager
async def scene(forks: Zygote, small_mb: int | None = None) -> AsyncIterator[Scene]:
    async with a_server(small_mb=small_mb) as server:
        dsn = await server.make("degraded", "corevo_template")
        for statement in GRANTS.strip().split(";\n"):
            await server.run(statement, "degraded")
        app_dsn = with_user(dsn, "app")
        async with (
            forks.role(app_dsn, "worker", APP, "--port", "0", settings=QUICKER) as worker,
            forks.role(app_dsn, "web", "--port", "0", settings=QUICKER) as gateway,
        ):
            yield Scene(server, forks, dsn, app_dsn, gateway, worker)


@contextlib.asynccontextmanager
async def read_only(at: Scene) -> AsyncIterator[None]:
    await at.server.set(default_transaction_read_only="on")
    yield
    await at.server.set(default_transaction_read_only=None)


@contextlib.asynccontextmanager
async def revoked(at: Scene) -> AsyncIterator[None]:
    await at.server.run("revoke insert, update, delete on all tables in schema corevo from app", "degraded")
    yield
    await at.server.run("grant insert, update, delete on all tables in schema corevo to app", "degraded")


@contextlib.asynccontextmanager
async def no_connections(at: Scene) -> AsyncIterator[None]:
    await at.server.run("alter role app connection limit 0")
    await at.server.end_sessions()
    yield
    await at.server.run("alter role app connection limit -1")


@contextlib.asynccontextmanager
async def sessions_ended(at: Scene) -> AsyncIterator[None]:
    """57P01, as soon as anybody has connected."""

    async def end_them() -> None:
        while True:
            await at.server.end_sessions()
            await asyncio.sleep(0.005)

    task = asyncio.create_task(end_them())
    yield
    task.cancel()
    await asyncio.wait([task])


@contextlib.asynccontextmanager
async def down(at: Scene) -> AsyncIterator[None]:
    await asyncio.to_thread(at.server.down, "fast")
    yield
    await asyncio.to_thread(at.server.up)


@contextlib.asynccontextmanager
async def disk_full(at: Scene) -> AsyncIterator[None]:
    filler = await asyncio.to_thread(at.server.fill_disk)
    yield
    filler.unlink()


Fault = Callable[[Scene], contextlib.AbstractAsyncContextManager[None]]
FAULTS: Mapping[str, tuple[Fault, str]] = {
    "25006": (read_only, "read-only"),
    "42501": (revoked, "revoked"),
    "53300": (no_connections, "53300"),
    "57P01": (sessions_ended, "database"),
    "refused": (down, "does not answer"),
    "53100": (disk_full, "53100"),
}


async def test_databases_that_refuse(forks: Zygote) -> None:
    """Each on a server of its own, three at a time."""
    turns = asyncio.Semaphore(3)
    skipped: list[str] = []

    async def one(name: str) -> None:
        fault, reason = FAULTS[name]
        async with turns:
            try:
                async with scene(forks, 400 if fault is disk_full else None) as at:
                    await refuses(at, fault, reason)
            except MountError as error:
                skipped.append(f"{name}: no small disk can be mounted here, 42501 stands for it: {error}")
            except AssertionError as error:
                error.add_note(f"while the database refused with {name}")
                raise

    async with asyncio.TaskGroup() as group:
        for name in FAULTS:
            group.create_task(one(name))
    if skipped:
        pytest.skip("; ".join(skipped))


async def refuses(at: Scene, fault: Fault, reason: str) -> None:
    history = History(at.dsn, [at.gateway.url], reason)
    running = await history.submit("paced", str(NUMBERS), again=20)
    follower = history.follow(running.job_id or "")
    await eventually(lambda: _true(len(follower.held) > 5), what="a run under way")
    text = LARGE if fault is disk_full else "not now"
    async with fault(at):
        began = time.monotonic()
        told: list[str] = []
        while time.monotonic() - began < FAULT_SECONDS:
            call = await history.submit("echo", text)
            if fault is not sessions_ended or call.outcome != "ok":  # one may slip between two ends
                assert call.status == 503 and call.seconds < ANSWER_SECONDS, (call, at.gateway.output[-2000:])
            for role in (at.gateway, at.worker):
                status, reasons = await readyz(role)
                if reasons:
                    told += reasons
                    assert status == 503
            await asyncio.sleep(0.1)
        assert any(reason in words for words in told), told
        late = await at.forks.spawn(at.app_dsn, "worker", APP, "--port", "0", settings=QUICKER, ready=False)
        await asyncio.sleep(1)
        # who starts now waits, but at a read-only server, which the start gate refuses in one line
        assert late.returncode == (3 if fault is read_only else None), late.output
        assert {at.gateway.returncode, at.worker.returncode} == {None}
    healed = time.monotonic()
    for role in (at.gateway, at.worker):
        await eventually(functools.partial(_ready, role), seconds=RECOVERY_SECONDS, what="a ready role")
    again = await history.submit("echo", "back", again=30)
    assert await history.until_ended(again.job_id, RECOVERY_SECONDS) == "completed"
    assert time.monotonic() - healed < RECOVERY_SECONDS
    assert await history.until_ended(running.job_id) == "completed", "an outage cost a job"
    if late.returncode is None:
        await late.until_ready()
        await late.stop()
    await history.converge()
    await history.check(TIMINGS)
    said = [row for row in follower.rows() if row[2] == "text.done"]
    assert said and str(NUMBERS - 1) in said[0][3]
    await history.close()


async def readyz(role: Role) -> tuple[int, list[str]]:
    async with httpx.AsyncClient(timeout=12) as http:
        answer = await http.get(role.url + "/readyz")
    return answer.status_code, answer.json()["reasons"]


async def _ready(role: Role) -> bool:
    return (await readyz(role))[0] == 200


async def _true(value: bool) -> bool:
    return value


async def test_without_the_right_to_write_old_days_are_still_deleted(server: Server, forks: Zygote) -> None:
    """A plan over its size limit: one connection, and only reading and deleting."""
    dsn = await server.make("retention", "corevo_template")
    for statement in GRANTS.strip().split(";\n"):
        await server.run(statement, "retention")
    await server.run("revoke insert, update on all tables in schema corevo from app", "retention")
    day = "date_trunc('day', now() at time zone 'utc') at time zone 'utc' - interval '40 days'"
    await server.run(
        f"""do $$ declare d timestamptz := {day}; n text := 'events_' || to_char(d at time zone 'utc', 'YYYYMMDD');
        begin
          execute format('create table corevo.%I (like corevo.events including all)', n);
          execute format('alter table corevo.events attach partition corevo.%I for values from (%L) to (%L)', n,
            corevo.uuid7_floor(d), corevo.uuid7_floor(d + interval '1 day'));
          execute format('grant select, delete on corevo.%I to app', n);
          insert into corevo.events (execution_id, seq, type, data)
            select corevo.uuid7(d + interval '1 hour'), 1, 'run.started', '{{}}' from generate_series(1, 50);
        end $$""",
        "retention",
    )
    await server.run("alter role app connection limit 1")
    async with forks.role(with_user(dsn, "app"), "janitor", settings={"COREVO_DB_CONNECTIONS": "1"}) as janitor:

        async def gone() -> bool:
            return not await server.run("select 1 from corevo.events limit 1", "retention")

        await eventually(gone, what="retention by deleting\n" + janitor.output)
        assert janitor.returncode is None
