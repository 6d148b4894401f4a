"""An agent blocks the loop it runs on: what it costs, and that the log says who it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.history import History
from tests.faults.roles import Role
from tests.faults.worlds import TIMINGS, TTL_SECONDS, World
from tests.processes import eventually

LIMIT_SECONDS = 2.5
SETTINGS = {"COREVO_LOOP_STALL_LIMIT_SECONDS": str(LIMIT_SECONDS)}
BELOW_SECONDS = 1.8  # longer than the TTL
assert TTL_SECONDS < BELOW_SECONDS < LIMIT_SECONDS

#: Read, not imported: importing registers agents, and a process has one registry.
AGENTS = Path(__file__).parent / "agents.py"


async def stalls(world: World) -> list[dict[str, object]]:
    return await world.sql("select place, task, seconds, cpu_seconds from corevo.stalls order by at")


async def submit(world: World, history: History, agent: str, seconds: float) -> str:
    submitted = await history.submit(agent, str(seconds))
    assert submitted.job_id
    history.follow(submitted.job_id)
    return submitted.job_id


@pytest.mark.parametrize(("agent", "function"), [("blocks-sleep", "blocks_sleep"), ("blocks-cpu", "blocks_cpu")])
async def test_below_the_stall_limit_a_job_is_kept_and_its_agent_named(world: World, agent: str, function: str) -> None:
    history = world.history(agent)
    janitor = await world.janitor()
    worker = await world.worker(settings=SETTINGS)
    job_id = await submit(world, history, agent, BELOW_SECONDS)
    assert await history.until_ended(job_id) == "completed"
    rows = await eventually(lambda: stalls(world), what="a row in corevo.stalls")
    found = [r for r in rows if str(r["task"]).endswith(job_id)]
    assert found, rows
    assert f"tests/faults/agents.py:{_line_of(function)} in {function}" in str(found[0]["place"])
    assert float(str(found[0]["seconds"])) > BELOW_SECONDS - 0.5, "the fault was not reached"
    busy = float(str(found[0]["cpu_seconds"])) > 0.05 * BELOW_SECONDS  # however busy the machine is
    assert busy == (agent == "blocks-cpu"), found
    (line,) = [x for x in worker.output.splitlines() if "the event loop is blocked" in x and job_id in x][:1]
    assert f"agents.py:{_line_of(function)} in {function}" in line and agent in line
    assert (await world.sql("select count(*) as n from corevo.workers where fenced_at is not null"))[0]["n"] == 1
    await _stop(history, worker, janitor)


@pytest.mark.parametrize("agent", ["blocks-sleep", "blocks-cpu"])
async def test_above_the_stall_limit_it_is_lost_as_loop_blocked(world: World, agent: str) -> None:
    history = world.history(agent)
    janitor = await world.janitor()
    worker = await world.worker(settings=SETTINGS)
    job_id = await submit(world, history, agent, LIMIT_SECONDS + 3 * TTL_SECONDS)
    assert await history.until_ended(job_id) == "lost"
    (job,) = await world.sql("select error_code from corevo.jobs where id = $1", job_id)
    assert job["error_code"] == "loop_blocked"
    before = await history.stored(job_id)
    await works_again(history, worker)
    assert await history.stored(job_id) == before
    rows = await eventually(lambda: stalls(world), what="a row in corevo.stalls")
    assert any(str(r["task"]).endswith(job_id) for r in rows), "the stall that cost the job is not on record"
    await _stop(history, worker, janitor)


async def test_a_call_that_holds_the_gil_starves_the_pulse_too(world: World) -> None:
    history = world.history("holds-gil")
    janitor = await world.janitor()
    worker = await world.worker(settings=SETTINGS)
    job_id = await submit(world, history, "holds-gil", 4 * TTL_SECONDS)
    assert await history.until_ended(job_id) == "lost"
    before = await history.stored(job_id)
    (job,) = await world.sql("select error_code from corevo.jobs where id = $1", job_id)
    assert job["error_code"] == "worker_lost"  # it could not even say what its trouble was
    await worker.until_said("declared dead")
    await works_again(history, worker)
    assert await history.stored(job_id) == before, "a late write was taken"
    assert '"after"' not in "".join(row[3] for row in before)
    await _stop(history, worker, janitor)


async def works_again(history: History, worker: Role) -> None:
    again = await history.submit("echo", "again", again=10)
    assert await history.until_ended(again.job_id) == "completed", worker.output


def _line_of(function: str) -> int:
    """Where it blocks."""
    lines = AGENTS.read_text("utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if f"def {function}" in line)
    marks = ("time.sleep(", "while time.monotonic()")
    return next(n for n, line in enumerate(lines[start:], start + 1) if any(mark in line for mark in marks))


async def _stop(history: History, *roles: Role) -> None:
    for role in roles:
        await role.stop()
    await history.check(TIMINGS)
    await history.close()
