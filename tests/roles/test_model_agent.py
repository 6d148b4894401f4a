"""A real worker with the model agent, and a server that speaks the OpenAI wire format."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from corevo.contracts import JOB_CHANNEL, JobView
from corevo.store import commands, events, notify
from tests.client import Client
from tests.openai_server import OpenAIServer, calls, drips, openai_server, refuses, says
from tests.processes import role

KEY = "sk-test-0123456789abcdef"

WITH_TOOLS = """
from corevo.openai import build_agent, tool


@tool
async def add(a: int, b: int) -> int:
    "Adds two numbers."
    return a + b


calculator = build_agent("calculator", tools=[add])
"""


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    async with openai_server() as serving:
        yield serving


def settings(server: OpenAIServer, **more: str) -> dict[str, str]:
    given = {"BASE_URL": server.url, "API_KEY": KEY, "MODEL": "small", "PRICE_INPUT": "1", "PRICE_OUTPUT": "2"}
    return {f"COREVO_OPENAI_{name}": value for name, value in (given | more).items()}


async def stored(client: Client, job: JobView, type: str) -> list[Any]:
    found = await events.read(client.db, job.id, epoch=0, seq=0, limit=1000)
    return [json.loads(event.data) for event in found if event.type == type]


async def test_a_model_answers_in_a_worker_and_its_usage_is_stored(
    client: Client, database: str, server: OpenAIServer
) -> None:
    server.will(says("Good ", "day"))
    async with role(database, "worker", "corevo.agents.openai", settings=settings(server)):
        first = await client.run("assistant", "hello")
        assert await client.answer(first) == ("Good day", "completed")
        (usage,) = await stored(client, first, "usage")
        assert usage == {
            "model": "small",
            "input_tokens": 10,
            "output_tokens": 5,
            "cost_usd": 0.00002,
            "rounds": 1,
            "finish_reason": "stop",
        }
        await client.run("assistant", "and now", thread=first.thread_id)
    assert [m["content"] for m in server.bodies[1]["messages"][1:]] == ["hello", "Good day", "and now"]


async def test_a_cancelled_job_closes_the_stream_at_the_server(
    client: Client, database: str, server: OpenAIServer
) -> None:
    server.will(drips)
    async with role(database, "worker", "corevo.agents.openai", settings=settings(server)):
        admitted = await client.admit("assistant", "talk")
        await client.said(admitted.job_id, 3)
        (exchange,) = server.exchanges
        assert not exchange.gone.is_set()
        asked_at = time.monotonic()
        await commands.request_cancel(client.db, client.account, admitted.job_id)
        await notify.send(client.db, [(JOB_CHANNEL, str(admitted.job_id))])
        await asyncio.wait_for(exchange.gone.wait(), 5)
        job = await client.ended(admitted.job_id)
    assert job.state == "cancelled"
    assert exchange.connection.gone_at is not None and exchange.connection.gone_at - asked_at < 2
    text, status = await client.answer(job)
    assert text.startswith("drip drip ") and status == "cancelled"
    (usage,) = await stored(client, job, "usage")
    assert usage["estimated"] is True and usage["output_tokens"] > 0


async def test_a_failure_is_stored_with_its_code_and_without_the_key(
    client: Client, database: str, server: OpenAIServer
) -> None:
    server.will(refuses(403, f"{KEY} may not use it"))
    async with role(database, "worker", "corevo.agents.openai", settings=settings(server)) as worker:
        job = await client.run("assistant", "hello")
    assert (job.state, job.error_code) == ("failed", "model_key_refused")
    assert job.error_message is not None and job.error_message.endswith("this key use the model: … may not use it")
    assert KEY not in worker.output and "model_key_refused" in worker.output


async def test_a_file_with_tools_is_an_app(client: Client, database: str, server: OpenAIServer, tmp_path: Path) -> None:
    app = tmp_path / "calculator.py"
    app.write_text(WITH_TOOLS)
    server.will(calls(("add", '{"a": 2, "b": 3}')), says("5"))
    async with role(database, "worker", str(app), settings=settings(server)):
        job = await client.run("calculator", "2 + 3?")
        assert await client.answer(job) == ("5", "completed")
        types = [t for t in await client.types(job) if t != "text.delta"]
    assert types == ["run.started", "tool.started", "tool.finished", "usage", "text.done", "run.completed"]
    assert await stored(client, job, "tool.finished") == [
        {"name": "add", "call_id": "id-add-0", "ok": True, "result": "5"}
    ]
