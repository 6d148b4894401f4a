"""Input, answers and steering through real gateways and workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.invariants import violations
from tests.processes import Process, eventually, role
from tests.sockets import Socket, socket


@pytest.fixture(params=["on", "off"], ids=["notify on", "notify off"])
async def gateways(database: str, request: pytest.FixtureRequest) -> AsyncIterator[tuple[Process, Process]]:
    """Two gateways and a worker."""
    settings = {"COREVO_NOTIFY": request.param}
    async with (
        role(database, "web", "--port", "0", settings=settings) as first,
        role(database, "web", "--port", "0", settings=settings) as second,
        role(database, "worker", "tests/agents.py", settings=settings),
    ):
        yield first, second
    assert await violations(database) == []


async def state_of(gateway: Process, job_id: str, command: dict[str, Any]) -> str:
    async with httpx.AsyncClient() as http:
        answer = await http.get(f"{gateway.url}/api/jobs/{job_id}/commands/{command['id']}")
        return str(answer.json()["state"])


async def reaches(gateway: Process, job_id: str, command: dict[str, Any], state: str) -> None:
    async def check() -> bool:
        return await state_of(gateway, job_id, command) == state

    await eventually(check, what=f"a command that is {state}")


async def started(client: Socket, text: str, agent: str) -> str:
    ack = await client.ask("send", text=text, agent=agent)
    job_id: str = ack["job"]["id"]
    await client.until(lambda f: f.get("type") in ("text.delta", "input.requested") and f["job_id"] == job_id)
    return job_id


async def test_inputs_reach_the_run_in_order_from_any_gateway_each_once(gateways: tuple[Process, Process]) -> None:
    async with socket(gateways[0].url) as client, socket(gateways[1].url) as other:
        job_id = await started(client, "x", "listens")
        commands = [(await sender.ask("input", job_id=job_id, text=text))["command"]
                    for sender, text in ((client, "one"), (other, "two"), (client, "stop"))]  # fmt: skip
        assert {command["state"] for command in commands} <= {"requested", "accepted", "done"}
        await client.until_ended(job_id)
        assert client.text(job_id) == "listening [one][two][stop]"
        assert [await state_of(gateways[1], job_id, c) for c in commands] == ["done"] * 3
        accepted = [e["data"]["text"] for e in client.events(job_id) if e["type"] == "input.accepted"]
        assert accepted == ["one", "two", "stop"]


async def test_what_the_run_did_not_take_is_returned(gateways: tuple[Process, Process]) -> None:
    async with socket(gateways[0].url) as client:
        job_id = await started(client, "x", "sleeps")
        command = (await client.ask("input", job_id=job_id, text="unheard"))["command"]
        await reaches(gateways[0], job_id, command, "accepted")
        await client.ask("cancel", job_id=job_id)
        await client.until_ended(job_id)
        assert await state_of(gateways[0], job_id, command) == "returned"
        late = (await client.ask("input", job_id=job_id, text="too late"))["command"]
        assert late["state"] == "already_finished"


async def test_a_question_takes_one_of_its_choices(gateways: tuple[Process, Process]) -> None:
    async with socket(gateways[0].url) as client, httpx.AsyncClient(base_url=gateways[1].url) as http:
        job_id = await started(client, "30", "asks")
        (asked,) = [e for e in client.events(job_id) if e["type"] == "input.requested"]
        assert asked["data"]["choices"] == ["red", "blue"]
        question = asked["data"]["question_id"]
        for body, end in (
            ({"question_id": question, "answer": "green"}, "returned"),
            ({"question_id": "another", "answer": "red"}, "returned"),
            ({"question_id": question, "answer": "blue"}, "done"),
        ):
            answer = await http.post(f"/api/jobs/{job_id}/answer", json=body)
            assert answer.status_code == 202
            await reaches(gateways[1], job_id, answer.json()["command"], end)
        await client.until_ended(job_id)
        assert client.text(job_id) == "You said blue."


async def test_a_question_that_nobody_answers_times_out(gateways: tuple[Process, Process]) -> None:
    async with socket(gateways[0].url) as client:
        job_id = (await client.ask("send", text="0.3", agent="asks"))["job"]["id"]
        await client.until_ended(job_id)
        assert client.text(job_id) == "You said nothing."


async def test_steering_gives_the_sentence_to_the_run_that_goes_on(gateways: tuple[Process, Process]) -> None:
    async with socket(gateways[0].url) as client, socket(gateways[1].url) as other:
        job_id = await started(client, "x", "listens")
        thread = client.frames[-1] and (await client.ask("attach", job_id=job_id))["job"]["thread_id"]
        steered = await other.ask("send", text="stop", thread_id=thread, on_busy="steer")
        assert (steered["outcome"], steered["job"]["id"]) == ("steered", job_id)
        assert steered["command"]["kind"] == "input"
        await client.until_ended(job_id)
        async with httpx.AsyncClient() as http:
            page = (await http.get(f"{gateways[0].url}/api/threads/{thread}/messages")).json()
        assert [(m["role"], m["text"]) for m in page["items"]] == [
            ("user", "x"), ("user", "stop"), ("assistant", "listening [stop]"),
        ]  # fmt: skip


async def test_input_to_a_job_that_waits_is_there_when_it_starts(database: str) -> None:
    async with role(database, "web", "--port", "0") as gateway, socket(gateway.url) as client:
        async with role(database, "worker", "tests/agents.py"):
            pass  # its agents are known now
        ack = await client.ask("send", text="x", agent="listens")
        job_id = ack["job"]["id"]
        await client.ask("input", job_id=job_id, text="stop")
        slow = {"COREVO_HEARTBEAT_SECONDS": "5", "COREVO_HEARTBEAT_TTL_SECONDS": "20"}
        async with role(database, "worker", "tests/agents.py", settings=slow):
            async with asyncio.timeout(4):  # not by the beat
                await client.until_ended(job_id)
            assert client.text(job_id) == "listening [stop]"
