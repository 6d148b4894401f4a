"""Roles as real processes, forked by the zygote: killed, frozen, and harming themselves as planned."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from tests.processes import QUICK, READY, ROOT, eventually

READY_SECONDS = 30.0
GRACE_SECONDS = 20.0


class Role:
    """One process. `returncode` is None while it lives; `port` its HTTP port once it is ready."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid = pid
        self.port = 0
        self.returncode: int | None = None
        self.ended = asyncio.Event()
        self._log = log

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def reached(self) -> bool:
        """Whether its fault has struck."""
        return "FAULT " in self.output

    @property
    def frozen(self) -> bool:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        return False

    def signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    async def wait(self, seconds: float = 30.0) -> int:
        await asyncio.wait_for(self.ended.wait(), seconds)
        assert self.returncode is not None
        return self.returncode

    async def until_ready(self) -> None:
        async def look() -> bool:
            assert self.returncode is None, f"ended with {self.returncode}:\n{self.output}"
            found = READY.search(self.output)
            if found:
                self.port = int(found.group(1) or 0)
            return found is not None

        await eventually(look, seconds=READY_SECONDS, what="a role that is ready")

    async def until_said(self, words: str, seconds: float = 15.0) -> None:
        async def look() -> bool:
            return words in self.output

        await eventually(look, seconds=seconds, what=f"{words!r} in\n{self.output}\n")

    async def until_frozen(self) -> None:
        async def look() -> bool:
            return self.frozen

        await eventually(look, every=0.005, what="a frozen process")

    async def until_reached(self, seconds: float = 15.0) -> None:
        async def look() -> bool:
            return self.reached

        await eventually(look, seconds=seconds, every=0.005, what="the planned fault")

    async def stop(self) -> int:
        """Politely; then not."""
        self.thaw()
        self.signal(signal.SIGTERM)
        try:
            return await self.wait(GRACE_SECONDS)
        except TimeoutError:
            self.kill()
            return await self.wait()


class Zygote:
    """Starts roles. Everything it started has ended when its block has."""

    def __init__(self, folder: Path, process: asyncio.subprocess.Process) -> None:
        self._folder = folder
        self._process = process
        self._roles: dict[int, Role] = {}
        self._early: dict[int, int] = {}
        self._starting: asyncio.Queue[int] = asyncio.Queue()
        self._turn = asyncio.Lock()
        self._count = 0

    async def spawn(
        self,
        database: str,
        *command: str,
        plans: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        ready: bool = True,
    ) -> Role:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("COREVO_", "PORT", "DYNO"))}
        for kept in ("COREVO_DB_CONNECTIONS", "COREVO_NOTIFY", "COREVO_PG_BIN"):
            if kept in os.environ:
                environment[kept] = os.environ[kept]
        environment |= {"DATABASE_URL": database, **QUICK, **(settings or {})}
        async with self._turn:
            self._count += 1
            log = self._folder / f"{self._count}-{command[0]}.log"
            request = {
                "arguments": command,
                "environment": environment,
                "plans": [str(plan) for plan in plans],
                "log": str(log),
            }
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            role = Role(await self._starting.get(), log)
            self._roles[role.pid] = role
            self._settle(role.pid)
        if ready:
            await role.until_ready()
        return role

    @contextlib.asynccontextmanager
    async def role(
        self,
        database: str,
        *command: str,
        plans: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        ready: bool = True,
    ) -> AsyncIterator[Role]:
        role = await self.spawn(database, *command, plans=plans, settings=settings, ready=False)
        try:
            if ready:
                await role.until_ready()
            yield role
        finally:
            await role.stop()

    async def listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            told: dict[str, int] = json.loads(line)
            if "status" not in told:
                self._starting.put_nowait(told["pid"])
                continue
            self._early[told["pid"]] = told["status"]
            self._settle(told["pid"])

    def _settle(self, pid: int) -> None:
        """An end may be told before whoever started the process knows of it."""
        role = self._roles.get(pid)
        if role is not None and pid in self._early:
            role.returncode = self._early.pop(pid)
            role.ended.set()
            del self._roles[pid]

    def leftovers(self) -> str:
        """The newest logs, for a failure's report."""
        logs = sorted(self._folder.glob("*.log"), key=lambda path: path.stat().st_mtime)
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in logs[-6:])


@contextlib.asynccontextmanager
async def zygote() -> AsyncIterator[Zygote]:
    with tempfile.TemporaryDirectory(prefix="corevo-faults-") as folder:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.faults.zygote", cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        found = Zygote(Path(folder), process)
        listener = asyncio.create_task(found.listen())
        try:
            yield found
        finally:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()
            await listener
