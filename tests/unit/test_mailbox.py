"""Inputs of a run: in order, each exactly once, whoever takes them and whoever is cancelled."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from corevo.contracts import AcceptedCommand, CommandId, ExecutionId
from corevo.runtime.mailbox import Mailbox


async def a_mailbox(count: int, settled: list[CommandId], gate: asyncio.Event | None = None) -> Mailbox:
    async def settle(command_id: CommandId, state: str) -> str:
        if gate is not None:
            await gate.wait()
        await asyncio.sleep(0)
        settled.append(command_id)
        return state

    mailbox = Mailbox(settle)
    for number in range(count):
        payload = {"text": str(number)}
        await mailbox.deliver(AcceptedCommand(CommandId(uuid4()), ExecutionId(uuid4()), "input", payload))
    return mailbox


async def test_two_consumers_get_each_input_once_and_every_one_is_settled() -> None:
    settled: list[CommandId] = []
    mailbox = await a_mailbox(40, settled)

    async def consume() -> list[str]:
        return [(await mailbox.next_input())[1] for _ in range(20)]

    first, second = await asyncio.gather(consume(), consume())
    assert sorted(map(int, first + second)) == list(range(40))
    assert len(set(settled)) == 40


async def test_a_consumer_cancelled_while_it_settles_loses_nothing() -> None:
    settled: list[CommandId] = []
    gate = asyncio.Event()
    mailbox = await a_mailbox(2, settled, gate)
    taking = asyncio.create_task(mailbox.next_input())
    await asyncio.sleep(0)
    taking.cancel()
    await asyncio.wait([taking])
    gate.set()
    assert [(await mailbox.next_input())[1] for _ in range(2)] == ["0", "1"]


async def test_what_was_put_back_is_given_to_the_next_consumer() -> None:
    mailbox = await a_mailbox(2, [])
    command_id, text = await mailbox.next_input()
    mailbox.put_back(command_id, text)
    assert (await mailbox.next_input())[1] == "0"
