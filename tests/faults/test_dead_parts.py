"""A process of which a part is dead asserts nothing: it stops beating, says why, and its jobs converge."""

from __future__ import annotations

from tests.faults.proxy import PULSE
from tests.faults.worlds import TIMINGS, World
from tests.processes import eventually

LIMIT_SECONDS = 1.5
SETTINGS = {"COREVO_LOOP_STALL_LIMIT_SECONDS": str(LIMIT_SECONDS), "COREVO_POLL_SECONDS": "0.5"}


async def test_a_worker_whose_claim_loop_died_is_declared_dead_and_says_why(world: World) -> None:
    history = world.history("claim loop")
    janitor = await world.janitor()
    worker = await world.worker(plans=("defect@before:claim#1/append_events",), settings=SETTINGS)
    submitted = await history.submit("waits", "x")
    assert await history.until_ended(submitted.job_id) == "lost"
    assert worker.reached and worker.returncode is None
    assert await reason(world, submitted.job_id) == "claim_loop_dead"
    await history.check(TIMINGS)
    await janitor.stop()
    await worker.stop()
    await history.close()


async def test_a_worker_whose_connections_are_dead_is_declared_dead_though_its_pulse_could_beat(world: World) -> None:
    history = world.history("connections")
    janitor = await world.janitor()
    async with world.proxy() as proxy:
        settings = {**SETTINGS, "COREVO_POLL_SECONDS": "10"}  # the claim loop hangs too, and may for that long
        worker = await world.worker(database=proxy.dsn(world.dsn), settings=settings)
        submitted = await history.submit("waits", "x")
        await eventually(lambda: _running(world, submitted.job_id), what="a run")
        proxy.swallow = lambda name: name != PULSE
        assert proxy.harm(lambda link: link.blackhole(), pulse=False) > 0
        assert await history.until_ended(submitted.job_id, 40) == "lost"
        assert await reason(world, submitted.job_id) == "connections_dead"
        worker.kill()
    await history.check(TIMINGS)
    await janitor.stop()
    await history.close()


async def test_three_workers_that_die_before_they_start_it_poison_a_job(world: World) -> None:
    history = world.history("poison")
    janitor = await world.janitor()
    submitted = await history.submit("paced", "5")
    history.follow(submitted.job_id or "")
    for epoch in (1, 2, 3):
        worker = await world.worker(plans=("kill@before:read_claims",), ready=False)
        await eventually(lambda epoch=epoch: _claimed(world, submitted.job_id, epoch), what="a claim")  # type: ignore[misc]
        worker.kill()
        await worker.wait()
    assert await history.until_ended(submitted.job_id) == "failed"
    assert await reason(world, submitted.job_id) == "poison"
    await history.check(TIMINGS)
    await janitor.stop()
    await history.close()


async def reason(world: World, job_id: str | None) -> object:
    (job,) = await world.sql("select error_code from corevo.jobs where id = $1", job_id)
    return job["error_code"]


async def _running(world: World, job_id: str | None) -> bool:
    return bool(await world.sql("select 1 from corevo.jobs where id = $1 and state = 'running'", job_id))


async def _claimed(world: World, job_id: str | None, epoch: int) -> bool:
    return bool(await world.sql("select 1 from corevo.jobs where id = $1 and epoch >= $2", job_id, epoch))
