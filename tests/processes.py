"""Real role processes for tests: started, killed, frozen and stopped by pid."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parent.parent
READY_SECONDS = 30.0
READY = re.compile(r"is ready(?: on http://[^:]+:(\d+))?")

#: Quick enough for tests, and still TTL >= 3 x beat.
QUICK = {
    "COREVO_AUTH": "off",
    "COREVO_HEARTBEAT_SECONDS": "0.3",
    "COREVO_HEARTBEAT_TTL_SECONDS": "1.2",
    "COREVO_JANITOR_SECONDS": "0.2",
    "COREVO_STOP_GRACE_SECONDS": "8",
}

T = TypeVar("T")


class Process:
    """One running role. `port` is its HTTP port, 0 when it has none."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self.process = process
        self.name = name
        self.port = 0
        self.lines: list[str] = []
        self._reader: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    async def until_ready(self) -> None:
        ready = asyncio.Event()

        async def read() -> None:
            assert self.process.stderr is not None
            async for raw in self.process.stderr:
                line = raw.decode(errors="replace").rstrip("\n")
                self.lines.append(line)
                found = READY.search(line)
                if found and not ready.is_set():
                    self.port = int(found.group(1) or 0)
                    ready.set()
            ready.set()

        self._reader = asyncio.create_task(read())
        await asyncio.wait_for(ready.wait(), READY_SECONDS)
        assert self.process.returncode is None and any(READY.search(line) for line in self.lines), self.output

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    async def wait(self, seconds: float = 30.0) -> int:
        return await asyncio.wait_for(self.process.wait(), seconds)

    async def stop(self) -> int:
        """Politely; then not."""
        if self.process.returncode is None:
            self.thaw()
            self.signal(signal.SIGTERM)
            try:
                await self.wait(20)
            except TimeoutError:
                self.kill()
                await self.wait()
        if self._reader is not None:
            await self._reader
        return self.process.returncode or 0


@contextlib.asynccontextmanager
async def role(
    database: str, *command: str, ready: bool = True, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Process]:
    """`python -m corevo COMMAND…` against a database, stopped at the end whatever happened."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("COREVO_", "PORT", "DYNO"))}
    for kept in ("COREVO_DB_CONNECTIONS", "COREVO_NOTIFY", "COREVO_PG_BIN"):
        if kept in os.environ:
            environment[kept] = os.environ[kept]
    environment |= {"DATABASE_URL": database, "PYTHONUNBUFFERED": "1", **QUICK, **(settings or {})}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "corevo", *command, env=environment, cwd=ROOT,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )  # fmt: skip
    started = Process(process, command[0])
    try:
        if ready:
            await started.until_ready()
        yield started
    finally:
        await started.stop()


async def eventually(
    check: Callable[[], Awaitable[T]], *, seconds: float = 15.0, every: float = 0.02, what: str = "condition"
) -> T:
    """Waits for a truthy answer; the only waiting that tests do."""
    deadline = time.monotonic() + seconds
    while True:
        answer = await check()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"{what} was not reached in {seconds} s"
        await asyncio.sleep(every)
