"""One bug put in for each invariant that has tables, and for those that need a client: the harness catches it.

The fuzz has others (tests/concurrency/mutants.py). Without its bug a scenario is clean: COREVO_FAULTS_LONG=1 shows it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.concurrency.mutants import Edit, Mutant
from tests.faults.history import ENDED, History
from tests.faults.proxy import reset
from tests.faults.roles import Role
from tests.faults.servers import execute
from tests.faults.worlds import PERIOD_SECONDS, TTL_SECONDS, World
from tests.invariants import violations
from tests.processes import eventually

TIMES = {"ttl_seconds": TTL_SECONDS, "stall_limit_seconds": 0.3, "period_seconds": PERIOD_SECONDS}
SEEN_SECONDS = 12.0

Scenario = Callable[[World, History, list[Role], Path], Awaitable[None]]


async def a_start_whose_reply_is_lost(world: World, history: History, roles: list[Role], folder: Path) -> None:
    submitted = await history.submit("paced", "40")
    async with world.proxy() as proxy:
        rule = proxy.add("reset@after:start", reset)
        roles.append(await world.worker(database=proxy.dsn(world.dsn)))
        await asyncio.wait_for(rule.reached.wait(), 10)
        await asyncio.sleep(1.0)
        await _stop(roles)
    assert submitted.job_id


async def a_zombie_that_appends(world: World, history: History, roles: list[Role], folder: Path) -> None:
    roles += [await world.worker(plans=("stop@before:append_events#3",)), await world.janitor()]
    submitted = await history.submit("bursts", "1000")
    await roles[0].until_frozen()
    assert await history.until_ended(submitted.job_id) == "lost"
    roles[0].thaw()
    await roles[0].until_said("declared dead")
    await asyncio.sleep(0.3)


async def a_zombie_that_starts(world: World, history: History, roles: list[Role], folder: Path) -> None:
    roles.append(await world.janitor())
    submitted = await history.submit("waits", "x")
    for _ in range(2):
        roles.append(await world.worker(plans=("stop@before:start",), ready=False))
        await roles[-1].until_frozen()
    old, new = roles[-2:]
    old.thaw()
    await old.until_said("declared dead")
    await asyncio.sleep(0.3)
    assert submitted.job_id and new.frozen


async def a_key_sent_twice(world: World, history: History, roles: list[Role], folder: Path) -> None:
    first = await history.submit("echo", "hello", key="one")
    second = await history.submit("echo", "hello", key="one")
    assert (first.outcome, second.outcome) == ("ok", "ok")


async def a_line_of_jobs(world: World, history: History, roles: list[Role], folder: Path) -> None:
    sign = folder / "sign"
    first = await history.submit("until-file", str(sign))
    (job,) = await world.sql("select thread_id::text as t from corevo.jobs where id = $1", first.job_id)
    for number in range(3):
        await history.submit("waits", str(number), thread_id=str(job["t"]), on_busy="enqueue")
    roles.append(await world.worker())
    sign.touch()
    assert await history.until_ended(first.job_id) == "completed"


async def a_run_that_is_cancelled(world: World, history: History, roles: list[Role], folder: Path) -> None:
    roles.append(await world.worker())
    submitted = await history.submit("waits", "x")

    async def runs() -> bool:
        return (await history.states())[submitted.job_id or ""] == "running"

    await eventually(runs, what="a run")
    assert (await history.cancel(submitted.job_id or "")).outcome == "ok"
    assert await history.until_ended(submitted.job_id) == "cancelled"


async def a_killed_worker(world: World, history: History, roles: list[Role], folder: Path) -> None:
    roles += [await world.janitor(), await world.worker(plans=("kill@after:append_events",))]
    await history.submit("paced", "1000")
    await roles[1].wait()


async def a_run_that_completes(world: World, history: History, roles: list[Role], folder: Path) -> None:
    roles.append(await world.worker())
    submitted = await history.submit("paced", "5")
    history.follow(submitted.job_id or "")
    assert await history.until_ended(submitted.job_id) == "completed"


async def an_admission_before_a_crash(world: World, history: History, roles: list[Role], folder: Path) -> None:
    await world.server.set(wal_writer_delay="10000ms")
    try:
        for _ in range(3):
            await asyncio.gather(*(history.submit("echo", "hello") for _ in range(5)))
            await world.server.restart("immediate")
    finally:
        await world.server.set(wal_writer_delay=None)


async def _stop(roles: list[Role]) -> None:
    for role in roles:
        role.kill()
        await role.wait()


@dataclass(frozen=True)
class Bug:
    mutant: Mutant
    scenario: Scenario
    unguarded: tuple[str, ...] = ()  # constraints that would prevent the same

    @property
    def invariants(self) -> tuple[str, ...]:
        return self.mutant.caught_as


def bug(caught_as: str, name: str, scenario: Scenario, *edits: tuple[str, str, str], drop: tuple[str, ...] = ()) -> Bug:
    return Bug(Mutant(f"{caught_as}: {name}", tuple(Edit(*edit) for edit in edits), (caught_as,)), scenario, drop)


BUGS = [
    bug(
        "I1", "a start sent again starts again", a_start_whose_reply_is_lost,
        ("040_own.sql",
         "    if found then\n      execution_id := v_execution.id;\n",
         "    if false then\n      execution_id := v_execution.id;\n"),
        ("040_own.sql",
         "v_job.id is null or v_job.state <> 'queued' or v_job.worker_id",
         "v_job.id is null or v_job.worker_id"),
        drop=("drop index corevo.executions_open",
              "alter table corevo.executions drop constraint executions_job_id_epoch_key"),
    ),
    bug(
        "I2", "append takes what comes after the end", a_zombie_that_appends,
        ("050_events.sql", "      where x.ended_at is null\n      order by x.id\n", "      order by x.id\n"),
    ),
    bug(
        "I3", "start believes whoever asks", a_zombie_that_starts,
        ("040_own.sql",
         "v_job.state <> 'queued' or v_job.worker_id is distinct from p_worker\n"
         "          or v_job.epoch <> v_epoch or v_job.token is distinct from v_token then",
         "v_job.state <> 'queued' then"),
        ("040_own.sql", "    elsif not v_live then", "    elsif false then"),
    ),
    bug(
        "I5", "a key is not looked up", a_key_sent_twice,
        ("030_admit.sql",
         "    if found then\n      if v_stored.body_hash", "    if false then\n      if v_stored.body_hash"),
        drop=("alter table corevo.idempotency drop constraint idempotency_pkey",),
    ),
    bug(
        "I7", "an ending promotes the whole line", a_line_of_jobs,
        ("020_end.sql",
         "update corevo.jobs j set blocked_by = null, ready_at = p_now, waiting_since = p_now where j.id = v_next;",
         "update corevo.jobs j set blocked_by = null, ready_at = p_now, waiting_since = p_now\n"
         "      where j.thread_id = p_job.thread_id and j.state = 'queued' and j.blocked_by is not null;"),
        drop=("drop index corevo.jobs_one_current",),
    ),
    bug(
        "I10", "an ending leaves accepted commands open", a_run_that_is_cancelled,
        ("020_end.sql",
         "where c.job_id = p_job.id and c.state in ('requested', 'accepted');",
         "where c.job_id = p_job.id and c.state = 'requested';"),
    ),
    bug(
        "I11", "nobody is ever declared dead", a_killed_worker,
        ("090_janitor.sql", "where w.fenced_at is null and w.beat_at < v_now", "where false and w.beat_at < v_now"),
    ),
    bug(
        "I14", "an ending keeps the thread busy", a_run_that_completes,
        ("020_end.sql",
         "update corevo.threads t set current_job_id = v_next, updated_at = p_now where",
         "update corevo.threads t set updated_at = p_now where"),
    ),
    bug(
        "I4", "an admission is answered before it is durable", an_admission_before_a_crash,
        ("030_admit.sql", "  -- identity\n", "  perform set_config('synchronous_commit', 'off', true);\n"),
    ),
    bug(
        "I9", "what is stored is not what was published", a_run_that_completes,
        ("050_events.sql",
         "select e.id, e.seq, e.type, e.data::json\n",
         "select e.id, e.seq, e.type, replace(e.data, '3 ', '7 ')::json\n"),
    ),
]  # fmt: skip


async def found(world: World, one: Bug, folder: Path) -> list[str]:
    """What is wrong after the scenario: violated invariants, and what the client's history says."""
    history = world.history(one.mutant.name)
    roles: list[Role] = []
    try:
        await one.scenario(world, history, roles, folder)

        seen: list[str] = []

        async def look() -> bool:
            seen[:] = [v.invariant for v in await violations(world.dsn, **TIMES)]  # type: ignore[arg-type]
            return bool(seen) or all(state in ENDED for state in (await history.states()).values())

        if "I11" in one.invariants:  # time has to pass
            await eventually(look, seconds=SEEN_SECONDS, what="a violation, or an end")
        else:
            await look()
        try:
            await history.check(TIMES, follow_seconds=5.0)
        except AssertionError as error:
            seen.append(str(error))
        return seen
    finally:
        for role in roles:
            role.thaw()
            role.kill()
            await role.wait()
        await history.close()


@pytest.mark.parametrize("one", BUGS, ids=lambda one: one.mutant.name)
async def test_the_harness_catches(world: World, one: Bug, tmp_path: Path) -> None:
    await one.mutant.apply(world.dsn)
    for statement in one.unguarded:
        await execute(world.dsn, statement)
    seen = await found(world, one, tmp_path)
    assert any(words.startswith(one.invariants) for words in seen), seen


@pytest.mark.skipif(not os.environ.get("COREVO_FAULTS_LONG"), reason="COREVO_FAULTS_LONG=1 runs the long tests")
@pytest.mark.parametrize("one", BUGS, ids=lambda one: one.mutant.name)
async def test_without_the_bug_nothing_is_found(world: World, one: Bug, tmp_path: Path) -> None:
    seen = await found(world, one, tmp_path)
    assert not any(words.startswith(one.invariants) for words in seen), seen
