"""The life of a job: claim, release, start, finish, retry, poison, and what each refuses."""

from __future__ import annotations

import json
from uuid import UUID, uuid4

import pytest

from tests.protocol import BAD_CALL, STALE, WORKER_FENCED, Claim, Piece, Protocol, Running, piece, refused


async def test_a_job_goes_from_queued_to_completed(protocol: Protocol, account: UUID, worker: UUID) -> None:
    admitted = await protocol.admit(account, "hello")
    assert (admitted["outcome"], admitted["lane"], admitted["epoch"], admitted["touched"]) == (
        "queued",
        "normal",
        None,
        [],
    )
    assert (await protocol.job(admitted["job_id"]))["state"] == "queued"
    assert (await protocol.thread(admitted["thread_id"]))["current_job_id"] == admitted["job_id"]

    (claim,) = await protocol.claim(worker)
    assert (claim.job, claim.epoch) == (admitted["job_id"], 1)
    job = await protocol.job(claim.job)
    assert (job["state"], job["worker_id"], job["token"]) == ("queued", worker, claim.token)

    (started,) = await protocol.start(claim)
    assert (started["result"], started["job_id"], started["ended_by"]) == ("started", claim.job, None)
    assert started["remaining_seconds"] == 300
    run = Running(claim, started["execution_id"])
    job = await protocol.job(claim.job)
    assert (job["state"], job["execution_id"], job["attempts"]) == ("running", run.execution, 1)
    assert await protocol.types(run.execution) == ["run.started"]

    (stored,) = await protocol.append(piece(run, 2, "he", "llo"))
    assert stored["result"] == "stored"
    (ended,) = await protocol.finish(piece(run, 4, "!"))
    assert (ended["result"], ended["terminal_seq"], ended["stored_seq"]) == ("ended", 5, 5)
    assert (ended["job_id"], ended["promoted"], json.loads(ended["terminal_data"])) == (claim.job, None, {})
    job = await protocol.job(claim.job)
    assert (job["state"], job["worker_id"], job["error_code"]) == ("completed", None, None)
    assert job["finished_at"] is not None
    assert (await protocol.thread(admitted["thread_id"]))["current_job_id"] is None
    assert tuple(await protocol.answer(claim.job)) == ("hello!", "completed")
    assert await protocol.types(run.execution) == ["run.started", *["text.delta"] * 3, "run.completed"]


class TestClaim:
    async def test_takes_the_oldest_first_and_no_more_than_asked(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        jobs = [(await protocol.admit(account, str(n)))["job_id"] for n in range(4)]
        assert [c.job for c in await protocol.claim(worker, 3)] == jobs[:3]
        assert [c.job for c in await protocol.claim(worker, 3)] == jobs[3:]
        assert await protocol.claim(worker, 3) == []

    async def test_takes_only_its_lane_and_its_agents(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        await protocol.worker("big", lane="heavy")
        await protocol.worker("other")
        heavy = (await protocol.admit(account, agent="big"))["job_id"]
        await protocol.admit(account, agent="other")
        assert await protocol.claim(worker, 9) == []
        assert await protocol.claim(worker, 9, lane="heavy") == []
        assert [c.job for c in await protocol.claim(worker, 9, lane="heavy", agents=["big"])] == [heavy]

    async def test_takes_no_blocked_and_no_future_job(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        first = await protocol.admit(account)
        await protocol.admit(account, "next", thread=first["thread_id"], on_busy="enqueue")
        assert [c.job for c in await protocol.claim(worker, 9)] == [first["job_id"]]
        later = (await protocol.admit(account))["job_id"]
        await protocol.value("update corevo.jobs set ready_at = corevo.now() + interval '1 hour' where id = $1", later)
        assert await protocol.claim(worker, 9) == []
        await protocol.move_clock("61 minutes")
        assert [c.job for c in await protocol.claim(worker, 9)] == [later]

    async def test_sent_again_with_its_request_returns_the_same_claims(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        for n in range(4):
            await protocol.admit(account, str(n))
        request = uuid4()
        first = await protocol.claim(worker, 2, request=request)
        assert sorted(await protocol.claim(worker, 2, request=request), key=str) == sorted(first, key=str)
        await protocol.start(first[0])
        assert await protocol.claim(worker, 2, request=request) == first[1:]
        assert await protocol.value("select count(*) from corevo.jobs where worker_id is not null") == 2

    @pytest.mark.parametrize("known", [True, False])
    async def test_is_refused_for_a_fenced_or_unknown_worker(
        self, protocol: Protocol, account: UUID, worker: UUID, known: bool
    ) -> None:
        await protocol.admit(account)
        await protocol.fence(worker)
        before = await protocol.contents()
        with refused(WORKER_FENCED):
            await protocol.claim(worker if known else uuid4())
        assert await protocol.contents() == before


class TestRelease:
    async def test_gives_the_job_back_and_burns_nothing(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        await protocol.admit(account)
        for epoch in range(1, 6):  # more often than a poison job may be lost
            (claim,) = await protocol.claim(worker)
            assert claim.epoch == epoch
            await protocol.release(claim)
            job = await protocol.job(claim.job)
            assert (job["state"], job["worker_id"], job["claimed_at"], job["losses"], job["attempts"]) == (
                "queued",
                None,
                None,
                0,
                0,
            )

    @pytest.mark.parametrize(
        ("what", "lost_to"),
        [
            ("twice", "released"),
            ("claimed_again", "newer_claim"),
            ("started", "started"),
            ("cancelled", "cancelled"),
            ("wrong_token", "token"),
            ("unknown", "gone"),
        ],
    )
    async def test_that_is_stale_changes_nothing_and_says_what_it_lost_to(
        self, protocol: Protocol, account: UUID, worker: UUID, what: str, lost_to: str
    ) -> None:
        await protocol.admit(account)
        (claim,) = await protocol.claim(worker)
        match what:
            case "twice":
                await protocol.release(claim)
            case "claimed_again":
                await protocol.release(claim)
                await protocol.claim(worker)
            case "started":
                await protocol.start(claim)
            case "cancelled":
                await protocol.cancel(account, claim.job)
            case "wrong_token":
                claim = Claim(worker, claim.job, claim.epoch, uuid4())
            case _:
                claim = Claim(worker, uuid4(), 1, uuid4())
        before = await protocol.contents()
        with refused(STALE) as caught:
            await protocol.release(claim)
        assert (caught.value.args[0], caught.value.detail) == ("stale", lost_to)
        assert await protocol.contents() == before


class TestStart:
    async def test_repeated_returns_the_same_execution(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        await protocol.admit(account)
        (claim,) = await protocol.claim(worker)
        (first,) = await protocol.start(claim)
        before = await protocol.contents()
        (again,) = await protocol.start(claim)
        assert (again["result"], again["execution_id"]) == ("started", first["execution_id"])
        assert 0 < again["remaining_seconds"] <= first["remaining_seconds"]
        assert await protocol.contents() == before

    async def test_repeated_after_the_end_says_how_it_ended(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        await protocol.admit(account)
        run = await protocol.running(worker)
        await protocol.finish(piece(run))
        (again,) = await protocol.start(run.claim)
        assert (again["result"], again["ended_by"], again["execution_id"]) == (
            "stale",
            "completed",
            run.execution,
        )

    async def test_gives_the_execution_the_deadline_of_its_agent(self, protocol: Protocol, account: UUID) -> None:
        worker = await protocol.worker("brief", timeout_seconds=7)
        await protocol.admit(account, agent="brief")
        run = await protocol.running(worker, agents=["brief"])
        x = await protocol.execution(run.execution)
        assert (x["deadline_at"] - x["started_at"]).total_seconds() == 7
        assert (x["epoch"], x["token"], x["worker_id"]) == (1, run.token, worker)

    async def test_ids_are_uuid7_of_the_protocols_clock(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        await protocol.move_clock("2 days")
        await protocol.beat(worker)
        await protocol.admit(account)
        run = await protocol.running(worker)
        assert run.execution.version == 7
        started = (await protocol.execution(run.execution))["started_at"]
        assert run.execution.int >> 80 == int(started.timestamp() * 1000)

    async def test_of_a_batch_answers_each_row(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        for n in range(4):
            await protocol.admit(account, str(n))
        good, released, cancelled, wrong = await protocol.claim(worker, 4)
        await protocol.release(released)
        await protocol.cancel(account, cancelled.job)
        rows = await protocol.start(
            good,
            released,
            cancelled,
            Claim(worker, wrong.job, 1, uuid4()),
            Claim(worker, uuid4(), 1, uuid4()),
        )
        assert [(r["result"], r["ended_by"]) for r in rows] == [
            ("started", None),
            ("stale", "released"),
            ("stale", "cancelled"),
            ("stale", "token"),
            ("stale", "gone"),
        ]
        assert await protocol.value("select count(*) from corevo.executions") == 1

    async def test_by_another_worker_is_stale(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        await protocol.admit(account)
        (claim,) = await protocol.claim(worker)
        other = await protocol.worker()
        before = await protocol.contents()
        (row,) = await protocol.start(claim, worker=other)
        assert row["result"] == "stale"
        assert await protocol.contents() == before

    async def test_of_a_fenced_worker_is_refused(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        await protocol.admit(account)
        (claim,) = await protocol.claim(worker)
        await protocol.fence(worker)
        before = await protocol.contents()
        (row,) = await protocol.start(claim)
        assert (row["result"], row["execution_id"]) == ("worker_fenced", None)
        assert await protocol.contents() == before


class TestReadClaims:
    async def test_shows_what_the_holder_needs_and_nothing_to_others(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        admitted = await protocol.admit(account, "question")
        (claim,) = await protocol.claim(worker)
        read = "select * from corevo.read_claims($1, $2, $3)"
        (row,) = await protocol.all(read, worker, [claim.job], [claim.token])
        assert (row["thread_id"], row["agent"], row["input"]) == (admitted["thread_id"], "demo", '"question"')
        assert (row["attempt"], row["max_attempts"], row["turn"]) == (1, 1, 1)
        assert await protocol.all(read, worker, [claim.job], [uuid4()]) == []
        assert await protocol.all(read, uuid4(), [claim.job], [claim.token]) == []

    async def test_context_holds_earlier_turns_and_its_own_but_not_the_next_ones(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        first = await protocol.admit(account, "one")
        run = await protocol.running(worker)
        await protocol.finish(piece(run, 2, "answer"))
        await protocol.admit(account, "two", thread=first["thread_id"])
        await protocol.admit(account, "three", thread=first["thread_id"], on_busy="enqueue")
        read = "select role, text from corevo.read_context($1, $2, $3, $4)"
        rows = await protocol.all(read, first["thread_id"], 2, 100, 10_000)
        assert [tuple(r) for r in rows] == [("user", "two"), ("assistant", "answer"), ("user", "one")]
        rows = await protocol.all(read, first["thread_id"], 2, 2, 10_000)
        assert [r["text"] for r in rows] == ["two", "answer"]
        rows = await protocol.all(read, first["thread_id"], 2, 100, 5)
        assert [r["text"] for r in rows] == ["two"]
        rows = await protocol.all(read, first["thread_id"], 2, 100, 1)
        assert [r["text"] for r in rows] == ["two"], "its own message is always there"


class TestFinish:
    @pytest.mark.parametrize("outcome", ["completed", "failed", "cancelled", "interrupted", "timed_out", "lost"])
    async def test_stores_the_text_so_far_whatever_the_outcome(
        self, protocol: Protocol, account: UUID, worker: UUID, outcome: str
    ) -> None:
        admitted = await protocol.admit(account)
        run = await protocol.running(worker)
        await protocol.append(piece(run, 2, "so", " far"))
        (row,) = await protocol.finish(piece(run, 4), outcomes=[outcome], reason="why", message="the words")
        assert row["result"] == "ended"
        job = await protocol.job(run.job)
        assert job["state"] == outcome
        assert (job["error_code"], job["error_message"]) == (
            (None, None) if outcome == "completed" else ("why", "the words")
        )
        assert tuple(await protocol.answer(run.job)) == ("so far", outcome)
        assert (await protocol.types(run.execution))[-1] == f"run.{outcome}"
        assert (await protocol.thread(admitted["thread_id"]))["current_job_id"] is None
        assert json.loads(row["terminal_data"]) == {"reason": "why", "message": "the words"}

    async def test_carries_the_tail_and_skips_what_is_stored(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        await protocol.admit(account)
        run = await protocol.running(worker)
        await protocol.append(piece(run, 2, "a", "b"))
        (row,) = await protocol.finish(piece(run, 3, "b", "c"))
        assert (row["result"], row["terminal_seq"]) == ("ended", 5)
        assert (await protocol.answer(run.job))["text"] == "abc"

    async def test_with_a_tail_above_the_stored_end_answers_gap(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        await protocol.admit(account)
        run = await protocol.running(worker)
        await protocol.append(piece(run, 2, "a"))
        before = await protocol.contents()
        (row,) = await protocol.finish(piece(run, 4, "c"))
        assert (row["result"], row["stored_seq"]) == ("gap", 2)
        assert await protocol.contents() == before
        (row,) = await protocol.finish(piece(run, 3, "b", "c"))
        assert row["result"] == "ended"
        assert (await protocol.answer(run.job))["text"] == "abc"

    async def test_is_fenced_by_a_wrong_token_an_end_and_a_missing_execution(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        await protocol.admit(account)
        run = await protocol.running(worker)
        wrong = Piece(run.execution, uuid4(), 2, ("x",))
        (row,) = await protocol.finish(wrong)
        assert (row["result"], row["ended_by"]) == ("fenced", "token")
        await protocol.finish(piece(run), outcomes=["failed"], reason="agent_error")
        before = await protocol.contents()
        (row,) = await protocol.finish(piece(run, 3, "late"))
        assert (row["result"], row["ended_by"]) == ("fenced", "failed")
        (row,) = await protocol.finish(Piece(uuid4(), uuid4(), 2, ()))
        assert (row["result"], row["ended_by"]) == ("fenced", "gone")
        assert await protocol.contents() == before

    async def test_of_a_batch_mixes_outcomes(self, protocol: Protocol, account: UUID) -> None:
        worker = await protocol.worker("twice", max_attempts=2)
        await protocol.worker()
        for n in range(2):
            await protocol.admit(account, str(n), agent="twice")
        for n in range(3):
            await protocol.admit(account, str(n))
        again = await protocol.running(worker, agents=["twice"])
        also = await protocol.running(worker, agents=["twice"])
        done, gap, fenced = [await protocol.running(worker) for _ in range(3)]
        await protocol.finish(piece(fenced))
        rows = await protocol.finish(
            piece(again), piece(gap, 9, "x"), piece(done, 2, "x"), piece(fenced), piece(also),
            outcomes=["failed", "completed", "completed", "failed", "completed"],
        )  # fmt: skip
        assert [r["result"] for r in rows] == ["retry", "gap", "ended", "fenced", "ended"]
        assert [r["execution_id"] for r in rows] == [r.execution for r in (again, gap, done, fenced, also)]
        states = [(await protocol.job(r.job))["state"] for r in (again, gap, done, fenced, also)]
        assert states == ["queued", "running", "completed", "completed", "completed"]

    async def test_hands_the_thread_to_the_oldest_next(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        first = await protocol.admit(account, "0")
        run = await protocol.running(worker)
        nexts = [
            (await protocol.admit(account, str(n), thread=first["thread_id"], on_busy="enqueue"))["job_id"]
            for n in (1, 2, 3)
        ]
        (row,) = await protocol.finish(piece(run))
        assert row["promoted"] == nexts[0]
        assert (await protocol.thread(first["thread_id"]))["current_job_id"] == nexts[0]
        assert [(await protocol.job(n))["blocked_by"] for n in nexts] == [None, nexts[0], nexts[0]]

    async def test_refuses_a_run_twice_in_a_batch(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        await protocol.admit(account)
        run = await protocol.running(worker)
        before = await protocol.contents()
        with refused(BAD_CALL):
            await protocol.finish(piece(run), piece(run))
        with refused(BAD_CALL):
            await protocol.append(piece(run, 2, "x"), piece(run, 3, "y"))
        assert await protocol.contents() == before

    async def test_survives_text_that_cannot_be_extracted(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        await protocol.admit(account)
        run = await protocol.running(worker)
        data = [
            '{"text": "a"}',
            r'{"text": "\u0000"}',
            r'{"text": "\ud800"}',
            "{}",
            "[1]",
            '{"text": null}',
            '{"text": "z"}',
        ]
        rows = await protocol.all(
            "select * from corevo.append_events($1, $2, $3, $4, $5, $6, $7)",
            [run.execution],
            [run.token],
            [2],
            [run.execution] * len(data),
            list(range(2, 2 + len(data))),
            ["text.delta"] * len(data),
            data,
        )
        assert rows[0]["result"] == "stored"
        (row,) = await protocol.finish(piece(run))
        assert row["result"] == "ended"
        assert (await protocol.answer(run.job))["text"] == "a��z"


class TestRetry:
    async def test_is_a_new_execution_with_a_new_epoch_after_a_pause(self, protocol: Protocol, account: UUID) -> None:
        worker = await protocol.worker("again", max_attempts=3)
        admitted = await protocol.admit(account, agent="again")
        run = await protocol.running(worker, agents=["again"])
        await protocol.append(piece(run, 2, "first try"))
        (row,) = await protocol.finish(piece(run, 3), outcomes=["failed"], reason="agent_error")
        assert (row["result"], json.loads(row["terminal_data"])) == (
            "retry",
            {"reason": "agent_error", "will_retry": True},
        )
        job = await protocol.job(run.job)
        assert (job["state"], job["worker_id"], job["execution_id"], job["attempts"]) == (
            "queued",
            None,
            None,
            1,
        )
        assert job["waiting_since"] == job["ready_at"]
        assert (await protocol.thread(admitted["thread_id"]))["current_job_id"] == run.job
        assert await protocol.value("select count(*) from corevo.messages where part = 1000") == 0

        assert await protocol.claim(worker, agents=["again"]) == [], "it backs off"
        await protocol.move_clock("31 seconds")
        second = await protocol.running(worker, agents=["again"])
        assert (second.claim.epoch, second.execution > run.execution) == (2, True)
        await protocol.append(piece(second, 2, "second try"))
        (row,) = await protocol.finish(piece(second, 3))
        assert row["result"] == "ended"
        assert tuple(await protocol.answer(run.job)) == ("second try", "completed")
        events = await protocol.all("select * from corevo.read_events($1, 0, 0, 100, 100000)", run.job)
        assert [(e["epoch"], e["seq"]) for e in events] == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]

    async def test_ends_with_the_last_attempt(self, protocol: Protocol, account: UUID) -> None:
        worker = await protocol.worker("again", max_attempts=2)
        await protocol.admit(account, agent="again")
        for result in ("retry", "ended"):
            run = await protocol.running(worker, agents=["again"])
            (row,) = await protocol.finish(piece(run), outcomes=["failed"])
            assert row["result"] == result
            await protocol.move_clock("31 seconds")
        assert (await protocol.job(run.job))["state"] == "failed"

    @pytest.mark.parametrize("outcome", ["cancelled", "timed_out", "interrupted", "completed"])
    async def test_is_only_for_failures_and_losses(self, protocol: Protocol, account: UUID, outcome: str) -> None:
        worker = await protocol.worker("again", max_attempts=2)
        await protocol.admit(account, agent="again")
        run = await protocol.running(worker, agents=["again"])
        (row,) = await protocol.finish(piece(run), outcomes=[outcome])
        assert row["result"] == "ended"

    async def test_a_run_that_its_owner_lost_is_tried_again_too(self, protocol: Protocol, account: UUID) -> None:
        worker = await protocol.worker("again", max_attempts=2)
        await protocol.admit(account, agent="again")
        run = await protocol.running(worker, agents=["again"])
        (row,) = await protocol.finish(piece(run), outcomes=["lost"])
        assert row["result"] == "retry"

    async def test_a_cancel_between_two_attempts_keeps_what_was_said(self, protocol: Protocol, account: UUID) -> None:
        worker = await protocol.worker("again", max_attempts=2)
        await protocol.admit(account, agent="again")
        run = await protocol.running(worker, agents=["again"])
        await protocol.append(piece(run, 2, "so far"))
        await protocol.finish(piece(run, 3), outcomes=["failed"])
        assert (await protocol.cancel(account, run.job))["ended"] is True
        assert tuple(await protocol.answer(run.job)) == ("so far", "cancelled")

    async def test_is_forbidden_by_a_requested_cancel(self, protocol: Protocol, account: UUID) -> None:
        worker = await protocol.worker("again", max_attempts=2)
        await protocol.admit(account, agent="again")
        run = await protocol.running(worker, agents=["again"])
        await protocol.cancel(account, run.job)
        (row,) = await protocol.finish(piece(run), outcomes=["failed"])
        assert row["result"] == "ended"
        assert (await protocol.job(run.job))["state"] == "failed"

    async def test_happens_only_to_agents_that_declared_it(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        await protocol.admit(account)
        run = await protocol.running(worker)
        (row,) = await protocol.finish(piece(run), outcomes=["failed"])
        assert row["result"] == "ended"

    async def test_a_job_between_two_attempts_can_be_cancelled(self, protocol: Protocol, account: UUID) -> None:
        worker = await protocol.worker("again", max_attempts=2)
        admitted = await protocol.admit(account, agent="again")
        run = await protocol.running(worker, agents=["again"])
        await protocol.finish(piece(run), outcomes=["failed"])
        assert (await protocol.cancel(account, run.job))["ended"] is True
        assert (await protocol.job(run.job))["state"] == "cancelled"
        assert (await protocol.thread(admitted["thread_id"]))["current_job_id"] is None
