"""Garbage at the gateway's edges: each gets the answer that API.md names, and the next request is served."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from corevo.store.connections import Connections
from tests.gateways import gateway_on
from tests.hand import Hand
from tests.sockets import Socket, socket


@pytest.fixture
async def hand(database: str) -> AsyncIterator[Hand]:
    db = Connections(database, limit=1, name="test hand")
    hand = Hand(db)
    await hand.register("demo")
    yield hand
    await db.close()


@pytest.fixture
async def web(database: str, hand: Hand) -> AsyncIterator[str]:
    async with gateway_on(database) as url:
        yield url


@pytest.fixture
async def http(web: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=web, timeout=20) as client:
        yield client


BODIES: list[tuple[bytes, int, str]] = [
    (b"", 400, "bad_json"),
    (b"{", 400, "bad_json"),
    (b'{"text": "\xff"}', 400, "bad_json"),
    (b'{"input": NaN}', 400, "bad_json"),
    (b'{"input": 1e131071}', 400, "bad_json"),
    (b'{"input": ' + b"9" * 5000 + b"}", 400, "bad_json"),
    (b"[" * 200_000, 400, "bad_json"),
    (b'{"text": "a\\u0000"}', 422, "invalid"),
    (b'{"text": "\\ud800"}', 422, "invalid"),
    (b'{"input": ["\\udfff"]}', 422, "invalid"),
    (b'{"metadata": {"\\u0000": 1}, "text": "a"}', 422, "invalid"),
    (b'{"text": "a", "colour": "red"}', 422, "invalid"),
    (b"[1]", 422, "invalid"),
    (b'{"text": "' + b"x" * 1_048_576 + b'"}', 413, "too_large"),
    (b'{"text": "' + b"x" * 200_001 + b'"}', 422, "invalid"),
    (b'{"text": "a", "agent": "nobody"}', 404, "agent_unknown"),
    (b'{"text": "a", "thread_id": "nonsense"}', 404, "not_found"),
]


async def test_every_body_gets_its_answer_and_the_next_job_runs(http: httpx.AsyncClient, hand: Hand) -> None:
    for body, status, code in BODIES:
        answer = await http.post("/api/jobs", content=body)
        assert (answer.status_code, answer.json()["code"]) == (status, code), body[:60]
        assert answer.headers["content-type"] == "application/problem+json"
    assert (await http.get("/api/jobs")).json()["items"] == []
    job = (await http.post("/api/jobs", json={"text": "x" * 200_000})).json()["job"]
    run = await hand.start()
    await run.finish()
    assert (await http.get(f"/api/jobs/{job['id']}")).json()["state"] == "completed"


async def test_bodies_of_other_routes_are_read_as_strictly(http: httpx.AsyncClient) -> None:
    thread = (await http.post("/api/threads", json={"title": "t"})).json()["id"]
    for method, path in (("POST", "/api/threads"), ("PATCH", f"/api/threads/{thread}")):
        for body, code in (
            (b'{"title": NaN}', "bad_json"),
            (b'{"title": "\\u0000"}', "invalid"),
            (b'{"title": "' + b"x" * 201 + b'"}', "invalid"),
            (b'{"name": "x"}', "invalid"),
        ):
            assert (await http.request(method, path, content=body)).json()["code"] == code


async def test_a_body_without_an_end_is_cut_at_the_limit(web: str, http: httpx.AsyncClient) -> None:
    """The server says too_large while the client still sends, whatever length it announced."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(web.rsplit(":", 1)[1]))
    writer.write(b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    for _ in range(17):
        writer.write(chunk)
    await writer.drain()
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    assert b" 413 " in head.splitlines()[0]
    writer.close()
    assert (await http.get("/healthz")).status_code == 200


class TestFrames:
    @pytest.mark.parametrize(
        "frame",
        [
            "",
            "{",
            "null",
            "[]",
            '"send"',
            "{}",
            '{"op": 1}',
            '{"op": "explode"}',
            '{"op": "send", "text": NaN}',
            '{"op": "send", "text": "a", "x": 1e999}',
            "[" * 100_000,
            b'{"op": "ping"}',
            b"\xff\x00",
        ],
    )
    async def test_what_is_no_frame_ends_the_connection(self, web: str, frame: str | bytes) -> None:
        async with socket(web) as ws:
            await ws.connection.send(frame)
            error = await ws.receive()
            assert (error["ev"], error["code"]) == ("error", "bad_frame")
            await closed(ws, 4400)

    async def test_what_is_wrong_in_a_frame_is_said_and_the_connection_stays(self, web: str, hand: Hand) -> None:
        missing = "01a22e1a-82fa-7300-a039-4743c28196fd"
        async with socket(web) as ws:
            wrong: list[tuple[str, dict[str, Any], str]] = [
                ("send", {}, "invalid"),
                ("send", {"text": ""}, "invalid"),
                ("send", {"text": "a\x00"}, "invalid"),
                ("send", {"text": "\ud800"}, "invalid"),
                ("send", {"text": "x" * 200_001}, "invalid"),
                ("send", {"text": "a", "colour": 1}, "invalid"),
                ("send", {"text": "a", "on_busy": "explode"}, "invalid"),
                ("send", {"text": "a", "idempotency_key": ""}, "invalid"),
                ("send", {"text": "a", "agent": "nobody"}, "agent_unknown"),
                ("send", {"text": "a", "thread_id": missing}, "not_found"),
                ("send", {"text": "a", "thread_id": "nonsense"}, "not_found"),
                ("attach", {}, "invalid"),
                ("attach", {"job_id": 1}, "invalid"),
                ("attach", {"job_id": missing}, "not_found"),
                ("attach", {"job_id": "nonsense"}, "not_found"),
                ("cancel", {"job_id": missing}, "not_found"),
                ("input", {"job_id": missing, "text": "a"}, "not_found"),
                ("answer", {"job_id": missing, "question_id": "q", "answer": "a"}, "not_found"),
            ]
            for op, fields, code in wrong:
                error = await ws.ask(op, **fields)
                assert (error["ev"], error["code"]) == ("error", code), (op, str(fields)[:60])
                assert error["detail"]
            job_id = (await ws.ask("send", text="hello"))["job"]["id"]
            assert (await ws.ask("attach", job_id=job_id, after="rubbish"))["code"] == "bad_cursor"
            await (await hand.start()).finish()
            await ws.until_ended(job_id)

    async def test_a_ref_that_cannot_be_said_back_is_left_out(self, web: str) -> None:
        async with socket(web) as ws:
            for ref in ("\ud800", "x" * 201, 1.5, [1], {"a": 1}, True):
                await ws.connection.send(json.dumps({"op": "detach", "ref": ref, "job_id": "x"}))
                error = await ws.receive()
                assert (error["code"], "ref" in error) == ("invalid", False)
            await ws.connection.send(json.dumps({"op": "auth", "ref": 7, "token": "anything"}))
            assert (await ws.receive()) == {"ev": "ack", "ref": 7}

    async def test_a_flood_ends_the_connection(self, web: str) -> None:
        async with socket(web) as ws:
            try:
                for _ in range(1000):
                    await ws.send(op="ping")
            except ConnectionClosed:
                pass
            await closed(ws, 4429)

    async def test_too_many_streams_are_refused(self, web: str, hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("corevo.control.socket.STREAMS_LIMIT", 2)
        async with socket(web) as ws:
            first = (await ws.ask("send", text="1"))["job"]["id"]
            await ws.ask("send", text="2")
            assert (await ws.ask("send", text="3"))["code"] == "too_many_streams"
            await ws.ask("detach", job_id=first)
            assert (await ws.ask("send", text="3"))["ev"] == "ack"

    async def test_a_frame_that_is_too_big_is_1009(self, web: str) -> None:
        async with socket(web) as ws:
            await ws.connection.send("x" * 1_200_000)
            await closed(ws, 1009)

    async def test_the_handshake_is_refused_by_origin_and_host(self, web: str) -> None:
        url = web.replace("http:", "ws:") + "/api/ws"
        for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}, {"Origin": "null"}):
            with pytest.raises(InvalidStatus) as refused:
                async with connect(url, additional_headers=headers, proxy=None):
                    pass
            assert refused.value.response.status_code == 403
        async with connect(url, origin=web, proxy=None) as plain:  # type: ignore[arg-type]
            assert plain.subprotocol is None


async def closed(ws: Socket, code: int) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await ws.receive()
            except ConnectionClosed:
                break
    assert ws.connection.close_code == code


class TestDatabaseAway:
    async def test_it_is_said_within_ten_seconds_and_passes(self, database: str, hand: Hand) -> None:
        """A proxy stands for the database's address; it is taken away, swallows everything, and comes back."""
        async with (
            Between(database) as between,
            gateway_on(between.dsn) as url,
            httpx.AsyncClient(base_url=url, timeout=30) as http,
            socket(url) as ws,
        ):
            job_id = (await ws.ask("send", text="hello"))["job"]["id"]
            run = await hand.start()
            await ws.until(lambda f: f.get("seq") == 1)
            between.swallow = True
            began = time.monotonic()
            answers: list[Any] = await asyncio.gather(
                http.get("/api/jobs"),
                http.post("/api/jobs", json={"text": "x"}),
                http.get(f"/api/jobs/{job_id}/events"),
                http.get("/readyz"),
                ws.ask("cancel", job_id=job_id),
            )
            assert time.monotonic() - began < 10.5
            for answer in answers[:3]:
                assert (answer.status_code, answer.json()["code"]) == (503, "unavailable"), answer.text
                assert int(answer.headers["retry-after"]) > 0
            assert answers[3].status_code == 503 and answers[3].json()["reasons"]
            assert answers[4]["code"] == "unavailable" and answers[4]["retry_after_seconds"] > 0
            assert (await http.get("/healthz")).status_code == 200
            await run.say("meanwhile ")
            between.swallow = False
            between.cut()
            await run.finish()
            await ws.until_ended(job_id, 40)
            assert ws.text(job_id) == "meanwhile "


class Between:
    """A TCP proxy before the database, which may swallow what passes."""

    def __init__(self, database: str) -> None:
        self._database = database
        self.swallow = False
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Between:
        from urllib.parse import parse_qs, urlsplit

        parts = urlsplit(self._database)
        query = parse_qs(parts.query)
        self._target = f"{query['host'][0]}/.s.PGSQL.{query.get('port', ['5432'])[0]}"
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.dsn = f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}?sslmode=disable"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self._server.close()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, out = await asyncio.open_unix_connection(self._target)
        self._writers |= {writer, out}
        await asyncio.gather(self._pass(reader, out), self._pass(there, writer), return_exceptions=True)
        self._writers -= {writer, out}
        for end in (writer, out):
            end.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                if not self.swallow:
                    writer.write(data)
                    await writer.drain()
        except OSError:
            pass
        writer.close()
