"""Workers, the janitor's duty and its sweeps, and the partitions of the events."""

from __future__ import annotations

import asyncio
import json
from uuid import UUID, uuid4

import pytest

from tests.protocol import INCARNATION_USED, STALE, WORKER_FENCED, Protocol, piece, refused


class TestWorkers:
    async def test_an_incarnation_registers_once(self, protocol: Protocol, worker: UUID) -> None:
        before = await protocol.contents()
        with refused(INCARNATION_USED):
            await protocol.worker(worker=worker)
        await protocol.fence(worker)
        with refused(INCARNATION_USED):
            await protocol.worker(worker=worker)
        assert before["workers"][0] == 1

    async def test_registering_twice_at_once_does_not_deadlock(self, protocol: Protocol, database: str) -> None:
        others = [await Protocol.connect(database) for _ in range(6)]
        try:
            names = [f"a{n}" for n in range(8)]
            for lane in ("normal", "heavy"):
                await asyncio.gather(
                    *(o.worker(*(names if i % 2 else names[::-1]), lane=lane) for i, o in enumerate(others))
                )
        finally:
            for other in others:
                await other.close()
        assert await protocol.value("select count(*) from corevo.workers") == 12

    async def test_a_beat_says_what_the_worker_owns_and_touches_its_row_alone(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        for n in range(3):
            await protocol.admit(account, str(n))
        run = await protocol.running(worker)
        request = uuid4()
        (claim,) = await protocol.claim(worker, request=request)
        await protocol.claim(await protocol.worker())
        before = await protocol.contents()
        rows = {r["job_id"]: r for r in await protocol.beat(worker)}
        assert rows.keys() == {run.job, claim.job}
        assert rows[run.job]["execution_id"] == run.execution
        assert (rows[claim.job]["execution_id"], rows[claim.job]["claim_request"]) == (None, request)
        assert (rows[claim.job]["epoch"], rows[claim.job]["token"]) == (1, claim.token)
        after = await protocol.contents()
        assert {t for t in after if after[t] != before[t]} == {"workers"}

    @pytest.mark.parametrize("known", [True, False])
    async def test_a_beat_of_a_fenced_or_missing_worker_is_refused_and_never_inserts(
        self, protocol: Protocol, worker: UUID, known: bool
    ) -> None:
        await protocol.fence(worker)
        before = await protocol.contents()
        with refused(WORKER_FENCED):
            await protocol.beat(worker if known else uuid4())
        assert await protocol.contents() == before

    async def test_a_retired_worker_is_fenced_at_once(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        await protocol.admit(account)
        await protocol.value("select corevo.drain_worker($1)", worker)
        assert len(await protocol.beat(worker)) == 0, "a draining worker still beats"
        await protocol.value("select corevo.retire_worker($1)", worker)
        with refused(WORKER_FENCED):
            await protocol.claim(worker)

    async def test_served_agents_are_those_of_workers_that_beat(self, protocol: Protocol, worker: UUID) -> None:
        ask = "select array_agg(name order by name) from corevo.agents_served(60)"
        await protocol.worker("b", "a")
        assert await protocol.value(ask) == ["a", "b", "demo"]
        await protocol.move_clock("61 s")
        await protocol.beat(worker)
        assert await protocol.value(ask) == ["demo"]


class TestDuty:
    async def test_one_holds_it_until_its_lease_ends_or_it_gives_it_back(self, protocol: Protocol) -> None:
        a, b, c = (uuid4(), uuid4()), (uuid4(), uuid4()), (uuid4(), uuid4())
        assert (await protocol.duty(*a))["held"] is True
        assert (await protocol.duty(*b))["held"] is False
        assert (await protocol.duty(*a))["held"] is True
        await protocol.move_clock("14 s")
        assert (await protocol.duty(*b))["held"] is False
        await protocol.move_clock("16 s")
        assert (await protocol.duty(*b))["held"] is True
        assert (await protocol.duty(*a))["held"] is False
        await protocol.value("select corevo.drop_duty('janitor', $1)", a[1])
        assert (await protocol.duty(*c))["held"] is False, "only its holder gives it back"
        await protocol.value("select corevo.drop_duty('janitor', $1)", b[1])
        assert (await protocol.duty(*c))["held"] is True

    async def test_watching_goes_on_over_a_hand_over_and_ends_with_a_hole(self, protocol: Protocol) -> None:
        a, b = (uuid4(), uuid4()), (uuid4(), uuid4())
        assert (await protocol.duty(*a))["watched_seconds"] == 0
        for seconds in (8, 16):
            await protocol.move_clock(f"{seconds} s")
            assert seconds <= (await protocol.duty(*a))["watched_seconds"] < seconds + 1
        await protocol.value("select corevo.drop_duty('janitor', $1)", a[1])
        await protocol.move_clock("25 s")
        assert (await protocol.duty(*b))["watched_seconds"] >= 25
        await protocol.move_clock("36 s")  # 11 s of nothing, the TTL is 20
        assert (await protocol.duty(*b))["watched_seconds"] == 0


class TestFence:
    async def watch(self, protocol: Protocol, seconds: int) -> None:
        """Sweeps without a hole for this long, as the clock moves."""
        holder = uuid4(), uuid4()
        for second in range(0, seconds + 1, 5):
            await protocol.move_clock(f"{second} s")
            await protocol.duty(*holder)

    async def fence(self, protocol: Protocol) -> list[UUID]:
        return [r["worker_id"] for r in await protocol.all("select * from corevo.fence_workers(20)")]

    async def test_takes_the_silent_and_spares_the_beating(self, protocol: Protocol, worker: UUID) -> None:
        beating = await protocol.worker()
        await self.watch(protocol, 25)
        await protocol.beat(beating)
        assert await self.fence(protocol) == [worker]
        assert await self.fence(protocol) == []
        with refused(WORKER_FENCED):
            await protocol.beat(worker)

    async def test_takes_nobody_whom_nobody_watched_for_a_ttl(self, protocol: Protocol, worker: UUID) -> None:
        await protocol.move_clock("1 hour")
        assert await self.fence(protocol) == [], "no duty was ever held"
        await protocol.duty(uuid4(), uuid4())
        assert await self.fence(protocol) == [], "watched from now on"

    async def test_takes_nobody_after_a_hole_between_the_duty_and_the_fence(
        self, protocol: Protocol, worker: UUID
    ) -> None:
        await self.watch(protocol, 25)
        await protocol.beat(worker)
        await protocol.move_clock("2 minutes")  # the janitor froze here, or the database was away
        assert await self.fence(protocol) == []

    async def test_skips_a_worker_that_is_beating_just_now(
        self, protocol: Protocol, database: str, worker: UUID
    ) -> None:
        await self.watch(protocol, 25)
        other = await Protocol.connect(database)
        async with other.connection.transaction():
            await other.beat(worker)
            assert await self.fence(protocol) == []
        await other.close()
        assert await self.fence(protocol) == []


class TestSweep:
    async def test_before_the_start_the_job_is_released_and_claimed_again(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        await protocol.admit(account)
        (claim,) = await protocol.claim(worker)
        assert (await protocol.sweep(claim.job))["result"] == "nothing"
        await protocol.fence(worker)
        assert [r[0] for r in await protocol.all("select * from corevo.jobs_to_sweep(20, 10)")] == [claim.job]
        assert (await protocol.sweep(claim.job))["result"] == "released"
        assert (await protocol.sweep(claim.job))["result"] == "nothing"
        (again,) = await protocol.claim(await protocol.worker())
        assert (again.job, again.epoch) == (claim.job, 2)
        assert (await protocol.job(claim.job))["losses"] == 1
        with refused(STALE):
            await protocol.release(claim)

    async def test_three_losses_before_the_start_are_poison(self, protocol: Protocol, account: UUID) -> None:
        await protocol.worker()
        admitted = await protocol.admit(account)
        results = []
        for _ in range(3):
            worker = await protocol.worker()
            (claim,) = await protocol.claim(worker)
            await protocol.fence(worker)
            results.append((await protocol.sweep(claim.job))["result"])
        assert results == ["released", "released", "poison"]
        job = await protocol.job(admitted["job_id"])
        assert (job["state"], job["error_code"]) == ("failed", "poison")
        assert tuple(await protocol.answer(job["id"])) == ("", "failed")
        assert (await protocol.thread(admitted["thread_id"]))["current_job_id"] is None

    async def test_a_start_forgets_earlier_losses(self, protocol: Protocol, account: UUID) -> None:
        await protocol.worker("again", max_attempts=3)
        await protocol.admit(account, agent="again")
        for _ in range(2):
            worker = await protocol.worker("again", max_attempts=3)
            (claim,) = await protocol.claim(worker, agents=["again"])
            await protocol.fence(worker)
            await protocol.sweep(claim.job)
        run = await protocol.running(await protocol.worker("again", max_attempts=3), agents=["again"])
        assert (await protocol.job(run.job))["losses"] == 0

    async def test_after_the_start_the_job_is_lost_with_its_text_and_the_thread_is_free(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        admitted = await protocol.admit(account)
        run = await protocol.running(worker)
        following = await protocol.admit(account, "x", thread=admitted["thread_id"], on_busy="enqueue")
        await protocol.append(piece(run, 2, "half a"))
        await protocol.fence(worker)
        row = await protocol.sweep(run.job)
        assert (row["result"], row["execution_id"], row["epoch"]) == ("lost", run.execution, 1)
        assert (row["terminal_seq"], row["promoted"]) == (3, following["job_id"])
        assert json.loads(row["terminal_data"])["reason"] == "worker_lost"
        assert tuple(await protocol.answer(run.job)) == ("half a", "lost")
        assert (await protocol.job(run.job))["error_code"] == "worker_lost"

    async def test_a_lost_run_that_may_be_repeated_is_queued_again(self, protocol: Protocol, account: UUID) -> None:
        worker = await protocol.worker("again", max_attempts=2)
        await protocol.admit(account, agent="again")
        run = await protocol.running(worker, agents=["again"])
        await protocol.fence(worker)
        row = await protocol.sweep(run.job)
        assert (row["result"], json.loads(row["terminal_data"])["will_retry"]) == ("retry", True)
        assert (await protocol.execution(run.execution))["outcome"] == "lost"
        assert (await protocol.job(run.job))["state"] == "queued"

    async def test_a_requested_cancel_forbids_the_repeat(self, protocol: Protocol, account: UUID) -> None:
        worker = await protocol.worker("again", max_attempts=2)
        await protocol.admit(account, agent="again")
        run = await protocol.running(worker, agents=["again"])
        command = (await protocol.cancel(account, run.job))["command_id"]
        await protocol.fence(worker)
        assert (await protocol.sweep(run.job))["result"] == "lost"
        assert await protocol.command(command) == "already_finished"

    @pytest.mark.parametrize(("what", "result"), [("cancel", "cancelled"), ("deadline", "timed_out")])
    async def test_a_live_owner_has_twenty_seconds_to_keep_a_cancel_or_a_deadline(
        self, protocol: Protocol, account: UUID, what: str, result: str
    ) -> None:
        worker = await protocol.worker("brief", timeout_seconds=1)
        await protocol.admit(account, agent="brief")
        run = await protocol.running(worker, agents=["brief"])
        if what == "cancel":
            await protocol.cancel(account, run.job)
        else:
            await protocol.move_clock("1 s")
        await protocol.move_clock("18 s")
        assert (await protocol.sweep(run.job))["result"] == "nothing"
        assert await protocol.all("select * from corevo.jobs_to_sweep(20, 10)") == []
        await protocol.move_clock("22 s")
        assert len(await protocol.all("select * from corevo.jobs_to_sweep(20, 10)")) == 1
        assert (await protocol.sweep(run.job))["result"] == result
        assert (await protocol.job(run.job))["state"] == result
        (row,) = await protocol.append(piece(run, 2, "late"))
        assert (row["result"], row["ended_by"]) == ("fenced", result)

    async def test_a_missing_job_and_a_held_one_are_busy(
        self, protocol: Protocol, database: str, account: UUID, worker: UUID
    ) -> None:
        admitted = await protocol.admit(account)
        await protocol.running(worker)
        await protocol.fence(worker)
        other = await Protocol.connect(database)
        for lock in (
            f"select 1 from corevo.threads where id = '{admitted['thread_id']}' for no key update",
            f"select 1 from corevo.jobs where id = '{admitted['job_id']}' for no key update",
        ):
            async with other.connection.transaction():
                await other.value(lock)
                assert (await protocol.sweep(admitted["job_id"]))["result"] == "busy"
                assert (await protocol.expire(admitted["job_id"]))["expired"] is False
        await other.close()
        assert (await protocol.sweep(uuid4()))["result"] == "busy"
        assert (await protocol.sweep(admitted["job_id"]))["result"] == "lost"


class TestExpire:
    async def test_time_in_which_nobody_watched_does_not_count_against_a_job(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        """An outage of the database: nobody could have taken it."""
        admitted = await protocol.admit(account)
        janitor, token = uuid4(), uuid4()
        await protocol.duty(janitor, token)
        await protocol.move_clock("61 seconds")
        await protocol.duty(janitor, token)  # after a hole
        assert (await protocol.expire(admitted["job_id"]))["expired"] is False
        for seconds in range(68, 126, 7):
            await protocol.move_clock(f"{seconds} seconds")
            await protocol.duty(janitor, token)
        assert (await protocol.expire(admitted["job_id"]))["expired"] is True

    async def test_a_job_that_nobody_took_in_time_is_expired(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        first = await protocol.admit(account)
        following = await protocol.admit(account, "x", thread=first["thread_id"], on_busy="enqueue")
        await protocol.move_clock("59 s")
        assert (await protocol.expire(first["job_id"]))["expired"] is False
        await protocol.move_clock("61 s")
        listed = await protocol.all("select * from corevo.jobs_to_expire(60, 10)")
        assert [r[0] for r in listed] == [first["job_id"]]
        row = await protocol.expire(first["job_id"])
        assert (row["expired"], row["promoted"]) == (True, following["job_id"])
        job = await protocol.job(first["job_id"])
        assert (job["state"], job["error_code"]) == ("expired", "queue_timeout")
        assert tuple(await protocol.answer(first["job_id"])) == ("", "expired")

    async def test_only_claimable_time_counts(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        first = await protocol.admit(account)
        await protocol.move_clock("50 s")
        (claim,) = await protocol.claim(worker)
        await protocol.move_clock("100 s")
        assert (await protocol.expire(first["job_id"]))["expired"] is False, "it is owned"
        await protocol.release(claim)
        await protocol.move_clock("159 s")
        assert (await protocol.expire(first["job_id"]))["expired"] is False, "the clock began anew"
        await protocol.move_clock("161 s")
        assert (await protocol.expire(first["job_id"]))["expired"] is True


class TestPartitions:
    async def test_each_day_is_made_once(self, protocol: Protocol) -> None:
        assert await protocol.value("select corevo.ensure_partitions(7)") == 0
        assert await protocol.value("select corevo.partitions_ahead()") == 8
        assert await protocol.value("select corevo.ensure_partitions(9)") == 2
        assert await protocol.value("select corevo.partitions_ahead()") == 10

    async def test_ahead_ends_at_the_first_hole(self, protocol: Protocol) -> None:
        name = await protocol.value(
            "select 'events_' || to_char((corevo.now() at time zone 'utc')::date + 3, 'YYYYMMDD')"
        )
        await protocol.value(f"drop table corevo.{name}")
        assert await protocol.value("select corevo.partitions_ahead()") == 3
        assert await protocol.value("select corevo.ensure_partitions(7)") == 1
        assert await protocol.value("select corevo.partitions_ahead()") == 8

    async def test_days_pass(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        runs = []
        for day in range(0, 21, 4):
            await protocol.move_clock(f"{day} days")
            await protocol.value("select corevo.ensure_partitions(3)")
            await protocol.beat(worker)
            await protocol.admit(account, str(day))
            runs.append(await protocol.running(worker))
            for run in runs:  # a run that began days ago still writes into its own day
                first = await protocol.value(
                    "select max(seq) + 1 from corevo.events where execution_id = $1", run.execution
                )
                assert (await protocol.append(piece(run, first, "x")))[0]["result"] == "stored"
        tables = await protocol.value("select count(distinct tableoid) from corevo.events")
        assert tables == len(runs)

    async def test_a_start_without_a_place_for_its_events_fails_whole(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        await protocol.move_clock("30 days")
        await protocol.beat(worker)
        await protocol.admit(account)
        (claim,) = await protocol.claim(worker)
        before = await protocol.contents()
        with refused("23514"):
            await protocol.start(claim)
        assert await protocol.contents() == before
        await protocol.value("select corevo.ensure_partitions(1)")
        assert (await protocol.start(claim))[0]["result"] == "started"

    async def test_two_callers_at_once_make_each_day_once(self, protocol: Protocol, database: str) -> None:
        others = [await Protocol.connect(database) for _ in range(4)]
        try:
            made = await asyncio.gather(*(o.value("select corevo.ensure_partitions(12)") for o in others))
        finally:
            for other in others:
                await other.close()
        assert sorted(made) == [0, 0, 0, 5]

    async def test_a_new_day_stops_neither_readers_nor_writers(
        self, protocol: Protocol, database: str, account: UUID, worker: UUID
    ) -> None:
        await protocol.admit(account)
        run = await protocol.running(worker)
        other = await Protocol.connect(database, lock_timeout="1s")
        async with other.connection.transaction():
            await other.value("select corevo.ensure_partitions(10)")
            await protocol.value("set lock_timeout = '1s'")
            assert (await protocol.append(piece(run, 2, "a")))[0]["result"] == "stored"
            assert len(await protocol.all("select * from corevo.read_events($1, 0, 0, 10, 1000)", run.job)) == 2
        await other.close()
