"""Double submits, deploys and retries, as clients of several gateways see them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import Counter
from uuid import uuid4

import asyncpg
import httpx

from tests.invariants import violations
from tests.processes import Process, role
from tests.sockets import Socket, socket

APP = "tests/agents.py"
TERMINAL = ("run.completed", "run.failed", "run.cancelled", "run.interrupted", "run.timed_out", "run.lost")


async def submit(http: httpx.AsyncClient, thread: str, text: str) -> dict[str, object]:
    answer = await http.post("/api/jobs", json={"text": text, "agent": "sleeps", "thread_id": thread})
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


async def double_submits(first: Process, second: Process, rounds: int) -> Counter[str]:
    """Two gateways are given a message for one thread at the same moment; who came first, and what the other heard."""
    seen: Counter[str] = Counter()
    async with httpx.AsyncClient(base_url=first.url) as a, httpx.AsyncClient(base_url=second.url) as b:
        for number in range(rounds):
            thread = (await a.post("/api/threads", json={})).json()["id"]
            same = number % 2 == 0
            answers = await asyncio.gather(submit(a, thread, "x"), submit(b, thread, "x" if same else "y"))
            outcomes = [answer["outcome"] for answer in answers]
            ids = {answer["job"]["id"] for answer in answers}  # type: ignore[index]
            winner = "first" if outcomes[0] == "queued" else "second"
            seen[winner] += 1
            if same:
                assert sorted(map(str, outcomes)) == ["already_running", "queued"]
                assert len(ids) == 1, "the same text made two jobs"
            else:
                assert sorted(map(str, outcomes)) == ["queued", "replaced"]
                assert len(ids) == 2
            jobs = (await a.get("/api/jobs", params={"thread_id": thread})).json()["items"]
            newest = jobs[0]
            if not same:
                assert newest["created_at"] >= jobs[1]["created_at"]
                assert jobs[1]["cancel_requested"] or jobs[1]["state"] == "cancelled"
            await a.post(f"/api/jobs/{newest['id']}/cancel")
            seen["same" if same else "other"] += 1
    return seen


async def test_two_submits_at_once_make_one_job_or_one_after_the_other(database: str) -> None:
    async with (
        role(database, "web", "--port", "0") as first,
        role(database, "web", "--port", "0") as second,
        role(database, "worker", APP, "--places", "20"),
    ):
        seen = await double_submits(first, second, rounds=200)
    assert seen["first"] > 0 and seen["second"] > 0, f"one gateway won every round: {seen}"
    assert (seen["same"], seen["other"]) == (100, 100)
    assert await violations(database) == []


async def test_a_deploy_ends_twenty_runs_truly_and_each_viewer_sees_one_end(database: str) -> None:
    grace = 8.0
    async with (
        role(database, "web", "--port", "0") as gateway,
        role(database, "web", "--port", "0") as other,
        role(database, "worker", APP, "--places", "20", settings={"COREVO_STOP_GRACE_SECONDS": str(grace)}) as old,
        socket(gateway.url) as sender,
        socket(other.url) as viewer,
    ):
        jobs = []
        for number in range(20):
            ack = await sender.ask("send", text="100", agent="paced" if number % 2 else "sleeps")
            jobs.append(ack["job"])
            await viewer.ask("attach", job_id=ack["job"]["id"])
        for job in jobs:
            await _said(viewer, job["id"])
        began = time.monotonic()
        old.signal(signal.SIGTERM)
        old.signal(signal.SIGTERM)
        async with role(database, "worker", APP, "--places", "20"):
            again = await sender.ask("send", text="hello", agent="echo")
            assert (await sender.until_ended(again["job"]["id"], 5))["job"]["state"] == "completed"
            assert await old.wait(grace + 2) == 0
            assert time.monotonic() - began < grace + 1
            for number, job in enumerate(jobs):
                end = await viewer.until_ended(job["id"])
                assert end["job"]["state"] == ("completed" if number % 2 else "interrupted")
                ends = [e for e in viewer.events(job["id"]) if e["type"] in TERMINAL]
                assert len(ends) == 1 and viewer.events(job["id"])[-1] is ends[0]
            repeated = await sender.ask("send", text="again", agent="echo", thread_id=jobs[0]["thread_id"])
            assert (await sender.until_ended(repeated["job"]["id"], 5))["job"]["state"] == "completed"
    assert await violations(database) == []


async def test_a_retry_is_seen_in_order_by_a_client_that_reconnects_between_its_executions(database: str) -> None:
    async with role(database, "web", "--port", "0") as gateway, role(database, "worker", APP):
        async with socket(gateway.url) as client:
            ack = await client.ask("send", text="x", agent="flaky")
            job_id = ack["job"]["id"]
            failed = await client.until(lambda f: f.get("type") == "run.failed")
            assert failed["data"]["will_retry"] is True
        cursor = f"{failed['execution_id']}:{failed['seq']}:end"
        async with socket(gateway.url) as client, socket(gateway.url) as fresh:
            await client.ask("attach", job_id=job_id, after=cursor)
            await fresh.ask("attach", job_id=job_id)
            for one in (client, fresh):
                assert (await one.until_ended(job_id))["job"]["state"] == "completed"
                epochs = [e["epoch"] for e in one.events(job_id)]
                assert epochs == sorted(epochs)
                assert one.text(job_id) == "attempt 2"
            assert {e["epoch"] for e in client.events(job_id)} == {2}
            assert {e["epoch"] for e in fresh.events(job_id)} == {1, 2}
    assert await violations(database) == []


async def test_gateways_that_stop_send_their_clients_on_with_a_delay_of_their_own(database: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(role(database, "web", "--port", "0"))
        await stack.enter_async_context(role(database, "worker", APP))
        clients = [await stack.enter_async_context(socket(gateway.url)) for _ in range(20)]
        for client in clients:
            await client.ask("send", text="x", agent="sleeps")
        began = time.monotonic()
        gateway.signal(signal.SIGTERM)
        byes = [await client.until(lambda f: f["ev"] == "bye") for client in clients]
        assert await gateway.wait(5) == 0 and time.monotonic() - began < 5
        assert all(bye["resume"] for bye in byes)
        assert len({bye["retry_in_ms"] for bye in byes}) > 5, "all would come back at once"
        for client in clients:
            await client.connection.wait_closed()
            assert client.connection.close_code == 1012
    connection = await asyncpg.connect(database)
    try:
        assert await connection.fetchval("select count(*) from corevo.jobs where state = 'cancelled'") == 0
    finally:
        await connection.close()


async def test_one_key_makes_one_job_however_often_and_wherever_it_is_sent(database: str) -> None:
    async with (
        role(database, "web", "--port", "0") as first,
        role(database, "web", "--port", "0") as second,
        role(database, "worker", APP),
        httpx.AsyncClient() as http,
    ):
        for _ in range(20):
            key = {"Idempotency-Key": str(uuid4())}
            body = {"text": "x", "agent": "echo"}
            answers = await asyncio.gather(
                *(http.post(f"{g.url}/api/jobs", json=body, headers=key) for g in (first, second) * 4)
            )
            assert {answer.status_code for answer in answers} == {202}
            assert len({answer.json()["job"]["id"] for answer in answers}) == 1
            other = await http.post(f"{first.url}/api/jobs", json={"text": "y", "agent": "echo"}, headers=key)
            assert (other.status_code, other.json()["code"]) == (409, "idempotency_mismatch")


async def _said(client: Socket, job_id: str) -> None:
    if not any(f.get("job_id") == job_id and f.get("type") == "text.delta" for f in client.frames):
        await client.until(lambda f: f.get("job_id") == job_id and f.get("type") == "text.delta")
