"""A new user's first minutes: a fresh copy of the checkout, `./dev`, a message, a crash, a second start.

Once as the user who runs the tests, and once more as an ordinary user when that is root. The folder has a space in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.sockets import socket

ROOT = Path(__file__).resolve().parent.parent.parent
NOBODY = 65534
SETUP_SECONDS = 240.0
IMPORTS = "import aioprometheus, asyncpg, click, pydantic_settings, starlette.applications, structlog, uvicorn, uvloop"

START_SERVER = """
import time
from pathlib import Path
from corevo.embedded import LocalPostgres
server = LocalPostgres(Path(".corevo"))
began = time.monotonic()
server.start()
print(time.monotonic() - began)
server.stop()
"""


@pytest.fixture(params=["as this user", "as an ordinary user"])
def clone(request: pytest.FixtureRequest) -> Iterator[tuple[Path, list[str]]]:
    """A copy of the checkout, and the words before a command that make it run as the right user."""
    ordinary = request.param == "as an ordinary user"
    if ordinary and os.geteuid() != 0:
        pytest.skip("the tests already run as an ordinary user")
    folder = Path(tempfile.mkdtemp(prefix="corevo clone "))
    try:
        folder.chmod(0o755)
        checkout = folder / "a checkout"
        ignored = shutil.ignore_patterns(".venv", ".venv.lock", ".corevo", "__pycache__", ".*_cache", ".git", "dist")
        shutil.copytree(ROOT, checkout, ignore=ignored)
        before: list[str] = []
        if ordinary:
            for path in (checkout, *checkout.rglob("*")):
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
            before = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        yield checkout, before
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def interpreter(before: list[str]) -> str:
    """A Python that this user can run, with a pip or an ensurepip: ours may lie in a home that is closed to it."""
    works = "import sys; assert sys.version_info >= (3, 11)\ntry:\n import pip\nexcept ImportError:\n import ensurepip"
    for candidate in (sys.executable, "/usr/bin/python3"):
        # by way of env: setpriv itself still has root's rights when it looks the program up
        if subprocess.run([*before, "/usr/bin/env", candidate, "-c", works], capture_output=True).returncode == 0:
            return candidate
    pytest.fail("no Python with pip that an ordinary user can run; install python3-pip")


@contextlib.asynccontextmanager
async def dev(clone: tuple[Path, list[str]], seconds: float = SETUP_SECONDS) -> AsyncIterator[tuple[str, int, float]]:
    """`./dev`: yields its URL, its pid and how long it took; ended politely, if it is still there."""
    checkout, before = clone
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COREVO_") and k != "DATABASE_URL"}
    environment["HOME"] = str(checkout.parent)
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *before, interpreter(before), str(checkout / "dev"), cwd=checkout, env=environment,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    lines: list[str] = []
    try:
        assert process.stdout is not None
        async with asyncio.timeout(seconds):
            while not lines or "ready: http://" not in lines[-1]:
                line = (await process.stdout.readline()).decode()
                assert line, "\n".join(lines)
                lines.append(line)
        yield lines[-1].split()[-1], process.pid, time.monotonic() - began
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.communicate(), 30)


async def output(*command: str | Path, cwd: Path) -> str:
    process = await asyncio.create_subprocess_exec(*command, cwd=cwd, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode == 0, command
    return out.decode()


async def test_a_fresh_clone_streams_survives_a_kill_and_starts_again_quickly(clone: tuple[Path, list[str]]) -> None:
    async with dev(clone) as (url, pid, _):
        async with socket(url) as first, socket(url) as second, socket(url) as third:
            ack = await first.ask("send", text="long pace=0.005")
            assert ack["ev"] == "ack" and ack["job"]["agent"] == "demo"
            job_id = ack["job"]["id"]
            middle = await first.until(lambda f: f.get("type") == "text.delta" and f["seq"] >= 30)
            await second.ask("attach", job_id=job_id)
            await third.ask("attach", job_id=job_id, after=f"{middle['execution_id']}:{middle['seq']}")
            for client in (first, second, third):
                assert (await client.until_ended(job_id, 60))["job"]["state"] == "completed"
            assert first.text(job_id) == second.text(job_id)
            assert first.text(job_id).endswith("Sentence 200 of a long demo answer: every word of it was stored "
                                               "in Postgres before you saw it. ")  # fmt: skip
            assert [e["seq"] for e in third.events(job_id)] == list(
                range(middle["seq"] + 1, second.events(job_id)[-1]["seq"] + 1)
            )
            deltas = [f for f in first.frames if f.get("type") == "text.delta"]
            assert len(deltas) > 300, "the words did not arrive one after another"
        async with dev(clone) as (other, _, _):  # a second one beside it, on the same Postgres
            assert other != url
            async with socket(other) as client:
                assert (await client.ask("attach", job_id=job_id))["ev"] == "ack"
        os.kill(pid, signal.SIGKILL)
    async with dev(clone, 30) as (url, _, _), socket(url) as client:
        await client.ask("attach", job_id=job_id)
        await client.until_ended(job_id)

    bare, starts = [], []
    python = clone[0] / ".venv" / "bin" / "python"
    for _ in range(3):
        began = time.monotonic()
        await output(*clone[1], python, "-c", IMPORTS, cwd=clone[0])
        imports_seconds = time.monotonic() - began
        bare.append(imports_seconds + float(await output(*clone[1], python, "-c", START_SERVER, cwd=clone[0])))
        async with dev(clone, 30) as (_, _, took):
            starts.append(took)
    assert min(starts) <= 2 * min(bare), (starts, bare)
