"""Streams as clients see them: over SSE and WebSocket, live and replayed, through loss and ending."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from uuid import uuid4

import httpx
import pytest

from corevo.contracts import Event
from corevo.control import socket as socket_module
from corevo.store import janitor, notify
from corevo.store.connections import Connections
from tests.gateways import gateway_on
from tests.hand import Hand, Run, lose
from tests.processes import eventually, role
from tests.sockets import Socket, socket
from tests.sse import stream


@pytest.fixture
async def db(database: str) -> AsyncIterator[Connections]:
    db = Connections(database, limit=2, name="test hand")
    yield db
    await db.close()


@pytest.fixture
async def hand(db: Connections) -> Hand:
    hand = Hand(db)
    await hand.register("demo")
    return hand


@pytest.fixture
async def web(database: str, hand: Hand) -> AsyncIterator[str]:
    async with gateway_on(database) as url:
        yield url


@pytest.fixture
async def http(web: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=web, timeout=20) as client:
        yield client


async def submitted(http: httpx.AsyncClient) -> str:
    answer = await http.post("/api/jobs", json={"text": "hello"})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["job"]["id"])


async def running(http: httpx.AsyncClient, hand: Hand) -> tuple[str, Run]:
    job_id = await submitted(http)
    return job_id, await hand.start()


class TestServerSentEvents:
    async def test_replay_then_live_then_the_end(self, http: httpx.AsyncClient, hand: Hand) -> None:
        job_id, run = await running(http, hand)
        await run.say("a", "b")
        async with stream(http, job_id) as sse:
            headers = sse.response.headers
            assert headers["content-type"].startswith("text/event-stream")
            assert headers["x-accel-buffering"] == "no"
            assert "no-store" in headers["cache-control"]
            first = await sse.next()
            assert first is not None
            assert (first.event, first.data["job"]["state"]) == ("job", "running")
            await sse.until(3)
            await run.say("c")
            await sse.until(4)
            await run.finish()
            seen = await sse.rest()
        assert [sent.data["type"] for sent in sse.events] == ["run.started", *["text.delta"] * 3, "run.completed"]
        assert [sent.id for sent in sse.events] == [
            *(f"{run.execution_id}:{n}" for n in range(1, 5)),
            f"{run.execution_id}:5:end",
        ]
        assert set(sse.events[0].data) == {"ev", "job_id", "execution_id", "epoch", "seq", "type", "data"}
        assert seen[-1].event == "job" and seen[-1].data["job"]["state"] == "completed", "the job frame comes last"

    async def test_last_event_id_goes_on_from_there_and_204_ends_it(self, http: httpx.AsyncClient, hand: Hand) -> None:
        job_id, run = await running(http, hand)
        await run.say("a", "b", "c")
        async with stream(http, job_id, last=f"{run.execution_id}:2") as sse:
            assert [sent.data["seq"] for sent in await sse.until(2)] == [3, 4]
        await run.finish()
        async with stream(http, job_id, after=f"{run.execution_id}:4") as sse:
            await sse.rest()
            assert [sent.data["seq"] for sent in sse.events] == [5]
            end = sse.events[-1].id
        async with stream(http, job_id, last=end) as sse:
            assert sse.response.status_code == 204

    async def test_a_job_that_never_ran_ends_with_its_job_frame(self, http: httpx.AsyncClient, hand: Hand) -> None:
        job_id = await submitted(http)
        async with stream(http, job_id) as sse:
            first = await sse.next()
            assert first is not None and first.data["job"]["state"] == "queued"
            await http.post(f"/api/jobs/{job_id}/cancel")
            seen = await sse.rest()
        assert (seen[-1].event, seen[-1].id) == ("job", f"{job_id}:end")
        assert seen[-1].data["job"]["state"] == "cancelled"
        async with stream(http, job_id, last=f"{job_id}:end") as sse:
            assert sse.response.status_code == 204

    async def test_a_cursor_of_another_job_is_no_cursor(self, http: httpx.AsyncClient, hand: Hand) -> None:
        job_id, run = await running(http, hand)
        await run.finish()
        other, other_run = await running(http, hand)
        for cursor in (f"{run.execution_id}:1", f"{uuid4()}:1", f"{job_id}:end", f"{other}:end", "x", f"{other}:1"):
            async with stream(http, other, last=cursor) as sse:
                assert sse.response.status_code == 400
                assert b"bad_cursor" in await sse.response.aread()
        await other_run.finish()

    async def test_an_end_that_is_not_stored_is_not_believed(self, http: httpx.AsyncClient, hand: Hand) -> None:
        job_id, run = await running(http, hand)
        await run.say("a")
        await run.finish()
        for cursor in (f"{run.execution_id}:2:end", f"{run.execution_id}:9:end", f"{run.execution_id}:3"):
            async with stream(http, job_id, last=cursor) as sse:
                seen = await sse.rest()
                assert seen[0].event == "reset", cursor
                assert [sent.data["seq"] for sent in sse.events] == [1, 2, 3]

    async def test_silence_is_filled_with_comments(
        self, http: httpx.AsyncClient, hand: Hand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("corevo.control.events.HEARTBEAT_SECONDS", 0.05)
        job_id, run = await running(http, hand)
        async with stream(http, job_id) as sse:
            await sse.until(1)
            waiting = asyncio.create_task(sse.next())

            async def beaten() -> bool:
                return sse.comments >= 3

            await eventually(beaten, what="three comments")
            await run.say("a")
            assert (await waiting) is not None


class TestSocket:
    async def test_send_attaches_and_streams(self, web: str, hand: Hand) -> None:
        async with socket(web) as ws:
            assert ws.connection.subprotocol == "corevo.v1"
            ack = await ws.ask("send", text="hello")
            assert (ack["ev"], ack["outcome"], ack["job"]["state"]) == ("ack", "queued", "queued")
            run = await hand.start()
            await run.say("good ")
            await run.say("day")
            await run.finish()
            job_id = ack["job"]["id"]
            ended = await ws.until_ended(job_id)
            assert ended["job"]["state"] == "completed"
            assert ws.text(job_id) == "good day"
            assert ws.events(job_id)[-1]["type"] == "run.completed"

    async def test_viewers_with_and_without_cursor_have_the_same(self, web: str, hand: Hand) -> None:
        async with socket(web) as first, socket(web) as second, socket(web) as third:
            job_id = (await first.ask("send", text="hello"))["job"]["id"]
            run = await hand.start()
            await run.say(*"abcdef")
            await first.until(lambda f: f.get("seq") == 7)
            ack = await second.ask("attach", job_id=job_id)
            assert ack["job"]["state"] == "running"
            await third.ask("attach", job_id=job_id, after=f"{run.execution_id}:4")
            await run.say(*"ghi")
            await run.finish()
            for ws in (first, second, third):
                await ws.until_ended(job_id)
            assert first.text(job_id) == second.text(job_id) == "abcdefghi"
            assert [e["seq"] for e in third.events(job_id)] == list(range(5, 12))

    async def test_attach_at_the_end_gives_the_job_frame_alone(self, web: str, hand: Hand) -> None:
        async with socket(web) as ws:
            job_id = (await ws.ask("send", text="hello"))["job"]["id"]
            run = await hand.start()
            await run.finish()
            await ws.until_ended(job_id)
            ws.frames.clear()
            await ws.ask("attach", job_id=job_id, after=f"{run.execution_id}:2:end")
            await ws.until_ended(job_id)
            await ws.ask("detach", job_id=job_id)
            assert [f["ev"] for f in ws.frames] == ["ack", "job", "ack"]

    async def test_cancel_over_the_socket(self, web: str, hand: Hand) -> None:
        async with socket(web) as ws:
            job_id = (await ws.ask("send", text="hello"))["job"]["id"]
            answer = await ws.ask("cancel", job_id=job_id)
            assert answer["command"]["state"] == "done"
            assert (await ws.until_ended(job_id))["job"]["state"] == "cancelled"

    async def test_losing_a_connection_cancels_nothing(self, web: str, hand: Hand) -> None:
        async with socket(web) as ws:
            job_id = (await ws.ask("send", text="hello"))["job"]["id"]
            run = await hand.start()
            await ws.until(lambda f: f.get("seq") == 1)
            ws.connection.transport.abort()
        await run.say("still here")
        await run.finish()
        async with socket(web) as ws:
            await ws.ask("attach", job_id=job_id)
            await ws.until_ended(job_id)
            assert ws.text(job_id) == "still here"

    async def test_detach_ends_the_frames(self, web: str, hand: Hand) -> None:
        async with socket(web) as ws:
            job_id = (await ws.ask("send", text="hello"))["job"]["id"]
            run = await hand.start()
            await ws.until(lambda f: f.get("seq") == 1)
            await ws.ask("detach", job_id=job_id)
            ws.frames.clear()
            await run.say("unheard")
            await ws.ask("attach", job_id=job_id, after=f"{run.execution_id}:2")
            await run.say("heard")
            await ws.until(lambda f: f.get("seq") == 3)
            assert [e["seq"] for e in ws.events(job_id)] == [3]

    async def test_idempotent_sends_join_one_job(self, web: str, hand: Hand) -> None:
        async with socket(web) as one, socket(web) as two:
            first = await one.ask("send", text="hello", idempotency_key="k")
            again = await two.ask("send", text="hello", idempotency_key="k")
            other = await two.ask("send", text="other", idempotency_key="k")
            assert first["job"]["id"] == again["job"]["id"]
            assert other["code"] == "idempotency_mismatch"

    async def test_pings_both_ways(self, web: str, hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(socket_module, "PING_SECONDS", 0.05)
        async with socket(web) as ws:
            await ws.send(op="ping")
            assert await ws.receive() == {"ev": "pong"}
            assert "ping" in await asyncio.wait_for(ws.connection.recv(), 5)


class TestThroughLoss:
    async def test_without_messages_everything_arrives_by_polling(self, database: str, hand: Hand) -> None:
        async with (
            gateway_on(database, listens=False, notify="off") as url,
            socket(url) as ws,
            httpx.AsyncClient(base_url=url) as http,
        ):
            job_id = (await ws.ask("send", text="hello"))["job"]["id"]
            run = await hand.start(heard=False)
            await run.say("one ")
            async with stream(http, job_id) as sse:
                await sse.until(2)
                await ws.until(lambda f: f.get("seq") == 2)
                await run.say("two ")
                await ws.until(lambda f: f.get("seq") == 3)
                await run.finish()
                await ws.until_ended(job_id)
                await sse.rest()
            assert ws.text(job_id) == "one two "
            assert [sent.data["seq"] for sent in sse.events] == [1, 2, 3, 4]

    async def test_a_hole_is_filled_from_history(self, web: str, http: httpx.AsyncClient, hand: Hand) -> None:
        async with socket(web) as ws:
            job_id = (await ws.ask("send", text="hello"))["job"]["id"]
            run = await hand.start()
            await run.say("a")
            run.heard = False
            await run.say("b", "c")
            run.heard = True
            await run.say("d")
            await ws.until(lambda f: f.get("seq") == 5)
            run.heard = False
            await run.say("e")
            run.heard = True
            await run.finish()
            await ws.until_ended(job_id)
            assert ws.text(job_id) == "abcde"

    async def test_positions_alone_are_enough(self, web: str, hand: Hand) -> None:
        hand.payload = False
        async with socket(web) as ws:
            job_id = (await ws.ask("send", text="hello"))["job"]["id"]
            run = await hand.start()
            for letter in "abc":
                await run.say(letter)
            await run.finish()
            await ws.until_ended(job_id)
            assert ws.text(job_id) == "abc"

    async def test_doubled_late_and_foreign_messages_change_nothing(self, web: str, hand: Hand) -> None:
        async with socket(web) as ws:
            job_id = (await ws.ask("send", text="hello"))["job"]["id"]
            run = await hand.start()
            await run.say("a")
            await run.publish([Event(2, "text.delta", '{"text":"a","at":0}')])
            await notify.send(
                hand.db, [("corevo_event", "rubbish"), ("corevo_event", f"{job_id} x y z"), ("corevo_job", "x")]
            )
            await run.say("b")
            await run.publish([Event(1, "run.started", "{}")])
            await run.finish()
            await ws.until_ended(job_id)
            assert ws.text(job_id) == "ab"
            assert [e["seq"] for e in ws.events(job_id)] == [1, 2, 3, 4]

    async def test_a_crash_that_took_what_was_seen_resets(self, web: str, hand: Hand, db: Connections) -> None:
        async with socket(web) as ws, socket(web) as late:
            job_id = (await ws.ask("send", text="hello"))["job"]["id"]
            run = await hand.start()
            await run.say("a", "b", "c", "d")
            await ws.until(lambda f: f.get("seq") == 5)
            await lose(db, run, above=3)
            await db.fetch("update corevo.workers set fenced_at = corevo.now()")
            swept = await janitor.sweep_job(db, run.job_id, late_seconds=20)
            assert (swept.result, swept.terminal_seq) == ("lost", 4)
            assert swept.terminal_data is not None
            await run.publish([Event(4, "run.lost", swept.terminal_data)])
            ended = await ws.until_ended(job_id)
            assert ended["job"]["state"] == "lost"
            assert [f for f in ws.frames if f["ev"] == "reset"] == [
                {"ev": "reset", "job_id": job_id, "execution_id": str(run.execution_id)}
            ]
            assert ws.text(job_id) == "ab"
            assert ws.events(job_id)[-1]["type"] == "run.lost"
            await late.ask("attach", job_id=job_id, after=f"{run.execution_id}:5")
            await late.until_ended(job_id)
            assert late.events(job_id) == ws.events(job_id)

    async def test_a_retry_goes_on_in_a_new_epoch(self, database: str, db: Connections) -> None:
        hand = Hand(db)
        await hand.register("demo", attempts=2)
        async with gateway_on(database) as url, socket(url) as ws:
            job_id = (await ws.ask("send", text="hello"))["job"]["id"]
            first = await hand.start()
            await first.say("x")
            await first.finish("failed", "agent_error")
            await ws.until(lambda f: f.get("type") == "run.failed")
            second = await hand.start()
            await second.say("y")
            await second.finish()
            await ws.until_ended(job_id)
            assert [(e["epoch"], e["seq"]) for e in ws.events(job_id)] == [
                (1, 1),
                (1, 2),
                (1, 3),
                (2, 1),
                (2, 2),
                (2, 3),
            ]
            async with socket(url) as other:
                await other.ask("attach", job_id=job_id, after=f"{first.execution_id}:3:end")
                await other.until_ended(job_id)
                assert [(e["epoch"], e["seq"]) for e in other.events(job_id)] == [(2, 1), (2, 2), (2, 3)]

    async def test_a_retry_that_is_cancelled_ends_with_the_job_frame(self, database: str, db: Connections) -> None:
        hand = Hand(db)
        await hand.register("demo", attempts=2)
        async with gateway_on(database) as url, httpx.AsyncClient(base_url=url) as http:
            job_id, run = await running(http, hand)
            await run.finish("failed", "agent_error")
            async with stream(http, job_id) as sse:
                await sse.until(2)
                await http.post(f"/api/jobs/{job_id}/cancel")
                seen = await sse.rest()
            assert (seen[-1].event, seen[-1].id) == ("job", f"{job_id}:end")
            assert sse.events[-1].data["type"] == "run.failed"

    async def test_a_listener_that_is_killed_comes_back(self, web: str, hand: Hand, db: Connections) -> None:
        async with socket(web) as ws:
            job_id = (await ws.ask("send", text="hello"))["job"]["id"]
            run = await hand.start()
            await ws.until(lambda f: f.get("seq") == 1)
            await db.fetch(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and application_name like 'corevo%'"
            )
            for n in range(10):
                await run.say(f"{n} ")
            await run.finish()
            await ws.until_ended(job_id)
            assert ws.text(job_id) == "".join(f"{n} " for n in range(10))


class TestSlowReaders:
    async def test_a_slow_reader_is_served_from_history(
        self, web: str, hand: Hand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It reads nothing while far more than the ring holds goes by; then it gets everything."""
        monkeypatch.setattr("corevo.control.merge.RING_LIMIT_EVENTS", 16)
        words = "x" * 4000
        async with socket(web) as quick, socket(web) as slow:
            job_id = (await quick.ask("send", text="hello"))["job"]["id"]
            run = await hand.start()
            await slow.ask("attach", job_id=job_id)
            slow.connection.transport.pause_reading()
            for _ in range(60):
                await run.say(*[words] * 20)
            await run.finish()
            await quick.until_ended(job_id)
            slow.connection.transport.resume_reading()
            await slow.until_ended(job_id)
            assert [e["seq"] for e in slow.events(job_id)] == list(range(1, 1203))
            assert slow.events(job_id) == quick.events(job_id)

    async def test_a_stalled_reader_is_told_to_resume(
        self, web: str, http: httpx.AsyncClient, hand: Hand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(socket_module, "STALL_SECONDS", 0.3)
        async with socket(web) as ws:
            job_id = (await ws.ask("send", text="hello"))["job"]["id"]
            run = await hand.start()
            await ws.until(lambda f: f.get("seq") == 1)
            ws.connection.transport.pause_reading()
            for _ in range(100):
                await run.say(*["y" * 5000] * 30)
            await run.finish()

            async def let_go() -> bool:
                return await metric(http, "corevo_watched_jobs") == 0

            await eventually(let_go, what="the end of the stalled stream")
            ws.connection.transport.resume_reading()
            await until_closed(ws)
            assert ws.connection.close_code == 4408
            last = ws.events(job_id)[-1]
        async with socket(web) as again:
            await again.ask("attach", job_id=job_id, after=f"{last['execution_id']}:{last['seq']}")
            await again.until_ended(job_id)
            assert [e["seq"] for e in ws.events(job_id) + again.events(job_id)] == list(range(1, 3003))


async def until_closed(ws: Socket) -> None:
    from websockets.exceptions import ConnectionClosed

    async with asyncio.timeout(30):
        while True:
            try:
                await ws.receive()
            except ConnectionClosed:
                return


class TestStopping:
    async def test_streams_close_at_once_with_a_word(self, database: str, hand: Hand) -> None:
        async with role(database, "web", "--port", "0") as web, httpx.AsyncClient(base_url=web.url) as http:
            job_id, run = await running(http, hand)
            async with socket(web.url) as ws, stream(http, job_id) as sse:
                await ws.ask("attach", job_id=job_id)
                await ws.until(lambda f: f.get("seq") == 1)
                await sse.until(1)
                web.signal(signal.SIGTERM)
                await until_closed(ws)
                bye = ws.frames[-1]
                assert bye["ev"] == "bye" and bye["resume"] is True and bye["retry_in_ms"] > 0
                assert ws.connection.close_code == 1012
                await sse.rest()
                assert await web.wait(5) == 0
            await run.finish()

    async def test_a_bare_uvicorn_stops_with_open_streams_too(self, database: str, hand: Hand) -> None:
        import os
        import sys

        from corevo import serve

        listener = serve.listen("127.0.0.1", 0)
        port = listener.getsockname()[1]
        listener.close()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "uvicorn", "corevo.gateway:app", "--port", str(port), "--log-level", "warning",
            env={**os.environ, "DATABASE_URL": database, "COREVO_AUTH": "off"},
        )  # fmt: skip
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:

                async def up() -> bool:
                    try:
                        return (await http.get("/healthz")).status_code == 200
                    except httpx.TransportError:
                        return False

                await eventually(up, what="uvicorn")
                job_id, run = await running(http, hand)
                async with socket(f"http://127.0.0.1:{port}") as ws, stream(http, job_id) as sse:
                    await ws.ask("attach", job_id=job_id)
                    await sse.until(1)
                    process.send_signal(signal.SIGTERM)
                    await until_closed(ws)
                    assert ws.frames[-1]["ev"] == "bye"
                    await sse.rest()
                await asyncio.wait_for(process.wait(), 5)
                await run.finish()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


class TestIdle:
    async def test_nothing_watched_asks_nothing(self, web: str, http: httpx.AsyncClient, hand: Hand) -> None:
        """With a healthy channel and with streams that have ended, the gateway's statements stand still."""
        async with socket(web) as ws:
            job_id = (await ws.ask("send", text="hello"))["job"]["id"]
            run = await hand.start()
            await run.finish()
            await ws.until_ended(job_id)
            before = await metric(http, "corevo_statements")
            await asyncio.sleep(1.0)
            assert await metric(http, "corevo_statements") == before


async def metric(http: httpx.AsyncClient, name: str) -> float:
    text = (await http.get("/metrics")).text
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])
