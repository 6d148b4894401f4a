"""Workers die by SIGKILL and freeze by SIGSTOP, before and after start; what others see stays true."""

from __future__ import annotations

import asyncpg

from corevo.contracts import JobId
from tests.client import Client
from tests.invariants import violations
from tests.processes import Process, eventually, role

APP = "tests/agents.py"


async def known_agents(database: str) -> None:
    """Registers the test agents, so that a job can wait before any worker is there to take it."""
    async with role(database, "worker", APP):
        pass


async def test_killed_before_start_the_job_is_claimed_again_with_the_next_epoch(client: Client, database: str) -> None:
    await known_agents(database)
    admitted = await client.admit("echo", "hello")
    gatekeeper = await asyncpg.connect(database)
    try:
        block = gatekeeper.transaction()
        await block.start()
        await gatekeeper.execute(
            "lock table corevo.messages in access exclusive mode"
        )  # a claim reads them, then starts
        async with role(database, "worker", APP, ready=False) as victim:
            row = await eventually(lambda: _claimed(database, admitted.job_id), what="the claim")
            assert row is not None and row["epoch"] == 1 and row["execution_id"] is None, "the fault was not reached"
            victim.kill()
            await victim.wait()
        await block.rollback()
    finally:
        await gatekeeper.close()
    async with role(database, "worker", APP):
        job = await client.ended(admitted.job_id)
    assert (job.state, job.epoch) == ("completed", 2)
    assert await client.answer(job) == ("hello ", "completed")


async def test_killed_after_start_the_job_is_lost_and_its_text_so_far_is_a_message(
    client: Client, database: str
) -> None:
    async with role(database, "worker", APP) as victim:
        admitted = await client.admit("paced", "1000")
        await client.said(admitted.job_id, 5)
        victim.kill()
        await victim.wait()
    async with role(database, "worker", APP):
        job = await client.ended(admitted.job_id)
        assert (job.state, job.error_code) == ("lost", "worker_lost")
        text, status = await client.answer(job)
        assert status == "lost" and text.startswith("0 1 2 3 ")
        again = await client.run("echo", "the thread is free", thread=job.thread_id)
        assert again.state == "completed"


async def test_a_frozen_worker_wakes_up_refused_and_writes_nothing_more(client: Client, database: str) -> None:
    async with role(database, "worker", APP) as frozen, role(database, "janitor"):
        admitted = await client.admit("paced", "400")
        await client.said(admitted.job_id, 5)
        frozen.freeze()
        job = await client.ended(admitted.job_id)
        assert job.state == "lost"
        before = await client.stored(admitted.job_id)
        frozen.thaw()
        await eventually(lambda: _logged(frozen, "declared dead"), what="the zombie noticed")
        again = await client.run("echo", "a new incarnation")  # taken by the thawed process, as a new worker
        assert again.state == "completed"
        assert await client.stored(admitted.job_id) == before
        assert (await client.job(admitted.job_id)).state == "lost"
    assert await violations(database) == []


async def _claimed(database: str, job_id: JobId) -> asyncpg.Record | None:
    connection = await asyncpg.connect(database)
    try:
        return await connection.fetchrow(
            "select epoch, execution_id from corevo.jobs where id = $1 and worker_id is not null", job_id
        )
    finally:
        await connection.close()


async def _logged(process: Process, words: str) -> bool:
    return words in process.output


async def test_a_claim_whose_answer_was_lost_is_given_back_even_if_that_fails_at_first(
    client: Client, database: str
) -> None:
    async with role(database, "worker", APP, "--places", "1"):
        busy = await client.admit("sleeps", "x")
        await client.said(busy.job_id)
        waiting = await client.admit("echo", "hello")
        connection = await asyncpg.connect(database)
        try:
            claimed = await connection.fetch(  # as the worker itself would, and then the answer is lost
                "select c.job_id from corevo.workers w, corevo.claim(w.id, gen_random_uuid(), $1, 'normal', 1) c",
                ["echo"],
            )
            assert [row["job_id"] for row in claimed] == [waiting.job_id]
            async with connection.transaction():  # held for longer than the worker waits for a lock
                await connection.execute("select from corevo.jobs where id = $1 for update", waiting.job_id)
                await connection.execute("select pg_sleep(6)")
        finally:
            await connection.close()

        async def free() -> bool:
            return await _claimed(database, waiting.job_id) is None

        await eventually(free, what="the ghost's end", seconds=10)
        async with role(database, "worker", APP):
            assert (await client.ended(waiting.job_id)).state == "completed"
