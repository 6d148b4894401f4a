"""A TCP proxy before Postgres that understands just enough of the protocol to do harm at a statement.

It tells the dedicated connection from the others by the application name in the start-up packet, and statements by
following Parse, Bind and Query. Harm, to one connection or to many:

    reset      the connection breaks: before the statement is forwarded, or after its commit and without its answer
    blackhole  nothing passes any more, in neither direction, and nobody is told
    deaf       what the client sends still arrives, no answer comes back (one way)
    a call     of the test: the message is held until it returns, then goes on its way
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.faults.triggers import Trigger

SSL_REQUEST, GSS_REQUEST, CANCEL_REQUEST = 80877103, 80877104, 80877102
PULSE = "corevo pulse"

Action = Callable[["Link"], Awaitable[None]]


@dataclass
class Rule:
    """What happens at a trigger; `reached` tells the test. Only to connections that `to` wants."""

    trigger: Trigger
    action: Action
    to: Callable[[Link], bool] = lambda link: True
    reached: asyncio.Event = field(default_factory=asyncio.Event)


class Link:
    """One connection through the proxy."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter, name: str) -> None:
        self.name = name
        self.client = client
        self.server = server
        self.up = True  # client to server
        self.down = True
        self.statements: dict[bytes, str] = {}
        self.parsed: bytes | None = None  # the statement whose Bind will follow in the same transaction
        self.held: list[Rule] = []  # their statement is under way: answers wait for its end

    @property
    def is_pulse(self) -> bool:
        return self.name == PULSE

    def blackhole(self) -> None:
        self.up = self.down = False

    def deafen(self) -> None:
        self.down = False

    def reset(self) -> None:
        for writer in (self.client, self.server):
            transport: asyncio.WriteTransport = writer.transport
            transport.abort()


async def blackhole(link: Link) -> None:
    link.blackhole()


async def deaf(link: Link) -> None:
    link.deafen()


async def reset(link: Link) -> None:
    link.reset()


class Proxy:
    """`delay_seconds` is added to every message of a client; `refuse` closes new connections at once."""

    def __init__(self, socket_path: str) -> None:
        self.links: set[Link] = set()
        self.rules: list[Rule] = []
        self.opened = 0
        self.delay_seconds = 0.0
        self.refuse = False
        self.swallow: Callable[[str], bool] = lambda name: False  # whose new connections are taken and never answered
        self.port = 0
        self._socket_path = socket_path
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._actions: set[asyncio.Task[None]] = set()

    def dsn(self, direct: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}{urlsplit(direct).path}"

    def add(self, trigger: str, action: Action, to: Callable[[Link], bool] = lambda link: True) -> Rule:
        rule = Rule(Trigger.parse(trigger), action, to)
        self.rules.append(rule)
        return rule

    def harm(self, do: Callable[[Link], None], *, pulse: bool | None = None) -> int:
        """Does it to the connections there are: the dedicated ones, the others, or all; to how many."""
        found = [link for link in self.links if pulse is None or link.is_pulse == pulse]
        for link in found:
            do(link)
        return len(found)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients[task] = writer
        link: Link | None = None
        try:
            first = await _start_up(reader, writer)
            if first is None or self.refuse:
                return
            if self.swallow(_application(first)):
                await reader.read()
                return
            server_reader, server_writer = await asyncio.open_unix_connection(self._socket_path)
            server_writer.write(first)
            link = Link(writer, server_writer, _application(first))
            self.opened += 1
            self.links.add(link)
            pumps = [
                asyncio.create_task(self._upwards(link, reader)),
                asyncio.create_task(self._downwards(link, server_reader)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            if link is not None:
                self.links.discard(link)
                link.server.close()
            writer.close()
            self._clients.pop(task, None)

    async def _act(self, rule: Rule, link: Link) -> None:
        """In a task of its own: what it does may end this very connection."""
        rule.reached.set()
        task = asyncio.create_task(_run(rule.action, link))
        self._actions.add(task)
        task.add_done_callback(self._actions.discard)
        await asyncio.shield(task)

    async def _upwards(self, link: Link, reader: asyncio.StreamReader) -> None:
        while True:
            kind, body = await _message(reader)
            if self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            begins, runs = _statement(link, kind, body)
            if begins is not None:
                for rule in self.rules:
                    if rule.to(link) and rule.trigger.meets("before", begins):
                        await self._act(rule, link)
            if runs is not None:
                for rule in self.rules:
                    if rule.to(link) and rule.trigger.meets("after", runs):
                        link.held.append(rule)
            if link.server.is_closing():
                return
            if link.up:
                link.server.write(kind + struct.pack("!I", len(body) + 4) + body)

    async def _downwards(self, link: Link, reader: asyncio.StreamReader) -> None:
        waiting = b""
        while True:
            kind, body = await _message(reader)
            packet = kind + struct.pack("!I", len(body) + 4) + body
            if link.held:
                waiting += packet
                if kind != b"Z":
                    continue
                rules, link.held = link.held, []
                for rule in rules:
                    await self._act(rule, link)
                packet, waiting = waiting, b""
            if link.client.is_closing():
                return
            if link.down:
                link.client.write(packet)


async def _run(action: Action, link: Link) -> None:
    await action(link)


async def _start_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
    while True:
        head = await reader.readexactly(8)
        length, code = struct.unpack("!II", head)
        rest = await reader.readexactly(length - 8)
        if code in (SSL_REQUEST, GSS_REQUEST):
            writer.write(b"N")
        elif code == CANCEL_REQUEST:
            return None  # a statement that was given up: the network forgot that too
        else:
            return head + rest


def _application(first: bytes) -> str:
    words = first[8:].split(b"\0")
    found = dict(zip(words[::2], words[1::2], strict=False))
    return found.get(b"application_name", b"").decode()


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind = await reader.readexactly(1)
    (length,) = struct.unpack("!I", await reader.readexactly(4))
    return kind, await reader.readexactly(length - 4)


def _statement(link: Link, kind: bytes, body: bytes) -> tuple[str | None, str | None]:
    """The SQL that this message begins, and that it runs. A statement new to a connection begins with its Parse:
    its transaction does, too.
    """
    if kind == b"P":
        name, sql, _ = body.split(b"\0", 2)
        link.statements[name] = sql.decode()
        link.parsed = name
        return link.statements[name], None
    if kind == b"Q":
        sql_text = body.rstrip(b"\0").decode()
        return sql_text, sql_text
    if kind == b"B":
        _, name, _ = body.split(b"\0", 2)
        known, new = link.statements.get(name), link.parsed == name
        link.parsed = None
        return None if new else known, known
    return None, None


@contextlib.asynccontextmanager
async def a_proxy(socket_path: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(socket_path)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        if proxy._actions:
            await asyncio.wait(proxy._actions)
        tasks = dict(proxy._clients)
        for writer in tasks.values():
            writer.transport.abort()
        if tasks:
            await asyncio.wait(tasks, timeout=5)
