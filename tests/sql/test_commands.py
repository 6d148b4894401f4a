"""Cancel in every state, and the way of a command."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from tests.protocol import NOT_FOUND, Protocol, piece, refused


async def test_cancel_before_the_claim_ends_the_job(protocol: Protocol, account: UUID, worker: UUID) -> None:
    admitted = await protocol.admit(account)
    row = await protocol.cancel(account, admitted["job_id"])
    assert row["ended"] is True
    assert await protocol.command(row["command_id"]) == "done"
    assert tuple(await protocol.answer(admitted["job_id"])) == ("", "cancelled")
    assert (await protocol.thread(admitted["thread_id"]))["current_job_id"] is None
    assert await protocol.claim(worker) == []


async def test_cancel_of_a_claimed_job_ends_it_and_its_start_is_stale(
    protocol: Protocol, account: UUID, worker: UUID
) -> None:
    await protocol.admit(account)
    (claim,) = await protocol.claim(worker)
    assert (await protocol.cancel(account, claim.job))["ended"] is True
    (row,) = await protocol.start(claim)
    assert (row["result"], row["ended_by"]) == ("stale", "cancelled")


async def test_cancel_of_the_current_job_promotes_the_next(protocol: Protocol, account: UUID, worker: UUID) -> None:
    first = await protocol.admit(account)
    following = await protocol.admit(account, "x", thread=first["thread_id"], on_busy="enqueue")
    row = await protocol.cancel(account, first["job_id"])
    assert (row["ended"], row["promoted"]) == (True, following["job_id"])


@pytest.mark.parametrize("outcome", ["cancelled", "completed", "failed", "timed_out"])
async def test_cancel_of_a_running_job_is_requested_accepted_and_resolved_by_the_end(
    protocol: Protocol, account: UUID, worker: UUID, outcome: str
) -> None:
    await protocol.admit(account)
    run = await protocol.running(worker)
    row = await protocol.cancel(account, run.job)
    assert (row["ended"], await protocol.command(row["command_id"])) == (False, "requested")
    assert (await protocol.cancel(account, run.job))["command_id"] == row["command_id"]
    assert [b["has_commands"] for b in await protocol.beat(worker)] == [True]

    (accepted,) = await protocol.accept(run)
    assert (accepted["command_id"], accepted["execution_id"], accepted["kind"]) == (
        row["command_id"], run.execution, "cancel",
    )  # fmt: skip
    assert await protocol.command(row["command_id"]) == "accepted"
    assert [a["command_id"] for a in await protocol.accept(run)] == [row["command_id"]], "a lost reply loses nothing"
    assert (await protocol.cancel(account, run.job))["command_id"] == row["command_id"]

    await protocol.finish(piece(run), outcomes=[outcome])
    assert await protocol.command(row["command_id"]) == ("done" if outcome == "cancelled" else "already_finished")
    assert await protocol.accept(run) == []


async def test_cancel_of_an_ended_job_answers_already_finished_in_one_row(
    protocol: Protocol, account: UUID, worker: UUID
) -> None:
    await protocol.admit(account)
    run = await protocol.running(worker)
    await protocol.finish(piece(run))
    first = await protocol.cancel(account, run.job)
    assert (first["ended"], await protocol.command(first["command_id"])) == (False, "already_finished")
    again = await protocol.cancel(account, run.job)
    assert again["command_id"] == first["command_id"]
    assert (await protocol.job(run.job))["cancel_requested_at"] is None


async def test_a_foreign_job_is_a_missing_job(protocol: Protocol, account: UUID, worker: UUID) -> None:
    admitted = await protocol.admit(account)
    stranger = await protocol.account()
    before = await protocol.contents()
    for job in (admitted["job_id"], uuid4()):
        with refused(NOT_FOUND):
            await protocol.cancel(stranger, job)
    assert await protocol.contents() == before


async def test_a_stale_identity_gets_no_command(protocol: Protocol, account: UUID, worker: UUID) -> None:
    await protocol.admit(account)
    run = await protocol.running(worker)
    row = await protocol.cancel(account, run.job)
    assert await protocol.all("select * from corevo.accept_commands($1, $2)", [run.execution], [uuid4()]) == []
    assert await protocol.command(row["command_id"]) == "requested"


@pytest.mark.parametrize(
    ("state", "outcome", "becomes"),
    [
        ("requested", "completed", "returned"),
        ("requested", "lost", "returned"),
        ("accepted", "completed", "returned"),
        ("accepted", "lost", "unknown"),
    ],
)
async def test_an_input_that_was_not_consumed_is_returned_or_unknown(
    protocol: Protocol, account: UUID, worker: UUID, state: str, outcome: str, becomes: str
) -> None:
    await protocol.admit(account)
    run = await protocol.running(worker)
    command = uuid4()
    await protocol.value(
        "insert into corevo.commands (id, job_id, kind, requested_at) values ($1, $2, 'input', corevo.now())",
        command, run.job,
    )  # fmt: skip
    if state == "accepted":
        await protocol.accept(run)
    await protocol.finish(piece(run), outcomes=[outcome])
    assert await protocol.command(command) == becomes


async def test_a_command_is_read_by_its_owner_only(protocol: Protocol, account: UUID, worker: UUID) -> None:
    job = (await protocol.admit(account))["job_id"]
    command = (await protocol.cancel(account, job))["command_id"]
    read = "select * from corevo.read_command($1, $2, $3)"
    (row,) = await protocol.all(read, account, job, command)
    assert (row["kind"], row["state"], row["done_at"] is not None) == ("cancel", "done", True)
    assert await protocol.all(read, await protocol.account(), job, command) == []
    assert await protocol.all(read, account, uuid4(), command) == []
