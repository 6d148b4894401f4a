"""A TCP forwarder that stands for a load balancer: one address, and whichever gateway it is told to use."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Forwarder:
    """`frozen`: it takes connections and bytes, and passes nothing on, as a network that went to sleep does."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.port = 0
        self.thawed = asyncio.Event()
        self.thawed.set()
        self.connections = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        try:
            both = [asyncio.create_task(self._pass(*way)) for way in ((reader, there_writer), (there_reader, writer))]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for way in both:
                way.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        finally:
            writer.close()
            there_writer.close()
            self._tasks.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await self.thawed.wait()
                writer.write(data)
                await writer.drain()

    async def end(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def forwarder(port: int) -> AsyncIterator[Forwarder]:
    found = Forwarder(port)
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
        await found.end()
