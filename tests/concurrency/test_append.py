"""Append meets endings: it never waits, and nothing gets above a terminal event."""

from __future__ import annotations

import asyncio
import time
from uuid import UUID

import pytest

from tests.concurrency.holding import held
from tests.protocol import Piece, Protocol, Running, piece

#: append waits for no row; a lock time-out this short turns any wait into an error
NO_WAIT = "20ms"


@pytest.mark.parametrize("ending", ["finish", "sweep"])
async def test_append_answers_busy_at_once_while_an_ending_holds_the_run(
    connections: list[Protocol], account: UUID, worker: UUID, ending: str
) -> None:
    one, two = connections[:2]
    await one.admit(account)
    held_run = await one.running(worker)
    await one.admit(account)
    other = await one.running(worker)
    await two.value(f"set lock_timeout = '{NO_WAIT}'")
    async with one.connection.transaction():
        if ending == "finish":
            await one.finish(piece(held_run, 2, "a"))
        else:
            await one.fence(worker)
            assert (await one.sweep(held_run.job))["result"] == "lost"
        began = time.monotonic()
        rows = {r["execution_id"]: r for r in await two.append(piece(held_run, 2, "z"), piece(other, 2, "b"))}
        assert time.monotonic() - began < 2, "the ending holds its locks until this block ends"
        assert (rows[held_run.execution]["result"], rows[other.execution]["result"]) == ("busy", "stored")
    (row,) = await two.append(piece(held_run, 2, "z"))
    assert (row["result"], row["ended_by"]) == ("fenced", "completed" if ending == "finish" else "lost")


async def test_only_an_ending_makes_it_busy(connections: list[Protocol], account: UUID, worker: UUID) -> None:
    one, two = connections[:2]
    admitted = await one.admit(account)
    run = await one.running(worker)
    await two.value(f"set lock_timeout = '{NO_WAIT}'")
    seq = 2
    for call in ("cancel", "accept", "replace", "beat", "fence", "nothing to sweep"):
        async with one.connection.transaction():
            match call:
                case "cancel":
                    await one.cancel(account, run.job)
                case "accept":
                    await one.accept(run)
                case "replace":
                    await one.admit(account, "other", thread=admitted["thread_id"], on_busy="replace")
                case "beat":
                    await one.beat(worker)
                case "fence":
                    await one.fence(worker)
                case _:
                    await one.value("update corevo.workers set fenced_at = null")
            (row,) = await two.append(piece(run, seq, "x"))
            assert row["result"] == "stored", call
            seq += 1


async def test_an_end_waits_for_an_append_under_way_and_its_event_comes_after(
    connections: list[Protocol], account: UUID, worker: UUID
) -> None:
    one, two = connections[:2]
    await one.admit(account)
    run = await one.running(worker)
    async with held(connections) as meeting:
        await one.append(piece(run, 2, "a", "b", "c"))
        task = await meeting.waits(two.finish(piece(run, 2)))
    assert task.result()[0]["terminal_seq"] == 5
    assert (await one.answer(run.job))["text"] == "abc"


async def test_a_late_writer_never_gets_above_the_terminal_event(
    connections: list[Protocol], account: UUID, worker: UUID
) -> None:
    """The owner and its ghost write, a sweep ends: three hundred times, all at once."""
    one, two, three, four = connections
    await two.value(f"set lock_timeout = '{NO_WAIT}'")
    seen: set[str] = set()
    for n in range(300):
        await one.admit(account, str(n))
        run = await one.running(worker)

        async def write(client: Protocol, run: Running, first: int) -> None:
            for seq in range(first, first + 3):
                for row in await client.append(Piece(run.execution, run.token, seq, ("a", "b", "c"))):
                    seen.add(row["result"])

        await asyncio.gather(write(two, run, 2), write(three, run, 3), four.finish(piece(run, 2)))
        types = await one.types(run.execution)
        assert types[-1] == "run.completed"
        assert types.count("run.completed") == 1
    assert seen >= {"stored", "fenced"}
