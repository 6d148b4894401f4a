"""The start gate and the doctor: what they refuse, what they wait for, and whether the connection sum is true."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import asyncpg
import httpx
import pytest

from corevo.store.migrations import migrate
from tests.processes import ROOT, eventually, role
from tests.sockets import Socket, socket

OPEN_CONNECTIONS = """
  select count(*) from pg_stat_activity where datname = current_database() and application_name like 'corevo%'
"""


async def corevo(database: str, *command: str, **settings: str) -> tuple[int, str]:
    """Runs a command to its end; its status and everything it printed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("COREVO_", "PORT"))}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "corevo", *command, cwd=ROOT, env={**environment, "DATABASE_URL": database, **settings},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


async def test_a_healthy_database_passes_every_check(database: str) -> None:
    status, text = await corevo(database, "doctor")
    assert status == 0, text
    assert "FAIL" not in text and text.count("\nok") >= 7


async def test_a_database_without_schema_is_refused_with_the_fix(empty_database: str) -> None:
    for command in (("web",), ("worker", "tests/agents.py"), ("janitor",), ("solo", "tests/agents.py")):
        status, text = await corevo(empty_database, *command, COREVO_AUTH="off")
        assert (status, text.count("refused: ")) == (3, 1), text
        assert "run `corevo migrate`" in text
    status, text = await corevo(empty_database, "doctor")
    assert status == 1 and "FAIL  schema" in text


async def test_a_read_only_database_is_refused(database: str) -> None:
    name = database.split("/")[-1].split("?")[0]
    connection = await asyncpg.connect(database)
    await connection.execute(f'alter database "{name}" set default_transaction_read_only = on')
    await connection.close()
    status, text = await corevo(database, "worker", "tests/agents.py")
    assert status == 3 and "read-only" in text


async def test_without_sign_in_no_port_is_opened_to_others(database: str) -> None:
    status, text = await corevo(database, "web", "--host", "0.0.0.0", COREVO_AUTH="off")
    assert status == 3 and "would let everyone in" in text
    status, text = await corevo(database, "web")
    assert status == 3 and "no sign-in yet" in text


async def test_timings_that_do_not_fit_together_are_refused(database: str) -> None:
    status, text = await corevo(database, "worker", "tests/agents.py", COREVO_HEARTBEAT_TTL_SECONDS="10")
    assert status == 2 and "at least three times" in text


async def test_a_role_waits_for_a_migration_that_runs(empty_database: str) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def hold(line: str) -> None:
        """Stops the migration inside its lock, before its first statement."""
        if line.startswith("applying"):
            inside.set()
            go_on.wait(30)

    migration = threading.Thread(target=lambda: asyncio.run(migrate(empty_database, hold)))
    migration.start()
    try:
        assert await asyncio.to_thread(inside.wait, 20)
        async with role(empty_database, "worker", "tests/agents.py", ready=False) as worker:
            waiting = asyncio.create_task(worker.until_ready())
            await eventually(lambda: _says(worker.lines, "a migration is running"), what="a role that waits")
            assert worker.process.returncode is None
            go_on.set()
            await waiting
    finally:
        go_on.set()
        await asyncio.to_thread(migration.join)


@pytest.mark.skipif("COREVO_DB_CONNECTIONS" in os.environ, reason="the sum of the defaults is what is counted here")
async def test_the_connection_sum_is_what_a_formation_opens_at_its_peak_twice_over(database: str) -> None:
    _, text = await corevo(database, "doctor", "--web", "1", "--worker", "1")
    (line,) = [line for line in text.splitlines() if "connections:" in line]
    assert "1 web, 1 worker: 7, in a rolling deploy 14 of" in line
    watcher = await asyncpg.connect(database)
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, await watcher.fetchval(OPEN_CONNECTIONS))
            await asyncio.sleep(0.005)

    async with (
        role(database, "web", "--port", "0") as first,
        role(database, "web", "--port", "0") as second,
        role(database, "worker", "tests/agents.py", "--places", "20"),
        role(database, "worker", "tests/agents.py", "--places", "20"),
    ):
        watching = asyncio.create_task(watch())
        async with socket(first.url) as a, socket(second.url) as b:
            acks = await asyncio.gather(*(_burst(client) for client in (a, b)))
            for client, jobs in zip((a, b), acks, strict=True):
                for job_id in jobs:
                    await client.until_ended(job_id)
        watching.cancel()
    await asyncio.wait([watching])
    await watcher.close()
    assert most == 14


async def _burst(client: Socket) -> list[str]:
    return [(await client.ask("send", text="20", agent="paced"))["job"]["id"] for _ in range(40)]


async def _says(lines: list[str], words: str) -> bool:
    return any(words in line for line in lines)


@pytest.mark.parametrize("name", ["gateway", "worker", "janitor", "solo"])
async def test_uvicorn_serves_every_role_directly(database: str, name: str, unused_tcp_port: int) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("COREVO_", "PORT"))}
    environment |= {"DATABASE_URL": database, "COREVO_AUTH": "off", "COREVO_APP": "tests/agents.py"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "uvicorn", f"corevo.{name}:app", "--port", str(unused_tcp_port),
        cwd=ROOT, env=environment,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{unused_tcp_port}") as http:

            async def ready() -> bool:
                try:
                    return (await http.get("/readyz")).status_code == 200
                except httpx.HTTPError:
                    return False

            await eventually(ready, what="a role that is ready")
            assert (await http.get("/healthz")).status_code == 200
            assert "corevo_statements" in (await http.get("/metrics")).text
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 15)
