"""What surrounds the processes misbehaves: notifications, the clock, an old snapshot, a client frozen in a reply."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.faults.history import History
from tests.faults.servers import clock_at, notify_as
from tests.faults.worlds import TIMINGS, TTL_SECONDS, World
from tests.processes import eventually

POLL_SECONDS = 1.0  # of every world
JOBS = 6


async def serve(world: World, history: History, *, jobs: int = JOBS) -> list[float]:
    """Some jobs, followed to their end; how long each took from submission to start."""
    ids = []
    for _ in range(jobs):
        call = await history.submit("paced", "10", again=3)
        history.follow(call.job_id or "")
        ids.append(call.job_id)
        await asyncio.sleep(0.05)
    for job_id in ids:
        assert await history.until_ended(job_id) == "completed"
    rows = await world.sql(
        "select extract(epoch from started_at - created_at)::float8 as s from corevo.jobs where id = any($1::uuid[])",
        ids,
    )
    return [float(str(row["s"])) for row in rows]


@pytest.mark.parametrize("how", ["off", "doubled", "one lost"])
async def test_notifications_that_are_lost_or_doubled_change_nothing_that_anybody_sees(world: World, how: str) -> None:
    """The channel looks healthy all the while: pings get through."""
    history = world.history(how)
    worker = await world.worker()
    await notify_as(world.dsn, how)
    waits = await serve(world, history)
    assert max(waits) < 2 * POLL_SECONDS, "a job waited for longer than polls are apart"
    long = await history.submit("waits", "x")
    assert long.job_id
    await eventually(lambda: _running(world, long.job_id), what="a run")
    began = time.monotonic()
    assert (await history.cancel(long.job_id)).outcome == "ok"
    assert await history.until_ended(long.job_id) == "cancelled"
    assert time.monotonic() - began < 2 * POLL_SECONDS, "a cancel waited for longer than beats are apart"
    await history.check(TIMINGS)
    await worker.stop()
    await history.close()


@pytest.mark.parametrize("step", ["10 seconds", "-10 seconds"])
async def test_a_clock_that_jumps_beyond_the_ttl_costs_no_job(world: World, step: str) -> None:
    history = world.history(step)
    workers = [await world.worker(), await world.worker()]
    running = await history.submit("paced", "120")
    history.follow(running.job_id or "")
    await eventually(lambda: _running(world, running.job_id), what="a run")
    await asyncio.sleep(2 * TTL_SECONDS if step.startswith("-") else 0.5)  # so that somebody has watched
    await clock_at(world.dsn, step)
    await serve(world, history, jobs=3)
    assert await history.until_ended(running.job_id) == "completed"
    fenced = await world.sql("select name from corevo.workers where fenced_at is not null and stopped_at is null")
    assert fenced == [], "a jump of the clock killed a worker"
    for worker in workers:
        await worker.stop()
    await history.check({**TIMINGS, "stall_limit_seconds": 15.0})  # silence is measured across the jump
    await history.close()


async def test_an_old_snapshot_holds_up_nobody(world: World) -> None:
    history = world.history("old snapshot")
    worker = await world.worker()
    connection = await asyncpg.connect(world.dsn)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            assert await connection.fetchval("select count(*) from corevo.jobs") == 0
            assert max(await serve(world, history)) < POLL_SECONDS
            assert await connection.fetchval("select count(*) from corevo.jobs") == 0
    finally:
        await connection.close()
    await history.check(TIMINGS)
    await worker.stop()
    await history.close()


@contextlib.asynccontextmanager
async def frozen_in_a_reply(world: World, sql: str) -> AsyncIterator[None]:
    """A client named like ours that holds a transaction and reads nothing more."""
    name = world.dsn.partition("?")[0].rpartition("/")[2]
    _reader, writer = await asyncio.open_unix_connection(world.server.socket_path, limit=1)
    words = b"\0".join(w.encode() for w in ("user", "postgres", "database", name, "application_name", "corevo frozen"))
    body = struct.pack("!I", 196608) + words + b"\0\0"
    writer.write(struct.pack("!I", len(body) + 4) + body)
    await asyncio.sleep(0.2)
    query = sql.encode() + b"\0"
    writer.write(b"Q" + struct.pack("!I", len(query) + 4) + query)
    try:
        yield
    finally:
        writer.transport.abort()


async def test_a_client_frozen_inside_a_reply_is_ended_and_its_locks_are_free(world: World) -> None:
    history = world.history("ClientWrite")
    worker = await world.worker()
    running = await history.submit("waits", "x")
    await eventually(lambda: _running(world, running.job_id), what="a run")
    sql = (
        "begin; select 1 from corevo.threads for no key update; "
        "select repeat('x', 100000) from generate_series(1, 1000)"
    )
    async with frozen_in_a_reply(world, sql):

        async def stuck() -> bool:
            return bool(
                await world.sql(
                    "select 1 from pg_stat_activity "
                    "where application_name = 'corevo frozen' and wait_event = 'ClientWrite'"
                )
            )

        await eventually(stuck, what="a backend stuck in ClientWrite")
        call = await history.cancel(running.job_id or "")  # waits for the thread's lock, or is told to come back
        assert call.outcome in ("ok", "unknown")

        async def free() -> bool:
            return not await stuck()

        await eventually(free, seconds=3 * TTL_SECONDS + 2, what="the end of the frozen session")
        if call.outcome == "unknown":
            assert (await history.cancel(running.job_id or "")).outcome == "ok"
        assert await history.until_ended(running.job_id) == "cancelled"
    assert "ended database sessions of frozen clients" in worker.output
    await history.check(TIMINGS)
    await worker.stop()
    await history.close()


async def _running(world: World, job_id: str | None) -> bool:
    return bool(await world.sql("select 1 from corevo.jobs where id = $1 and state = 'running'", job_id))
