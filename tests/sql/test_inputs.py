"""Input, answers and steering: from a request to done, returned, already_finished or unknown, each exactly once."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.protocol import NOT_FOUND, STALE, TOO_MANY_COMMANDS, Protocol, Running, piece, refused


async def ask(protocol: Protocol, account: UUID, job: UUID, text: str = "more", kind: str = "input") -> UUID:
    payload = json.dumps({"text": text})
    found: UUID = await protocol.value("select corevo.request_command($1, $2, $3, $4)", account, job, kind, payload)
    return found


async def settle(
    protocol: Protocol, run: Running, command: UUID, state: str = "done", token: UUID | None = None
) -> Any:
    return await protocol.row(
        "select command_id, state from corevo.settle_commands($1, $2, $3, $4)",
        run.execution,
        token or run.token,
        [command],
        state,
    )


async def test_a_taken_input_is_done_and_a_message_between_question_and_answer(
    protocol: Protocol, account: UUID, worker: UUID
) -> None:
    admitted = await protocol.admit(account, "first")
    run = await protocol.running(worker)
    command = await ask(protocol, account, run.job, "second")
    assert await protocol.command(command) == "requested"
    (accepted,) = await protocol.accept(run)
    assert (accepted["kind"], json.loads(accepted["payload"])) == ("input", {"text": "second"})
    assert (await settle(protocol, run, command))["state"] == "done"
    assert (await settle(protocol, run, command))["state"] == "done", "asked again it answers the same"
    await protocol.finish(piece(run))
    rows = await protocol.all(
        "select role, text from corevo.messages where thread_id = $1 order by turn, part", admitted["thread_id"]
    )
    assert [(r["role"], r["text"]) for r in rows] == [("user", "first"), ("user", "second"), ("assistant", "")]


@pytest.mark.parametrize("accepted", [False, True], ids=["never accepted", "accepted, not taken"])
async def test_an_input_that_no_run_took_is_returned_when_its_owner_ends(
    protocol: Protocol, account: UUID, worker: UUID, accepted: bool
) -> None:
    await protocol.admit(account)
    run = await protocol.running(worker)
    command = await ask(protocol, account, run.job)
    if accepted:
        await protocol.accept(run)
    await protocol.finish(piece(run))
    assert await protocol.command(command) == "returned"


async def test_of_a_lost_run_accepted_input_is_unknown_and_other_input_returned(
    protocol: Protocol, account: UUID, worker: UUID
) -> None:
    await protocol.admit(account)
    run = await protocol.running(worker)
    taken_perhaps = await ask(protocol, account, run.job)
    await protocol.accept(run)
    never_seen = await ask(protocol, account, run.job)
    await protocol.fence(worker)
    assert (await protocol.sweep(run.job))["result"] == "lost"
    assert await protocol.command(taken_perhaps) == "unknown"
    assert await protocol.command(never_seen) == "returned"


async def test_input_to_an_ended_job_is_already_finished(protocol: Protocol, account: UUID, worker: UUID) -> None:
    await protocol.admit(account)
    run = await protocol.running(worker)
    await protocol.finish(piece(run))
    assert await protocol.command(await ask(protocol, account, run.job)) == "already_finished"


async def test_input_to_a_queued_job_waits_for_its_run(protocol: Protocol, account: UUID, worker: UUID) -> None:
    admitted = await protocol.admit(account)
    command = await ask(protocol, account, admitted["job_id"])
    run = await protocol.running(worker)
    assert [a["command_id"] for a in await protocol.accept(run)] == [command]


async def test_an_answer_makes_no_message(protocol: Protocol, account: UUID, worker: UUID) -> None:
    await protocol.admit(account)
    run = await protocol.running(worker)
    command = await ask(protocol, account, run.job, "yes", kind="answer")
    await protocol.accept(run)
    await settle(protocol, run, command)
    assert await protocol.value("select count(*) from corevo.messages") == 1


async def test_a_run_may_return_what_it_cannot_take(protocol: Protocol, account: UUID, worker: UUID) -> None:
    await protocol.admit(account)
    run = await protocol.running(worker)
    command = await ask(protocol, account, run.job, kind="answer")
    await protocol.accept(run)
    assert (await settle(protocol, run, command, "returned"))["state"] == "returned"


async def test_a_stale_owner_settles_nothing(protocol: Protocol, account: UUID, worker: UUID) -> None:
    await protocol.admit(account)
    run = await protocol.running(worker)
    command = await ask(protocol, account, run.job)
    await protocol.accept(run)
    before = await protocol.contents()
    with refused(STALE):
        await settle(protocol, run, command, token=uuid4())
    assert await protocol.contents() == before
    await protocol.finish(piece(run))
    with refused(STALE):
        await settle(protocol, run, command)
    assert await protocol.command(command) == "returned"


async def test_somebody_elses_job_takes_no_input(protocol: Protocol, account: UUID, worker: UUID) -> None:
    admitted = await protocol.admit(account)
    with refused(NOT_FOUND):
        await ask(protocol, await protocol.account("stranger"), admitted["job_id"])


async def test_a_run_that_takes_nothing_gathers_at_most_a_hundred(
    protocol: Protocol, account: UUID, worker: UUID
) -> None:
    admitted = await protocol.admit(account)
    for _ in range(100):
        await ask(protocol, account, admitted["job_id"])
    with refused(TOO_MANY_COMMANDS):
        await ask(protocol, account, admitted["job_id"])
    assert (await protocol.cancel(account, admitted["job_id"]))["ended"] is True, "a cancel is never refused"


async def test_steer_gives_the_message_to_the_run_that_goes_on(protocol: Protocol, account: UUID, worker: UUID) -> None:
    first = await protocol.admit(account)
    run = await protocol.running(worker)
    steered = await protocol.admit(account, "left a bit", thread=first["thread_id"], on_busy="steer", key="k")
    assert (steered["outcome"], steered["job_id"]) == ("steered", run.job)
    assert json.loads((await protocol.accept(run))[0]["payload"]) == {"text": "left a bit"}
    again = await protocol.admit(account, "left a bit", thread=first["thread_id"], on_busy="steer", key="k")
    assert (again["outcome"], again["command_id"]) == ("steered", steered["command_id"])


async def test_steer_of_a_free_thread_is_an_ordinary_message(protocol: Protocol, account: UUID, worker: UUID) -> None:
    assert (await protocol.admit(account, on_busy="steer"))["outcome"] == "queued"


async def test_commands_are_handed_over_in_the_order_in_which_they_came(
    protocol: Protocol, account: UUID, worker: UUID
) -> None:
    await protocol.admit(account)
    run = await protocol.running(worker)
    asked = [await ask(protocol, account, run.job, str(n)) for n in range(40)]
    assert [a["command_id"] for a in await protocol.accept(run)] == asked
    assert [a["command_id"] for a in await protocol.accept(run)] == asked, "accepted ones come in order too"
