"""Append and the reads that serve history."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from tests.protocol import Piece, Protocol, piece


async def test_append_stores_from_two_on_and_only_behind_what_is_stored(
    protocol: Protocol, account: UUID, worker: UUID
) -> None:
    await protocol.admit(account)
    run = await protocol.running(worker)
    (row,) = await protocol.append(piece(run, 2, "a", "b"))
    assert (row["result"], row["ended_by"], row["stored_seq"]) == ("stored", None, None)
    before = await protocol.contents()
    (row,) = await protocol.append(piece(run, 5, "d"))
    assert (row["result"], row["stored_seq"]) == ("gap", 3)
    assert await protocol.contents() == before
    (row,) = await protocol.append(piece(run, 4, "c", "d"))
    assert row["result"] == "stored"
    assert await protocol.value("select max(seq) from corevo.events") == 5


async def test_append_sent_again_changes_nothing(protocol: Protocol, account: UUID, worker: UUID) -> None:
    await protocol.admit(account)
    run = await protocol.running(worker)
    await protocol.append(piece(run, 2, "a", "b"))
    before = await protocol.contents()
    (row,) = await protocol.append(piece(run, 2, "other", "words"))
    assert row["result"] == "stored"
    assert await protocol.contents() == before


@pytest.mark.parametrize("first", [0, 1])
async def test_append_never_writes_what_start_wrote(
    protocol: Protocol, account: UUID, worker: UUID, first: int
) -> None:
    await protocol.admit(account)
    run = await protocol.running(worker)
    (row,) = await protocol.append(piece(run, first, "x"))
    assert row["result"] == "gap"
    assert await protocol.types(run.execution) == ["run.started"]


async def test_append_is_fenced_by_a_token_an_end_and_a_missing_execution_and_says_by_which(
    protocol: Protocol, account: UUID, worker: UUID
) -> None:
    await protocol.admit(account)
    run = await protocol.running(worker)
    (row,) = await protocol.append(Piece(run.execution, uuid4(), 2, ("x",)))
    assert (row["result"], row["ended_by"]) == ("fenced", "token")
    await protocol.fence(worker)
    assert (await protocol.append(piece(run, 2, "a")))[0]["result"] == "stored", "no sweep has reached it yet"
    await protocol.sweep(run.job)
    before = await protocol.contents()
    for first in (2, 3, 4, 5):
        (row,) = await protocol.append(piece(run, first, "late"))
        assert (row["result"], row["ended_by"]) == ("fenced", "lost")
    (row,) = await protocol.append(Piece(uuid4(), uuid4(), 2, ("x",)))
    assert (row["result"], row["ended_by"]) == ("fenced", "gone")
    assert await protocol.contents() == before


async def test_one_run_of_a_batch_never_fails_another(protocol: Protocol, account: UUID, worker: UUID) -> None:
    for n in range(4):
        await protocol.admit(account, str(n))
    good, gap, ended, also = [await protocol.running(worker) for _ in range(4)]
    await protocol.finish(piece(ended))
    nobody = Piece(uuid4(), uuid4(), 2, ("x",))
    rows = await protocol.append(
        piece(ended, 2, "x"), piece(good, 2, "a", "b"), piece(gap, 7, "x"), nobody, piece(also, 2, "c")
    )
    assert {r["execution_id"]: r["result"] for r in rows} == {
        ended.execution: "fenced",
        good.execution: "stored",
        gap.execution: "gap",
        nobody.execution: "fenced",
        also.execution: "stored",
    }
    assert await protocol.value("select count(*) from corevo.events where type = 'text.delta'") == 3


async def test_append_of_nothing_tells_whether_the_run_is_still_ours(
    protocol: Protocol, account: UUID, worker: UUID
) -> None:
    await protocol.admit(account)
    run = await protocol.running(worker)
    assert (await protocol.append(piece(run, 2)))[0]["result"] == "stored"
    assert await protocol.append() == []


async def test_a_flush_position_above_an_older_insert_position_proves_it_safe(
    protocol: Protocol, account: UUID, worker: UUID
) -> None:
    await protocol.admit(account)
    run = await protocol.running(worker)
    (first,) = await protocol.append(piece(run, 2, "a"))
    (second,) = await protocol.append(piece(run, 3, "b"))
    assert first["insert_lsn"] < second["insert_lsn"]
    await protocol.account()  # a synchronous commit flushes everything before it
    (third,) = await protocol.append(piece(run, 4, "c"))
    assert third["flush_lsn"] >= second["insert_lsn"]


async def test_append_commits_asynchronously_and_finish_does_not(
    protocol: Protocol, account: UUID, worker: UUID
) -> None:
    await protocol.admit(account)
    run = await protocol.running(worker)
    connection = protocol.connection
    async with connection.transaction():
        await protocol.append(piece(run, 2, "a"))
        assert await protocol.value("show synchronous_commit") == "off"
    assert await protocol.value("show synchronous_commit") == "on"
    async with connection.transaction():
        await protocol.finish(piece(run, 3))
        assert await protocol.value("show synchronous_commit") == "on"


class TestReads:
    async def test_history_goes_on_from_a_cursor_in_order(self, protocol: Protocol, account: UUID) -> None:
        worker = await protocol.worker("again", max_attempts=2)
        await protocol.admit(account, agent="again")
        first = await protocol.running(worker, agents=["again"])
        await protocol.append(piece(first, 2, "a", "b"))
        await protocol.finish(piece(first, 4), outcomes=["failed"])
        await protocol.move_clock("31 s")
        second = await protocol.running(worker, agents=["again"])
        await protocol.append(piece(second, 2, "c"))
        job = first.job

        async def read(epoch: int, seq: int, limit: int = 100, limit_bytes: int = 100_000) -> list[tuple[int, int]]:
            rows = await protocol.all(
                "select * from corevo.read_events($1, $2, $3, $4, $5)", job, epoch, seq, limit, limit_bytes
            )
            return [(r["epoch"], r["seq"]) for r in rows]

        whole = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2)]
        assert await read(0, 0) == whole
        for n, (epoch, seq) in enumerate(whole):
            assert await read(epoch, seq) == whole[n + 1 :]
        assert await read(1, 99) == [(2, 1), (2, 2)]
        assert await read(0, 0, limit=5) == whole[:5]
        assert await read(1, 2, limit=1) == [(1, 3)]
        assert await read(0, 0, limit_bytes=1) == whole[:1], "one event comes however large it is"
        assert await read(3, 0) == []

    async def test_heads_tell_where_each_stream_stands(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        waiting = (await protocol.admit(account))["job_id"]
        (claim,) = await protocol.claim(worker)
        await protocol.admit(account)
        run = await protocol.running(worker)
        await protocol.append(piece(run, 2, "a"))

        async def heads() -> dict[UUID, tuple[object, ...]]:
            rows = await protocol.all("select * from corevo.stream_heads($1)", [waiting, run.job, uuid4()])
            return {r["job_id"]: tuple(r)[1:] for r in rows}

        assert await heads() == {
            waiting: ("queued", False, None, None, None, False, False),
            run.job: ("running", False, run.execution, 1, 2, False, False),
        }
        await protocol.cancel(account, run.job)
        await protocol.finish(piece(run, 3), outcomes=["cancelled"])
        assert (await heads())[run.job] == ("cancelled", True, run.execution, 1, 3, True, False)
        assert claim.job == waiting

    async def test_a_cursor_of_another_job_is_no_position(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        await protocol.admit(account)
        other = (await protocol.admit(account))["job_id"]
        run = await protocol.running(worker)
        ask = "select corevo.execution_epoch($1, $2)"
        assert await protocol.value(ask, run.job, run.execution) == 1
        assert await protocol.value(ask, other, run.execution) is None
