"""Two gateways and two workers as separate processes on one database."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import asyncpg
import httpx
import pytest

from tests.invariants import violations
from tests.processes import Process, eventually, role
from tests.sockets import Socket, socket

APP = "tests/agents.py"


@dataclass
class Fleet:
    gateways: list[Process]
    workers: list[Process]


async def start(stack: AsyncExitStack, database: str, settings: Mapping[str, str] | None = None) -> Fleet:
    started = await asyncio.gather(
        *(stack.enter_async_context(role(database, "web", "--port", "0", settings=settings)) for _ in range(2)),
        *(
            stack.enter_async_context(role(database, "worker", APP, "--name", f"w{n}", settings=settings))
            for n in range(2)
        ),
    )
    return Fleet(started[:2], started[2:])


@pytest.fixture
async def fleet(database: str) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        yield await start(stack, database)
    assert await violations(database) == []


async def history(gateway: Process, job_id: str) -> list[tuple[str, int, str, Any]]:
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        items: list[dict[str, Any]] = []
        after = ""
        while True:
            parameters = {"limit": "50", **({"after": after} if after else {})}
            page = (await http.get(f"/api/jobs/{job_id}/events", params=parameters)).json()
            items += page["items"]
            if page["next"] is None:
                return [(e["execution_id"], e["seq"], e["type"], e["data"]) for e in items]
            after = page["next"]


def held(client: Socket, job_id: str) -> list[tuple[str, int, str, Any]]:
    return [(e["execution_id"], e["seq"], e["type"], e["data"]) for e in client.events(job_id)]


async def test_a_message_sent_on_one_gateway_streams_to_a_client_of_the_other(fleet: Fleet) -> None:
    a, b = fleet.gateways
    async with socket(a.url) as sender, socket(b.url) as viewer, socket(b.url) as late:
        ack = await sender.ask("send", text="40", agent="paced")
        assert ack["ev"] == "ack" and ack["outcome"] == "queued", ack
        job_id = ack["job"]["id"]
        await viewer.ask("attach", job_id=job_id)
        third = await viewer.until(lambda f: f.get("type") == "text.delta" and f["seq"] >= 4)
        await late.ask("attach", job_id=job_id, after=f"{third['execution_id']}:{third['seq']}")
        for client in (sender, viewer, late):
            assert (await client.until_ended(job_id))["job"]["state"] == "completed"
        text = "".join(f"{n} " for n in range(40))
        assert sender.text(job_id) == viewer.text(job_id) == text
        stored = await history(b, job_id)
        assert held(sender, job_id) == held(viewer, job_id) == stored
        assert held(late, job_id) == [e for e in stored if e[1] > third["seq"]]
        deltas = [f for f in sender.frames if f.get("type") == "text.delta"]
        assert len(deltas) >= 30, "the tokens did not arrive one after another"


async def test_both_workers_take_jobs(fleet: Fleet, database: str) -> None:
    async with socket(fleet.gateways[0].url) as client:
        acks = [await client.ask("send", text="15", agent="paced") for _ in range(10)]
        for ack in acks:
            await client.until_ended(ack["job"]["id"]) if not _has_ended(client, ack["job"]["id"]) else None
    connection = await asyncpg.connect(database)
    try:
        assert await connection.fetchval("select count(distinct worker_id) from corevo.executions") == 2
    finally:
        await connection.close()


async def test_push_is_push_when_polling_is_slow(database: str) -> None:
    async with AsyncExitStack() as stack:
        slow = {
            "COREVO_POLL_SECONDS": "30",
            "COREVO_HEARTBEAT_SECONDS": "1",
            "COREVO_HEARTBEAT_TTL_SECONDS": "5",
        }
        fleet = await start(stack, database, slow)
        for process in fleet.gateways:
            await eventually(functools.partial(_listens, process), what="a healthy channel")
        await asyncio.sleep(1.5)  # the workers have no port to ask; their first ping is out by now
        async with socket(fleet.gateways[0].url) as client:
            loop = asyncio.get_running_loop()
            began = loop.time()
            ack = await client.ask("send", text="30", agent="paced")
            times = []
            while True:
                frame = await client.receive()
                if frame.get("type") == "text.delta":
                    times.append(loop.time() - began)
                if frame["ev"] == "job" and frame["job"]["finished_at"]:
                    break
            assert times[0] < 1.0, "the first token waited for a poll"
            gaps = [b - a for a, b in itertools.pairwise(times)]
            assert len(times) >= 20 and max(gaps) < 0.5
            assert client.text(ack["job"]["id"]) == "".join(f"{n} " for n in range(30))


@pytest.mark.parametrize("settings", [{"COREVO_NOTIFY": "off"}, {"COREVO_NOTIFY_PAYLOAD": "off"}], ids=str)
async def test_everything_works_without_notifications_and_without_payloads(
    database: str, settings: dict[str, str]
) -> None:
    async with AsyncExitStack() as stack:
        fleet = await start(stack, database, settings)
        async with socket(fleet.gateways[0].url) as sender, socket(fleet.gateways[1].url) as viewer:
            ack = await sender.ask("send", text="30", agent="paced")
            job_id = ack["job"]["id"]
            await viewer.ask("attach", job_id=job_id)
            for client in (sender, viewer):
                await client.until_ended(job_id)
            assert held(sender, job_id) == held(viewer, job_id) == await history(fleet.gateways[0], job_id)
            slow = await sender.ask("send", text="x", agent="sleeps")
            await sender.until(lambda f: f.get("type") == "text.delta" and f["job_id"] == slow["job"]["id"])
            cancel = await viewer.ask("cancel", job_id=slow["job"]["id"])
            assert cancel["command"]["state"] == "requested"
            assert (await sender.until_ended(slow["job"]["id"]))["job"]["state"] == "cancelled"
    assert await violations(database) == []


async def test_idle_processes_stay_within_their_statement_budget(database: str) -> None:
    """Per process and second, an agent in one lane, sweeps included: 3 statements while polling, 1 while listening."""
    for notify, budget in (("off", 3.0), ("on", 1.0)):
        async with AsyncExitStack() as stack:
            calm = {
                "COREVO_NOTIFY": notify,
                "COREVO_HEARTBEAT_SECONDS": "5",
                "COREVO_HEARTBEAT_TTL_SECONDS": "20",
                "COREVO_JANITOR_SECONDS": "5",
            }
            gateway = await stack.enter_async_context(role(database, "web", "--port", "0", settings=calm))
            worker = await stack.enter_async_context(
                role(database, "worker", "corevo.agents.demo", "--port", "0", settings=calm)
            )
            if notify == "on":
                for process in (gateway, worker):
                    await eventually(functools.partial(_listens, process), what="a healthy channel", seconds=30)
            await asyncio.sleep(1)
            before = [await _statements(p) for p in (gateway, worker)]
            await asyncio.sleep(6)
            after = [await _statements(p) for p in (gateway, worker)]
            rates = [(b - a) / 6 for a, b in zip(before, after, strict=True)]
            assert max(rates) <= budget, (notify, rates)


def _has_ended(client: Socket, job_id: str) -> bool:
    return any(f["ev"] == "job" and f["job"]["id"] == job_id and f["job"]["finished_at"] for f in client.frames)


async def _listens(process: Process) -> bool:
    async with httpx.AsyncClient() as http:
        return bool((await http.get(process.url + "/readyz")).json().get("listen") == "healthy")


async def _statements(process: Process) -> float:
    async with httpx.AsyncClient() as http:
        text = (await http.get(process.url + "/metrics")).text
    (line,) = [line for line in text.splitlines() if line.startswith("corevo_statements ")]
    return float(line.split()[1])
