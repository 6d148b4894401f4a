"""A worker that was frozen beyond its TTL wakes up: whatever it still sends changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from corevo.contracts import Append, Claim, Event, Finish
from corevo.errors import Stale
from corevo.store import commands, events, jobs
from corevo.store.connections import Connections
from tests.faults.history import History
from tests.faults.worlds import TIMINGS, TTL_SECONDS, World
from tests.processes import eventually

TABLES = ("jobs", "executions", "events", "commands", "messages", "threads")


async def digest(world: World) -> list[dict[str, object]]:
    """Changes with any row of any table that a run writes."""
    parts = [
        f"(select md5(string_agg(t::text, '|' order by t::text)) from corevo.{name} t) as {name}" for name in TABLES
    ]
    return await world.sql("select " + ", ".join(parts))


@contextlib.asynccontextmanager
async def connections(dsn: str) -> AsyncIterator[Connections]:
    db = Connections(dsn, limit=1, name="test zombie")
    yield db
    await db.close()


async def every_late_write_changes_nothing(
    world: World, worker_id: Any, job: Mapping[str, Any], execution_id: Any
) -> None:
    """As the old owner: start, release, append, finish (also the clean-up of a failure), accept."""
    claim = Claim(job["id"], job["epoch"], job["token"])
    event = Event(2, "text.delta", '{"text": "late", "at": 0}')
    ending = Finish(execution_id, job["token"], "failed", "agent_error", "late", (event,))
    async with connections(world.dsn) as db:

        async def start() -> str:
            (answer,) = await jobs.start(db, worker_id, [claim])
            return "refused" if answer.result in ("stale", "worker_fenced") else answer.result

        async def release() -> str:
            try:
                await jobs.release(db, claim)
            except Stale:
                return "refused"
            return "released"

        async def append() -> str:
            (answer,) = await events.append(db, [Append(execution_id, job["token"], 2, (event,))])
            return "refused" if answer.result == "fenced" else answer.result

        async def finish() -> str:
            (answer,) = await jobs.finish(db, [ending])
            return "refused" if answer.result == "fenced" else answer.result

        async def accept() -> str:
            return "refused" if await commands.accept(db, [(execution_id, job["token"])]) == [] else "accepted"

        late: list[Callable[[], Awaitable[str]]] = [start, release, append, finish, accept]
        for write in late:
            before = await digest(world)
            assert await write() == "refused", write.__name__
            assert await digest(world) == before, f"a late {write.__name__} changed a row"


async def owner_of(world: World, history: History, job_id: str | None) -> dict[str, Any]:
    (job,) = await world.sql(
        "select id, state, epoch, token, worker_id, execution_id from corevo.jobs where id = $1", job_id
    )
    return job


async def test_frozen_between_claim_and_start_until_the_next_epoch_runs(world: World, tmp_path: Path) -> None:
    history = world.history("claim and start")
    sign = tmp_path / "sign"
    submitted = await history.submit("until-file", str(sign))
    history.follow(submitted.job_id or "")
    frozen = await world.worker(plans=("stop@before:start",), ready=False)
    await frozen.until_frozen()
    old = await owner_of(world, history, submitted.job_id)
    assert (old["state"], old["epoch"]) == ("queued", 1) and old["worker_id"], "the fault was not reached"
    heir = await world.worker()

    async def runs() -> bool:
        job = await owner_of(world, history, submitted.job_id)
        return bool(job["state"] == "running" and job["epoch"] == 2)

    await eventually(runs, what="the next epoch")
    await eventually(lambda: _said(history, submitted.job_id), what="its first words")
    await every_late_write_changes_nothing(world, old["worker_id"], old, uuid4())
    before = await digest(world)
    frozen.thaw()
    await frozen.until_said("a claim was lost before its start")
    await frozen.until_said("declared dead")
    assert await digest(world) == before, "the thawed worker changed a row"
    sign.touch()
    assert await history.until_ended(submitted.job_id) == "completed"
    assert (await owner_of(world, history, submitted.job_id))["epoch"] == 2
    await heir.stop()
    again = await history.submit("echo", "a new incarnation")
    assert await history.until_ended(again.job_id) == "completed"
    assert (await frozen.stop()) == 0
    await history.check(TIMINGS)
    await history.close()


async def test_frozen_after_start_for_three_ttls(world: World, tmp_path: Path) -> None:
    history = world.history("after start")
    sign = tmp_path / "sign"
    submitted = await history.submit("until-file", str(sign))
    history.follow(submitted.job_id or "")
    frozen = await world.worker(plans=("stop@after:append_events",), ready=False)
    await frozen.until_frozen()
    old = await owner_of(world, history, submitted.job_id)
    assert old["state"] == "running", "the fault was not reached"
    assert (await history.cancel(submitted.job_id or "")).outcome == "ok"  # a command that it could accept
    janitor = await world.janitor()
    assert await history.until_ended(submitted.job_id) == "lost"
    await asyncio.sleep(3 * TTL_SECONDS)
    await every_late_write_changes_nothing(world, old["worker_id"], old, old["execution_id"])
    before = await digest(world)
    sign.touch()  # the agent would finish at once
    frozen.thaw()
    await frozen.until_said("declared dead")
    await frozen.until_said("a run was ended by others")
    await frozen.until_said("worker began")
    assert await digest(world) == before, "the thawed worker changed a row"
    again = await history.submit("echo", "a new incarnation")
    assert await history.until_ended(again.job_id) == "completed"
    await janitor.stop()
    assert (await frozen.stop()) == 0
    await history.check(TIMINGS)
    await history.close()


async def _said(history: History, job_id: str | None) -> bool:
    return len(await history.stored(job_id or "")) >= 2
