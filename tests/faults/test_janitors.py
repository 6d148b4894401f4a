"""Two janitors, none, and a frozen one: the duty moves on, and nothing is done twice."""

from __future__ import annotations

from tests.faults.history import History
from tests.faults.roles import Role
from tests.faults.worlds import PERIOD_SECONDS, TIMINGS, TTL_SECONDS, World
from tests.processes import eventually


async def doomed(world: World, history: History) -> tuple[str, Role]:
    """A run, and its worker, which offers itself as janitor like every other: it dies with the test's fault."""
    worker = await world.worker(options=("--places", "1"))
    submitted = await history.submit("waits", "x", again=5)
    assert submitted.job_id
    history.follow(submitted.job_id)
    await eventually(lambda: _running(world, submitted.job_id), what="a run")
    return submitted.job_id, worker


async def _running(world: World, job_id: str | None) -> bool:
    return bool(await world.sql("select 1 from corevo.jobs where id = $1 and state = 'running'", job_id))


async def holder(world: World) -> str:
    rows = await world.sql("select holder::text from corevo.duties where name = 'janitor' and until > now()")
    return str(rows[0]["holder"]) if rows else ""


async def ended_once(history: History, job_id: str) -> None:
    stored = await history.stored(job_id)
    assert [row[2] for row in stored if row[2].startswith("run.")] == ["run.started", "run.lost"]


async def test_of_two_janitors_one_has_the_duty_and_a_loss_is_swept_once(world: World) -> None:
    history = world.history("two")
    a, b = await world.janitor(), await world.janitor()
    job_id, worker = await doomed(world, history)
    worker.kill()
    assert await history.until_ended(job_id) == "lost"
    await ended_once(history, job_id)
    swept = [role.output.count("swept a job") for role in (a, b)]
    assert sum(swept) == 1, swept
    first = await eventually(lambda: holder(world), what="a holder")
    (a if swept[0] else b).kill()

    async def moved() -> bool:
        return await holder(world) not in ("", first)

    await eventually(moved, seconds=TTL_SECONDS, what="the duty to move on")
    await _done(history, a, b)


async def test_without_a_janitor_nothing_is_decided_until_one_has_watched(world: World) -> None:
    history = world.history("none")
    job_id, worker = await doomed(world, history)
    worker.kill()
    await worker.wait()

    async def silent() -> bool:
        rows = await world.sql(
            "select beat_at < now() - $1 * interval '1 s' as s from corevo.workers order by started_at desc",
            3 * TTL_SECONDS,
        )
        return bool(rows[0]["s"])

    await eventually(silent, what="three TTLs without a beat")
    assert await _running(world, job_id), "somebody decided"
    janitor = await world.janitor()
    assert await history.until_ended(job_id, 3 * TTL_SECONDS + 2 * PERIOD_SECONDS) == "lost"
    (row,) = await world.sql(
        "select extract(epoch from w.fenced_at - d.watching_since)::float8 as s from corevo.workers w, corevo.duties d "
        "order by w.started_at desc limit 1"
    )
    assert float(str(row["s"])) >= TTL_SECONDS, "what nobody watched was called dead"
    await ended_once(history, job_id)
    await _done(history, janitor)


async def test_a_janitor_frozen_in_its_sweep_loses_the_duty_and_wakes_up_harmless(world: World) -> None:
    history = world.history("frozen")
    frozen = await world.janitor(plans=("stop@before:sweep_job",))
    job_id, worker = await doomed(world, history)
    worker.kill()
    await frozen.until_frozen()
    first = (await world.sql("select holder::text as h from corevo.duties"))[0]["h"]
    heir = await world.janitor()
    assert await history.until_ended(job_id) == "lost"
    assert await holder(world) not in ("", first)
    before = await history.stored(job_id)
    frozen.thaw()

    async def tried() -> bool:
        return "swept a job" not in frozen.output and frozen.returncode is None

    assert await eventually(tried, what="a janitor that goes on")
    again, other = await doomed(world, history)
    other.kill()
    assert await history.until_ended(again) == "lost"
    assert await history.stored(job_id) == before
    for job in (job_id, again):
        await ended_once(history, job)
    await _done(history, frozen, heir)


async def test_a_janitor_frozen_between_its_watch_and_the_fence_calls_nobody_dead(world: World) -> None:
    """It saw that somebody watched, and slept: what it knew is old, and the database says so."""
    history = world.history("frozen before the fence")
    janitor = await world.janitor(plans=("stop@before:fence_workers#3",))
    job_id, worker = await doomed(world, history)  # is a janitor too: it shall not be
    await janitor.until_frozen()
    worker.freeze()

    async def silent() -> bool:
        rows = await world.sql(
            "select beat_at < now() - $1 * interval '1 s' as s from corevo.workers where fenced_at is null",
            2 * TTL_SECONDS,
        )
        return all(row["s"] for row in rows)

    await eventually(silent, what="a worker that nobody heard of for long")
    janitor.thaw()
    worker.thaw()  # both wake up at once, as after an outage of a machine

    async def beaten() -> bool:
        rows = await world.sql(
            "select 1 from corevo.workers where fenced_at is null and beat_at > now() - interval '300 ms'"
        )
        return bool(rows)

    await eventually(beaten, what="a beat that was taken")
    assert await _running(world, job_id), "a worker was declared dead by one who had not watched"
    assert (await history.cancel(job_id)).outcome == "ok"
    assert await history.until_ended(job_id) == "cancelled"
    await _done(history, janitor, worker)


async def _done(history: History, *roles: Role) -> None:
    await history.check(TIMINGS)
    for role in roles:
        await role.stop()
    await history.close()
