"""Lock first, read later: the second of two calls waits, and then sees what the first has done."""

from __future__ import annotations

import asyncio
from uuid import UUID

import asyncpg
import pytest

from tests.concurrency.holding import held, waiting_for
from tests.protocol import NOT_FOUND, STALE, WORKER_FENCED, Protocol, Running, piece, refused

Connections = list[Protocol]


async def begin(protocol: Protocol, account: UUID, worker: UUID) -> tuple[UUID, Running]:
    """A thread and its running job."""
    admitted = await protocol.admit(account, "first")
    return admitted["thread_id"], await protocol.running(worker)


class TestAdmissionAndEnding:
    async def test_an_admission_that_waited_for_the_end_finds_the_thread_free(
        self, connections: Connections, account: UUID, worker: UUID
    ) -> None:
        one, two = connections[:2]
        thread, run = await begin(one, account, worker)
        async with held(connections) as meeting:
            await one.finish(piece(run))
            task = await meeting.waits(two.admit(account, "x", thread=thread, on_busy="enqueue"))
        assert task.result()["outcome"] == "queued"
        job = await one.job(task.result()["job_id"])
        assert job["blocked_by"] is None
        assert (await one.thread(thread))["current_job_id"] == job["id"]

    async def test_an_end_that_waited_for_an_admission_promotes_its_job(
        self, connections: Connections, account: UUID, worker: UUID
    ) -> None:
        one, two = connections[:2]
        thread, run = await begin(one, account, worker)
        async with held(connections) as meeting:
            admitted = await one.admit(account, "x", thread=thread, on_busy="enqueue")
            task = await meeting.waits(two.finish(piece(run)))
        assert task.result()[0]["promoted"] == admitted["job_id"]

    async def test_an_end_that_waited_for_a_replacement_resolves_its_cancel(
        self, connections: Connections, account: UUID, worker: UUID
    ) -> None:
        one, two = connections[:2]
        thread, run = await begin(one, account, worker)
        async with held(connections) as meeting:
            admitted = await one.admit(account, "x", thread=thread, on_busy="replace")
            task = await meeting.waits(two.finish(piece(run)))
        assert task.result()[0]["promoted"] == admitted["job_id"]
        assert await one.value("select array_agg(state) from corevo.commands") == ["already_finished"]

    async def test_of_two_admissions_to_a_free_thread_the_second_finds_it_busy(
        self, connections: Connections, account: UUID, worker: UUID
    ) -> None:
        one, two = connections[:2]
        thread = await one.value("select corevo.create_thread($1, '')", account)
        async with held(connections) as meeting:
            first = await one.admit(account, "x", thread=thread)
            task = await meeting.waits(two.admit(account, "x", thread=thread))
        assert (task.result()["outcome"], task.result()["job_id"]) == ("already_running", first["job_id"])

    async def test_of_two_admissions_with_one_key_the_second_replays(
        self, connections: Connections, account: UUID, worker: UUID
    ) -> None:
        one, two = connections[:2]
        async with held(connections) as meeting:
            first = await one.admit(account, "x", key="k")
            task = await meeting.waits(two.admit(account, "x", key="k"))
        assert (task.result()["outcome"], task.result()["job_id"]) == ("queued", first["job_id"])
        assert await one.value("select count(*) from corevo.jobs") == 1

    async def test_an_admission_that_waited_for_the_deletion_finds_no_thread(
        self, connections: Connections, account: UUID, worker: UUID
    ) -> None:
        one, two = connections[:2]
        thread, run = await begin(one, account, worker)
        await one.finish(piece(run))
        async with held(connections) as meeting:
            await one.value("select corevo.delete_thread($1, $2)", account, thread)
            task = await meeting.waits(two.admit(account, "x", thread=thread))
        with refused(NOT_FOUND):
            task.result()


class TestCancelAndEnding:
    async def test_a_cancel_that_waited_for_the_end_is_already_finished(
        self, connections: Connections, account: UUID, worker: UUID
    ) -> None:
        one, two = connections[:2]
        _, run = await begin(one, account, worker)
        async with held(connections) as meeting:
            await one.finish(piece(run))
            task = await meeting.waits(two.cancel(account, run.job))
        assert task.result()["ended"] is False
        assert await one.command(task.result()["command_id"]) == "already_finished"

    async def test_an_end_that_waited_for_a_cancel_resolves_it(
        self, connections: Connections, account: UUID, worker: UUID
    ) -> None:
        one, two = connections[:2]
        _, run = await begin(one, account, worker)
        async with held(connections) as meeting:
            row = await one.cancel(account, run.job)
            task = await meeting.waits(two.finish(piece(run)))
        assert task.result()[0]["result"] == "ended"
        assert await one.command(row["command_id"]) == "already_finished"

    async def test_an_end_that_waited_for_the_cancel_of_the_next_job_promotes_the_one_after(
        self, connections: Connections, account: UUID, worker: UUID
    ) -> None:
        one, two = connections[:2]
        thread, run = await begin(one, account, worker)
        second, third = [
            (await one.admit(account, text, thread=thread, on_busy="enqueue"))["job_id"] for text in ("2", "3")
        ]
        async with held(connections) as meeting:
            assert (await one.cancel(account, second))["ended"] is True
            task = await meeting.waits(two.finish(piece(run)))
        assert task.result()[0]["promoted"] == third

    async def test_a_cancel_that_waited_for_the_promotion_ends_the_new_current_job(
        self, connections: Connections, account: UUID, worker: UUID
    ) -> None:
        one, two = connections[:2]
        thread, run = await begin(one, account, worker)
        second = (await one.admit(account, "2", thread=thread, on_busy="enqueue"))["job_id"]
        async with held(connections) as meeting:
            await one.finish(piece(run))
            task = await meeting.waits(two.cancel(account, second))
        assert task.result()["ended"] is True
        assert (await one.thread(thread))["current_job_id"] is None

    async def test_two_cancels_at_once_are_one(self, connections: Connections, account: UUID, worker: UUID) -> None:
        one, two = connections[:2]
        _, run = await begin(one, account, worker)
        async with held(connections) as meeting:
            first = await one.cancel(account, run.job)
            task = await meeting.waits(two.cancel(account, run.job))
        assert task.result()["command_id"] == first["command_id"]


class TestStart:
    async def test_that_waited_for_a_cancel_is_stale(
        self, connections: Connections, account: UUID, worker: UUID
    ) -> None:
        one, two = connections[:2]
        await one.admit(account)
        (claim,) = await one.claim(worker)
        async with held(connections) as meeting:
            await one.cancel(account, claim.job)
            task = await meeting.waits(two.start(claim))
        assert [(r["result"], r["ended_by"]) for r in task.result()] == [("stale", "cancelled")]
        assert await one.value("select count(*) from corevo.executions") == 0

    async def test_makes_a_cancel_that_waited_for_it_a_request(
        self, connections: Connections, account: UUID, worker: UUID
    ) -> None:
        one, two = connections[:2]
        await one.admit(account)
        (claim,) = await one.claim(worker)
        async with held(connections) as meeting:
            await one.start(claim)
            task = await meeting.waits(two.cancel(account, claim.job))
        assert task.result()["ended"] is False
        assert await one.command(task.result()["command_id"]) == "requested"

    async def test_twice_at_once_makes_one_execution(
        self, connections: Connections, account: UUID, worker: UUID
    ) -> None:
        one, two = connections[:2]
        await one.admit(account)
        (claim,) = await one.claim(worker)
        async with held(connections) as meeting:
            (first,) = await one.start(claim)
            task = await meeting.waits(two.start(claim))
        assert [(r["result"], r["execution_id"]) for r in task.result()] == [("started", first["execution_id"])]

    async def test_that_waited_for_the_sweep_is_stale(
        self, connections: Connections, account: UUID, worker: UUID
    ) -> None:
        one, two = connections[:2]
        await one.admit(account)
        (claim,) = await one.claim(worker)
        await one.fence(worker)
        async with held(connections) as meeting:
            assert (await one.sweep(claim.job))["result"] == "released"
            task = await meeting.waits(two.start(claim))
        assert [(r["result"], r["ended_by"]) for r in task.result()] == [("stale", "released")]

    async def test_that_waited_for_its_own_release_is_stale(
        self, connections: Connections, account: UUID, worker: UUID
    ) -> None:
        one, two = connections[:2]
        await one.admit(account)
        (claim,) = await one.claim(worker)
        async with held(connections) as meeting:
            await one.release(claim)
            task = await meeting.waits(two.start(claim))
        assert [(r["result"], r["ended_by"]) for r in task.result()] == [("stale", "released")]

    async def test_makes_a_release_that_waited_for_it_stale(
        self, connections: Connections, account: UUID, worker: UUID
    ) -> None:
        one, two = connections[:2]
        await one.admit(account)
        (claim,) = await one.claim(worker)
        async with held(connections) as meeting:
            await one.start(claim)
            task = await meeting.waits(two.release(claim))
        with refused(STALE) as caught:
            task.result()
        assert caught.value.detail == "started"


class TestEndings:
    async def test_of_two_the_second_is_fenced_and_changes_nothing(
        self, connections: Connections, account: UUID, worker: UUID
    ) -> None:
        one, two, three = connections[:3]
        _, run = await begin(one, account, worker)
        async with held(connections) as meeting:
            await one.finish(piece(run, 2, "first"), outcomes=["failed"])
            task = await meeting.waits(two.finish(piece(run, 2, "second")))
        assert [(r["result"], r["ended_by"]) for r in task.result()] == [("fenced", "failed")]
        assert (await three.answer(run.job))["text"] == "first"

    async def test_a_finish_that_waited_for_the_sweep_is_fenced(
        self, connections: Connections, account: UUID, worker: UUID
    ) -> None:
        one, two = connections[:2]
        _, run = await begin(one, account, worker)
        await one.fence(worker)
        async with held(connections) as meeting:
            assert (await one.sweep(run.job))["result"] == "lost"
            task = await meeting.waits(two.finish(piece(run)))
        assert [(r["result"], r["ended_by"]) for r in task.result()] == [("fenced", "lost")]

    async def test_a_sweep_skips_what_an_ending_holds(
        self, connections: Connections, account: UUID, worker: UUID
    ) -> None:
        one, two = connections[:2]
        _, run = await begin(one, account, worker)
        await one.fence(worker)
        async with one.connection.transaction():
            await one.finish(piece(run))
            assert (await asyncio.wait_for(two.sweep(run.job), 5))["result"] == "busy"
        assert (await two.sweep(run.job))["result"] == "nothing"
        assert (await one.job(run.job))["state"] == "completed", "a rescue never overwrites a finished job"

    async def test_batches_in_opposite_order_do_not_deadlock(
        self, connections: Connections, account: UUID, worker: UUID
    ) -> None:
        one, two = connections[:2]
        for round_ in range(25):
            runs = []
            for n in range(6):
                thread, run = await begin(one, account, worker)
                for extra in range(2):
                    await one.admit(account, f"{round_}.{n}.{extra}", thread=thread, on_busy="enqueue")
                runs.append(run)
            results = await asyncio.gather(
                one.finish(*(piece(r) for r in runs)), two.finish(*(piece(r) for r in reversed(runs)))
            )
            flat = sorted(r["result"] for rows in results for r in rows)
            assert flat == ["ended"] * 6 + ["fenced"] * 6
            while claims := await one.claim(worker, 100):  # run the lines dry
                started = await one.start(*claims)
                tokens = {c.job: c.token for c in claims}
                await one.finish(*(piece(Running(c, r["execution_id"])) for c, r in zip(claims, started, strict=True)))
                assert len(tokens) == len(claims)


class TestFence:
    @pytest.mark.parametrize("call", ["claim", "start"])
    async def test_that_is_not_committed_yet_is_not_seen_and_then_the_sweep_undoes_the_rest(
        self, connections: Connections, account: UUID, worker: UUID, call: str
    ) -> None:
        one, two = connections[:2]
        await one.admit(account)
        claims = await one.claim(worker) if call == "start" else []
        async with one.connection.transaction():
            await one.fence(worker)
            if call == "claim":
                claims = await two.claim(worker)
            else:
                assert (await two.start(*claims))[0]["result"] == "started"
        result = (await one.sweep(claims[0].job))["result"]
        assert result == ("released" if call == "claim" else "lost")
        with refused(WORKER_FENCED):
            await two.claim(worker)

    async def test_waits_for_no_beat_and_a_beat_that_waited_for_it_is_refused(
        self, connections: Connections, worker: UUID
    ) -> None:
        one, two = connections[:2]
        async with held(connections) as meeting:
            await one.fence(worker)
            task = await meeting.waits(two.beat(worker))
        with refused(WORKER_FENCED):
            task.result()


async def test_a_killed_connection_in_the_middle_of_an_ending_leaves_nothing(
    connections: Connections, account: UUID, worker: UUID
) -> None:
    one, two, three = connections[:3]
    thread, run = await begin(three, account, worker)
    await three.admit(account, "x", thread=thread, on_busy="enqueue")
    before = await three.contents()
    transaction = one.connection.transaction()
    await transaction.start()
    await one.finish(piece(run, 2, "half"))
    waiting = asyncio.create_task(two.cancel(account, run.job))
    await waiting_for(one, two, three, waiting)
    assert await three.contents() == before
    await three.value("select pg_terminate_backend($1)", one.connection.get_server_pid())
    assert (await waiting)["ended"] is False, "the job runs on"
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)):
        await one.value("select 1")
    (row,) = await three.finish(piece(run))
    assert row["result"] == "ended"
