"""A real worker process against a real database: whatever an agent does, its job ends in a true state."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import AsyncIterator
from uuid import UUID

import httpx
import pytest

from corevo.contracts import JOB_CHANNEL, JobId
from corevo.store import commands, notify
from tests.client import Client
from tests.processes import Process, role


@pytest.fixture
async def worker(database: str) -> AsyncIterator[Process]:
    async with role(database, "worker", "tests/agents.py") as process:
        yield process


async def test_every_form_of_agent_speaks(client: Client, worker: Process) -> None:
    for agent, text, answer in (
        ("echo", "one two", "one two "),
        ("returns", "this", "returned this"),
        ("yields", "letters", "letters"),
        ("heavy", "anything", "heavy"),
    ):
        job = await client.run(agent, text)
        assert (job.state, job.epoch, job.error_code) == ("completed", 1, None)
        assert await client.answer(job) == (answer, "completed")
        types = await client.types(job)
        assert types[0] == "run.started" and types[-2:] == ["text.done", "run.completed"]


async def test_a_run_sees_the_thread_so_far_and_the_raw_input(client: Client, worker: Process) -> None:
    first = await client.run("echo", "hello")
    second = await client.run("history", "and now", thread=first.thread_id)
    assert (await client.answer(second))[0] == "user:hello | assistant:hello  | user:and now"
    raw = await client.run("raw", "shown", input={"a": [1, None]}, metadata={"from": "test"})
    assert (await client.answer(raw))[0] == "{'a': [1, None]} {'from': 'test'}"


async def test_next_jobs_run_in_order_after_the_current_one(client: Client, worker: Process) -> None:
    first = await client.admit("paced", "10")
    second = await client.admit("echo", "two", thread=first.thread_id, on_busy="enqueue")
    third = await client.admit("echo", "three", thread=first.thread_id, on_busy="enqueue")
    ends = [await client.ended(a.job_id) for a in (first, second, third)]
    assert [job.state for job in ends] == ["completed"] * 3
    times = [job.finished_at for job in ends if job.finished_at]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("agent", "text", "code", "words"),
    [
        ("raises", "x", "agent_error", "RuntimeError: this agent raises"),
        ("unstorable", "nul", "agent_error", "RuntimeError: a\ufffdb"),
        ("unstorable", "surrogate", "agent_error", "RuntimeError: a\ufffdb"),
        ("unstorable", "unprintable", "agent_error", "Unprintable: (its text cannot be read)"),
        ("number", "x", "bad_agent", "an agent returns a string or nothing; this one returned int"),
        ("yields-number", "x", "bad_agent", "an agent yields strings; this one yielded int"),
    ],
)
async def test_a_failing_agent_ends_its_job_as_failed_and_the_next_job_runs(
    client: Client, worker: Process, agent: str, text: str, code: str, words: str
) -> None:
    job = await client.run(agent, text)
    assert (job.state, job.error_code, job.error_message) == ("failed", code, words)
    assert (await client.answer(job))[1] == "failed"
    assert (await client.run("echo", "next")).state == "completed"


async def test_an_error_of_a_million_characters_is_cut(client: Client, worker: Process) -> None:
    job = await client.run("unstorable", "long")
    assert job.state == "failed" and job.error_message is not None and len(job.error_message) == 2000


async def test_text_so_far_is_the_message_of_a_failed_run(client: Client, worker: Process) -> None:
    assert await client.answer(await client.run("raises", "x")) == ("before the fall ", "failed")


async def test_garbage_is_made_storable_and_misuse_is_told_to_the_agent(client: Client, worker: Process) -> None:
    job = await client.run("garbage", "x")
    assert job.state == "completed"
    assert "garbage.all" in await client.types(job)
    said = await client.run("unstorable", "say")
    assert (await client.answer(said))[0] == "nul \ufffd, surrogate \ufffd, fine."
    misuse = await client.run("misuses", "x")
    assert (await client.answer(misuse))[0] == "TypeError ValueError ValueError ValueError ValueError "


async def test_an_agent_that_exits_the_process_leaves_a_lost_job_and_a_free_thread(
    client: Client, database: str
) -> None:
    async with role(database, "worker", "tests/agents.py", ready=True) as first, role(database, "janitor"):
        admitted = await client.admit("exits", "x")
        assert await first.wait() == 7
        job = await client.ended(admitted.job_id)
        assert (job.state, job.error_code) == ("lost", "worker_lost")
        assert await client.answer(job) == ("last words ", "lost")
        async with role(database, "worker", "tests/agents.py"):
            assert (await client.run("echo", "again", thread=job.thread_id)).state == "completed"


async def test_a_run_past_its_deadline_is_timed_out(client: Client, worker: Process) -> None:
    job = await client.run("short-deadline", "x")
    assert (job.state, job.error_code) == ("timed_out", "deadline")


async def test_a_cancelled_run_may_clean_up_and_ends_as_cancelled(client: Client, worker: Process) -> None:
    admitted = await client.admit("cleans-up", "x")
    await client.said(admitted.job_id)
    asked = await commands.request_cancel(client.db, client.account, admitted.job_id)
    await notify.send(client.db, [(JOB_CHANNEL, str(admitted.job_id))])
    job = await client.ended(admitted.job_id)
    assert job.state == "cancelled"
    assert await client.answer(job) == ("working cleaned up", "cancelled")
    command = await commands.read(client.db, client.account, job.id, asked.command_id)
    assert command is not None and command.state == "done" and command.accepted_at is not None


async def test_a_cancel_whose_message_was_lost_is_found_by_the_next_beat(client: Client, worker: Process) -> None:
    admitted = await client.admit("sleeps", "x")
    await client.said(admitted.job_id)
    await commands.request_cancel(client.db, client.account, admitted.job_id)  # and no NOTIFY
    assert (await client.ended(admitted.job_id, seconds=5)).state == "cancelled"


async def test_an_agent_that_swallows_its_cancellation_is_ended_after_ten_seconds(
    client: Client, worker: Process
) -> None:
    admitted = await client.admit("stubborn", "x")
    await client.said(admitted.job_id)
    await commands.request_cancel(client.db, client.account, admitted.job_id)
    job = await client.ended(admitted.job_id, seconds=14)
    assert job.state == "cancelled"
    assert (await client.run("echo", "another place", thread=job.thread_id)).state == "completed"


async def test_a_retry_safe_agent_gets_a_new_execution_with_the_next_epoch(client: Client, worker: Process) -> None:
    job = await client.ended((await client.admit("flaky", "x")).job_id, seconds=6)  # due after 1 s; a look each 10 s
    assert (job.state, job.epoch) == ("completed", 2)
    assert await client.answer(job) == ("attempt 2", "completed")


async def test_a_stopped_worker_finishes_what_it_can_and_exits_with_0(client: Client, database: str) -> None:
    async with role(database, "worker", "tests/agents.py") as process:
        admitted = await client.admit("paced", "40")
        await client.said(admitted.job_id)
        assert await process.stop() == 0
    job = await client.job(admitted.job_id)
    assert job.state == "completed"


async def test_a_run_longer_than_the_grace_is_interrupted(client: Client, database: str) -> None:
    async with role(database, "worker", "tests/agents.py", settings={"COREVO_STOP_GRACE_SECONDS": "6"}) as process:
        admitted = await client.admit("sleeps", "x")
        await client.said(admitted.job_id)
        assert await process.stop() == 0
    job = await client.job(admitted.job_id)
    assert (job.state, job.error_code) == ("interrupted", "worker_stopping")
    assert await client.answer(job) == ("sleeping ", "interrupted")


async def test_with_notify_off_everything_works_by_polling(client: Client, database: str) -> None:
    async with role(database, "worker", "tests/agents.py", settings={"COREVO_NOTIFY": "off"}):
        assert (await client.run("echo", "slow but sure")).state == "completed"


async def test_stopped_right_after_its_start_a_worker_exits_at_once(database: str) -> None:
    """The stop's wake-up and its cancellation reach the claim loop in one tick; neither may be swallowed."""
    for _ in range(5):
        async with role(database, "worker", "tests/agents.py", settings={"COREVO_DB_CONNECTIONS": "1"}) as process:
            process.signal(signal.SIGTERM)
            process.signal(signal.SIGTERM)
            assert await process.wait(5) == 0, process.output
            assert "declared dead" not in process.output


@pytest.mark.parametrize("agent", ["never-ends", "blocks-a-thread", "slow-clean-up"])
async def test_whatever_an_agent_does_the_process_exits_within_the_grace(
    client: Client, database: str, agent: str
) -> None:
    async with role(database, "worker", "tests/agents.py", settings={"COREVO_STOP_GRACE_SECONDS": "6"}) as process:
        admitted = await client.admit(agent, "x")
        await client.said(admitted.job_id)
        process.signal(signal.SIGTERM)
        assert await process.wait(6 + 2.5) == 0
    job = await client.job(admitted.job_id)
    assert (job.state, job.error_code) == ("interrupted", "worker_stopping")


async def test_a_worker_without_places_is_refused(database: str) -> None:
    async with role(
        database, "worker", "tests/agents.py", "--places", "0", "--heavy-places", "0", ready=False
    ) as process:
        assert await process.wait() == 2


async def test_heavy_jobs_take_heavy_places_in_solo_too(client: Client, database: str) -> None:
    async with role(database, "solo", "tests/agents.py", "--port", "0") as solo, httpx.AsyncClient() as http:
        ids = []
        for _ in range(3):
            body = {"text": "x", "agent": "heavy-sleeps"}
            ids.append((await http.post(f"{solo.url}/api/jobs", json=body)).json()["job"]["id"])
        body = {"text": "light", "agent": "echo"}
        light = (await http.post(f"{solo.url}/api/jobs", json=body)).json()["job"]["id"]
        assert (await client.ended(JobId(UUID(light)), seconds=5)).state == "completed"
        states = Counter([(await client.job(JobId(UUID(i)))).state for i in ids])
        assert states == {"running": 1, "queued": 2}
