"""Admission: identity, agents, idempotency, the thread line, and the local direct path."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest

from tests.protocol import (
    AGENT_REQUIRED,
    AGENT_UNAVAILABLE,
    AGENT_UNKNOWN,
    BAD_CALL,
    LINE_FULL,
    MISMATCH,
    NOT_FOUND,
    THREAD_BUSY,
    Protocol,
    piece,
    refused,
)


class TestIdentity:
    async def test_an_unknown_or_disabled_account_is_not_found(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        with refused(NOT_FOUND):
            await protocol.admit(uuid4())
        await protocol.value("update corevo.accounts set disabled_at = corevo.now() where id = $1", account)
        with refused(NOT_FOUND):
            await protocol.admit(account)

    async def test_a_foreign_thread_is_a_missing_thread(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        foreign = await protocol.admit(await protocol.account())
        before = await protocol.contents()
        with refused(NOT_FOUND) as theirs:
            await protocol.admit(account, thread=foreign["thread_id"])
        with refused(NOT_FOUND) as missing:
            await protocol.admit(account, thread=uuid4())
        assert (theirs.value.args, theirs.value.detail) == (missing.value.args, missing.value.detail)
        assert await protocol.contents() == before

    async def test_the_local_account_is_one_real_row(self, protocol: Protocol, worker: UUID) -> None:
        local = await protocol.value("select corevo.local_account()")
        assert await protocol.value("select corevo.local_account()") == local
        assert (await protocol.admit(local))["outcome"] == "queued"


class TestAgents:
    async def test_an_agent_that_never_registered_is_unknown(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        with refused(AGENT_UNKNOWN):
            await protocol.admit(account, agent="nobody")

    async def test_an_agent_that_nobody_served_for_a_minute_is_unavailable(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        await protocol.move_clock("59 seconds")
        await protocol.admit(account)
        await protocol.move_clock("61 seconds")
        with refused(AGENT_UNAVAILABLE):
            await protocol.admit(account)
        with refused(AGENT_UNAVAILABLE):
            await protocol.admit(account, agent=None)
        await protocol.beat(worker)
        await protocol.admit(account)

    async def test_the_only_served_agent_is_the_default_and_of_two_one_must_be_named(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        first = await protocol.admit(account, agent=None)
        assert (await protocol.job(first["job_id"]))["agent"] == "demo"
        await protocol.worker("second")
        with refused(AGENT_REQUIRED) as caught:
            await protocol.admit(account, agent=None)
        assert caught.value.detail == "name one of: demo, second"

    async def test_a_thread_goes_on_with_the_agent_of_its_newest_job(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        await protocol.worker("second")
        first = await protocol.admit(account, agent="second")
        following = await protocol.admit(account, "more", agent=None, thread=first["thread_id"], on_busy="enqueue")
        assert (await protocol.job(following["job_id"]))["agent"] == "second"

    async def test_a_job_keeps_the_lane_and_limits_that_held_when_it_came(
        self, protocol: Protocol, account: UUID
    ) -> None:
        await protocol.worker("a", lane="heavy", timeout_seconds=5, max_attempts=2)
        job = (await protocol.admit(account, agent="a"))["job_id"]
        await protocol.worker("a", lane="normal", timeout_seconds=9)
        row = await protocol.job(job)
        assert (row["lane"], row["timeout_seconds"], row["max_attempts"]) == ("heavy", 5, 2)
        row = await protocol.job((await protocol.admit(account, agent="a"))["job_id"])
        assert (row["lane"], row["timeout_seconds"], row["max_attempts"]) == ("normal", 9, 1)


class TestIdempotency:
    async def test_the_same_body_gets_the_stored_outcome(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        first = await protocol.admit(account, key="k")
        before = await protocol.contents()
        again = await protocol.admit(account, key="k")
        assert [again[n] for n in ("outcome", "job_id", "thread_id", "lane")] == [
            first[n] for n in ("outcome", "job_id", "thread_id", "lane")
        ]
        assert (again["epoch"], again["token"]) == (None, None)
        assert await protocol.contents() == before

    async def test_another_body_is_a_mismatch(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        await protocol.admit(account, key="k", body_hash="one")
        before = await protocol.contents()
        with refused(MISMATCH):
            await protocol.admit(account, key="k", body_hash="two")
        assert await protocol.contents() == before

    async def test_it_holds_whatever_the_limits_say_now(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        first = await protocol.admit(account, key="k")
        second = await protocol.admit(account, "more", thread=first["thread_id"], on_busy="enqueue", key="k2")
        await protocol.move_clock("2 minutes")  # nobody serves the agent any more
        for key, was in (("k", first), ("k2", second)):
            again = await protocol.admit(account, "more", thread=first["thread_id"], on_busy="reject", key=key)
            assert (again["outcome"], again["job_id"]) == (was["outcome"], was["job_id"])

    async def test_a_refusal_stores_nothing_under_the_key(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        first = await protocol.admit(account)
        with refused(THREAD_BUSY):
            await protocol.admit(account, "x", thread=first["thread_id"], on_busy="reject", key="k")
        assert (await protocol.admit(account, "x", key="k"))["outcome"] == "queued"

    async def test_a_join_is_stored_too(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        first = await protocol.admit(account)
        joined = await protocol.admit(account, thread=first["thread_id"], key="k")
        assert (joined["outcome"], joined["job_id"]) == ("already_running", first["job_id"])
        await protocol.cancel(account, first["job_id"])
        again = await protocol.admit(account, thread=first["thread_id"], key="k")
        assert (again["outcome"], again["job_id"]) == ("already_running", first["job_id"])

    async def test_one_key_of_two_accounts_is_two_keys(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        mine = await protocol.admit(account, key="k")
        theirs = await protocol.admit(await protocol.account(), key="k", body_hash="other")
        assert mine["job_id"] != theirs["job_id"]

    async def test_eight_at_once_make_one_job(
        self, protocol: Protocol, database: str, account: UUID, worker: UUID
    ) -> None:
        others = [await Protocol.connect(database) for _ in range(8)]
        try:
            rows = await asyncio.gather(*(other.admit(account, key="k") for other in others))
        finally:
            for other in others:
                await other.close()
        assert len({row["job_id"] for row in rows}) == 1
        assert await protocol.value("select count(*) from corevo.jobs") == 1


class TestThreadLine:
    async def test_the_same_text_joins_and_another_replaces_by_default(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        first = await protocol.admit(account, "hello")
        thread = first["thread_id"]
        joined = await protocol.admit(account, "hello", thread=thread)
        assert (joined["outcome"], joined["job_id"], joined["touched"]) == (
            "already_running",
            first["job_id"],
            [],
        )
        replaced = await protocol.admit(account, "other", thread=thread)
        assert (replaced["outcome"], replaced["touched"]) == ("replaced", [first["job_id"]])

    async def test_the_same_text_for_another_agent_is_not_the_same(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        await protocol.worker("second")
        first = await protocol.admit(account, "hello")
        other = await protocol.admit(account, "hello", agent="second", thread=first["thread_id"])
        assert other["outcome"] == "replaced"

    async def test_join_can_be_asked_for_with_another_text(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        first = await protocol.admit(account, "hello")
        before = await protocol.contents()
        joined = await protocol.admit(account, "other", thread=first["thread_id"], on_busy="join")
        assert (joined["outcome"], joined["job_id"]) == ("already_running", first["job_id"])
        assert await protocol.contents() == before

    async def test_replace_before_start_ends_the_current_one_and_takes_its_place(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        first = await protocol.admit(account, "one")
        (claim,) = await protocol.claim(worker)
        second = await protocol.admit(account, "two", thread=first["thread_id"], on_busy="replace")
        assert (await protocol.job(first["job_id"]))["state"] == "cancelled"
        assert (await protocol.job(first["job_id"]))["error_code"] == "replaced"
        assert (await protocol.thread(first["thread_id"]))["current_job_id"] == second["job_id"]
        (row,) = await protocol.start(claim)
        assert (row["result"], row["ended_by"]) == ("stale", "cancelled")

    async def test_replace_of_a_running_job_asks_it_to_stop_and_goes_next(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        first = await protocol.admit(account, "one")
        run = await protocol.running(worker)
        waiting = await protocol.admit(account, "two", thread=first["thread_id"], on_busy="enqueue")
        third = await protocol.admit(account, "three", thread=first["thread_id"], on_busy="replace")
        assert (third["outcome"], third["touched"]) == ("replaced", [waiting["job_id"], first["job_id"]])
        assert (await protocol.job(waiting["job_id"]))["state"] == "cancelled"
        job = await protocol.job(first["job_id"])
        assert (job["state"], job["cancel_requested_at"] is not None) == ("running", True)
        assert (await protocol.job(third["job_id"]))["blocked_by"] == first["job_id"]
        fourth = await protocol.admit(account, "four", thread=first["thread_id"], on_busy="replace")
        assert await protocol.value("select count(*) from corevo.commands") == 1
        (row,) = await protocol.finish(piece(run), outcomes=["cancelled"])
        assert row["promoted"] == fourth["job_id"]
        assert (await protocol.job(third["job_id"]))["state"] == "cancelled"

    async def test_reject_is_refused_and_leaves_nothing(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        first = await protocol.admit(account)
        before = await protocol.contents()
        with refused(THREAD_BUSY):
            await protocol.admit(account, "x", thread=first["thread_id"], on_busy="reject")
        assert await protocol.contents() == before

    async def test_the_line_has_a_limit_and_a_free_thread_has_none(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        first = await protocol.admit(account, next_limit=0)
        for n in range(2):
            await protocol.admit(account, str(n), thread=first["thread_id"], on_busy="enqueue", next_limit=2)
        before = await protocol.contents()
        with refused(LINE_FULL):
            await protocol.admit(account, "x", thread=first["thread_id"], on_busy="enqueue", next_limit=2)
        assert await protocol.contents() == before

    async def test_next_jobs_run_in_the_order_they_came_also_after_one_was_cancelled(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        first = await protocol.admit(account, "0")
        thread = first["thread_id"]
        line = [
            first["job_id"],
            *[(await protocol.admit(account, str(n), thread=thread, on_busy="enqueue"))["job_id"] for n in range(1, 5)],
        ]
        assert (await protocol.cancel(account, line[2]))["ended"] is True
        assert (await protocol.thread(thread))["current_job_id"] == line[0], "the current one did not notice"
        ran = []
        for _ in range(4):
            run = await protocol.running(worker)
            ran.append(run.job)
            await protocol.finish(piece(run))
        assert ran == [line[0], line[1], line[3], line[4]]
        assert (await protocol.thread(thread))["current_job_id"] is None

    async def test_a_promoted_job_starts_its_queue_clock_anew(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        first = await protocol.admit(account)
        following = await protocol.admit(account, "x", thread=first["thread_id"], on_busy="enqueue")
        await protocol.move_clock("1 hour")
        await protocol.cancel(account, first["job_id"])
        job = await protocol.job(following["job_id"])
        assert (job["waiting_since"] - job["created_at"]).total_seconds() >= 3600
        assert (await protocol.expire(following["job_id"]))["expired"] is False

    async def test_a_run_that_was_asked_to_stop_is_not_joined(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        """It would swallow the message: sending again has to work at once."""
        first = await protocol.admit(account, "hi")
        run = await protocol.running(worker)
        await protocol.cancel(account, run.job)
        again = await protocol.admit(account, "hi", thread=first["thread_id"])
        assert (again["outcome"], again["job_id"] != run.job) == ("replaced", True)
        once_more = await protocol.admit(account, "hi", thread=first["thread_id"])
        assert (once_more["outcome"], once_more["job_id"]) == ("already_running", again["job_id"])

    async def test_two_submits_of_one_text_to_a_busy_thread_are_one_job(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        first = await protocol.admit(account, "a")
        await protocol.running(worker)
        replaced = await protocol.admit(account, "b", thread=first["thread_id"])
        joined = await protocol.admit(account, "b", thread=first["thread_id"])
        assert (replaced["outcome"], joined["outcome"]) == ("replaced", "already_running")
        assert joined["job_id"] == replaced["job_id"]
        back = await protocol.admit(account, "a", thread=first["thread_id"])
        assert back["outcome"] == "replaced", "the run of a is on its way out"

    async def test_an_unknown_on_busy_is_a_bad_call_and_ends_nothing(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        first = await protocol.admit(account)
        with refused(BAD_CALL):
            await protocol.admit(account, "x", thread=first["thread_id"], on_busy="later")
        assert (await protocol.job(first["job_id"]))["state"] == "queued"

    async def test_the_first_text_names_the_thread(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        first = await protocol.admit(account, "t" * 200)
        assert (await protocol.thread(first["thread_id"]))["title"] == "t" * 60 + "…"
        empty = await protocol.value("select corevo.create_thread($1, '')", account)
        await protocol.admit(account, "later", thread=empty)
        assert (await protocol.thread(empty))["title"] == "later"


class TestLocalDirect:
    async def test_takes_the_new_job_with_the_first_epoch(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        row = await protocol.admit(account, worker=worker)
        assert row["epoch"] == 1
        job = await protocol.job(row["job_id"])
        assert (job["state"], job["worker_id"], job["token"]) == ("queued", worker, row["token"])
        started = await protocol.all(
            "select * from corevo.start($1, $2, $3, $4)", worker, [row["job_id"]], [1], [row["token"]]
        )
        assert started[0]["result"] == "started"

    async def test_not_while_an_older_claimable_job_of_the_lane_waits(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        older = await protocol.admit(account, "older")
        row = await protocol.admit(account, "new", worker=worker)
        assert (row["epoch"], row["token"]) == (None, None)
        assert [c.job for c in await protocol.claim(worker, 9)] == [older["job_id"], row["job_id"]]
        assert (await protocol.admit(account, "free again", worker=worker))["epoch"] == 1

    async def test_whatever_waits_in_another_lane_or_not_yet_does_not_count(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        await protocol.worker("big", lane="heavy")
        await protocol.admit(account, agent="big")
        later = await protocol.admit(account, "later")
        await protocol.value(
            "update corevo.jobs set ready_at = corevo.now() + interval '1 h' where id = $1", later["job_id"]
        )
        assert (await protocol.admit(account, "new", worker=worker))["epoch"] == 1

    @pytest.mark.parametrize("why", ["fenced", "draining", "other agent", "unknown"])
    async def test_not_by_a_worker_that_may_not(
        self, protocol: Protocol, account: UUID, worker: UUID, why: str
    ) -> None:
        direct = await protocol.worker("other") if why == "other agent" else await protocol.worker()
        if why == "fenced":
            await protocol.fence(direct)
        elif why == "draining":
            await protocol.value("select corevo.drain_worker($1)", direct)
        elif why == "unknown":
            direct = uuid4()
        row = await protocol.admit(account, worker=direct)
        assert (row["outcome"], row["epoch"]) == ("queued", None)

    async def test_not_for_a_next_job(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        first = await protocol.admit(account, worker=worker)
        row = await protocol.admit(account, "x", thread=first["thread_id"], on_busy="enqueue", worker=worker)
        assert (row["outcome"], row["epoch"]) == ("enqueued", None)

    async def test_replacing_an_unstarted_job_may_take_the_new_one_at_once(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        first = await protocol.admit(account)
        row = await protocol.admit(account, "x", thread=first["thread_id"], on_busy="replace", worker=worker)
        assert (row["outcome"], row["epoch"]) == ("replaced", 1)
