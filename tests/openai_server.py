"""A server that speaks the OpenAI wire format as a test tells it, faults included. It thinks nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any


class Connection:
    """What a client sends, read at once, so that its going is seen at once: `gone` is set then, at `gone_at`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.received = asyncio.StreamReader()
        self.writer = writer
        self.gone = asyncio.Event()
        self.gone_at: float | None = None
        self._reader = reader

    async def pump(self) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(65_536):
                self.received.feed_data(data)
        self.received.feed_eof()
        self.gone_at = time.monotonic()
        self.gone.set()


class Exchange:
    """One request, and the means to answer it."""

    def __init__(self, connection: Connection) -> None:
        self.head = ""
        self.headers: dict[str, str] = {}
        self.body: dict[str, Any] = {}
        self.arrived_at = time.monotonic()
        self.connection = connection
        self.gone = connection.gone

    async def read(self) -> None:
        head = (await self.connection.received.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.head = head[0]
        self.headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        self.body = json.loads(await self.connection.received.readexactly(int(self.headers["content-length"])))
        self.arrived_at = time.monotonic()

    async def status(self, status: int, body: Any, **headers: str) -> None:
        """A whole answer, with a body that is JSON or text."""
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} X", f"content-length: {len(data)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if not isinstance(body, str):
            lines.append("content-type: application/json")
        await self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    async def refuse(self, status: int, message: str, code: str | None = None, **headers: str) -> None:
        """An error as OpenAI words it."""
        await self.status(
            status, {"error": {"message": message, "type": "test", "param": None, "code": code}}, **headers
        )

    async def begin(self) -> None:
        await self.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

    async def line(self, line: str) -> None:
        data = line.encode() + b"\n\n"
        await self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    async def chunk(self, choices: list[dict[str, Any]], **more: Any) -> None:
        frame = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "served", "choices": choices}
        await self.line("data: " + json.dumps(frame | more))

    async def delta(self, finish_reason: str | None = None, **delta: Any) -> None:
        await self.chunk([{"index": 0, "delta": delta, "finish_reason": finish_reason}])

    async def call(self, index: int, *, id: str | None = None, name: str | None = None, arguments: str = "") -> None:
        function = {"arguments": arguments} | ({"name": name} if name else {})
        piece = {"index": index, "function": function} | ({"id": id, "type": "function"} if id else {})
        await self.delta(tool_calls=[piece])

    async def end(self, finish_reason: str = "stop", usage: tuple[int, int] | None = (10, 5)) -> None:
        await self.delta(finish_reason)
        if usage is not None:
            counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
            await self.chunk([], usage=counts)
        await self.line("data: [DONE]")
        await self.raw(b"0\r\n\r\n")

    async def stop(self) -> None:
        """Ends the body politely, without an end of the answer."""
        await self.raw(b"0\r\n\r\n")

    async def raw(self, data: bytes) -> None:
        self.connection.writer.write(data)
        await self.connection.writer.drain()

    def break_off(self) -> None:
        self.connection.writer.transport.abort()


Reply = Callable[[Exchange], Awaitable[None]]


class OpenAIServer:
    """Answers request n with reply n, and those after the last with the last."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.asked = asyncio.Event()
        self.url = ""
        self._replies: deque[Reply] = deque()

    def will(self, *replies: Reply) -> None:
        self._replies = deque(replies)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [exchange.body for exchange in self.exchanges]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        pump = asyncio.create_task(connection.pump())
        try:
            while True:
                exchange = Exchange(connection)
                await exchange.read()
                self.exchanges.append(exchange)
                self.asked.set()
                reply = self._replies.popleft() if len(self._replies) > 1 else self._replies[0]
                await reply(exchange)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went
        finally:
            pump.cancel()
            writer.close()


@contextlib.asynccontextmanager
async def openai_server() -> AsyncIterator[OpenAIServer]:
    """A server on a free port of this machine."""
    made = OpenAIServer()
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(made._serve(reader, writer))
        tasks.add(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield made
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        failed = [f for f in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(f, Exception)]
        assert not failed, failed


# What a test says most often


def says(*pieces: str, finish_reason: str = "stop", usage: tuple[int, int] | None = (10, 5)) -> Reply:
    async def reply(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.delta(role="assistant", content="")
        for piece in pieces:
            await exchange.delta(content=piece)
        await exchange.end(finish_reason, usage)

    return reply


def refuses(status: int, message: str = "no", code: str | None = None, **headers: str) -> Reply:
    async def reply(exchange: Exchange) -> None:
        await exchange.refuse(status, message, code, **headers)

    return reply


def calls(*wanted: tuple[str, str], text: str = "") -> Reply:
    """Calls tools (name, arguments), the arguments in small pieces, all calls interleaved."""

    async def reply(exchange: Exchange) -> None:
        await exchange.begin()
        if text:
            await exchange.delta(content=text)
        for index, (name, _) in enumerate(wanted):
            await exchange.call(index, id=f"id-{name}-{index}", name=name)
        longest = max(len(arguments) for _, arguments in wanted)
        size = max(4, longest // 50)
        for start in range(0, longest, size):
            for index, (_, arguments) in enumerate(wanted):
                if piece := arguments[start : start + size]:
                    await exchange.call(index, arguments=piece)
        await exchange.end("tool_calls")

    return reply


async def drips(exchange: Exchange) -> None:
    """Says a word every 20 ms until the client goes."""
    await exchange.begin()
    while not exchange.gone.is_set():
        await exchange.delta(content="drip ")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await exchange.gone.wait()


async def hangs(exchange: Exchange) -> None:
    """Takes the request and never answers."""
    await exchange.gone.wait()
