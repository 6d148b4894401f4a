"""Behind Debian's pgbouncer in transaction mode: with a direct URL for the dedicated connection, or polling alone.

The pooler has fewer server connections than Corevo has clients, so that statements do meet other backends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.faults.history import History
from tests.faults.roles import Zygote
from tests.faults.servers import Server, execute
from tests.faults.worlds import APP, QUICKER, TIMINGS
from tests.processes import eventually

CLIENTS = 8
JOBS = 30

NOBODY = 65534


@contextlib.asynccontextmanager
async def pgbouncer(server: Server, *, ignore: str = "") -> AsyncIterator[int]:
    """Yields its port."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail("pgbouncer is not installed, and CI installs it")
        pytest.skip("pgbouncer is not installed (Debian: apt install pgbouncer)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="corevo-pooler-") as folder:
        root = Path(folder)
        users = root / "users.txt"
        users.write_text('"postgres" ""\n')
        config = root / "pgbouncer.ini"
        config.write_text(
            "[databases]\n"
            f"* = host={Path(server.socket_path).parent} port=5432 user=postgres\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = any\nauth_file = {users}\n"
            "pool_mode = transaction\ndefault_pool_size = 3\nmax_client_conn = 100\nserver_reset_query =\n"
            f"ignore_startup_parameters = extra_float_digits{ignore}\n"
        )
        command = [program, "-q", str(config)]
        if os.geteuid() == 0:  # which it refuses
            command = ["unshare", "--user", "--map-user=1000", "--map-group=1000", *command]
        log = root / "pgbouncer.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)
        try:

            async def look() -> bool:
                assert process.returncode is None, log.read_text()
                with contextlib.suppress(OSError, asyncpg.PostgresError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    return True
                return False

            await eventually(look, what="a pooler")
            yield port
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def serve_through_it(server: Server, forks: Zygote, port: int, settings: dict[str, str]) -> None:
    dsn = await server.make(f"pooled_{port}", "corevo_template")
    pooled = f"postgresql://postgres@127.0.0.1:{port}{urlsplit(dsn).path}"
    if "COREVO_DATABASE_DIRECT_URL" in settings:
        settings["COREVO_DATABASE_DIRECT_URL"] = dsn
    settings = {**QUICKER, **settings}
    async with (
        forks.role(pooled, "worker", APP, settings=settings) as a,
        forks.role(pooled, "worker", APP, settings=settings) as b,
        forks.role(pooled, "web", "--port", "0", settings=settings) as gateway,
    ):
        history = History(dsn, [gateway.url], "pooler")

        async def client(number: int) -> None:
            for _ in range(JOBS // CLIENTS + 1):
                call = await history.submit("paced", "10", key=f"{number}-{len(history.calls)}")
                assert call.outcome == "ok", (call, gateway.output)
                history.follow(call.job_id or "")
                assert await history.until_ended(call.job_id) == "completed"

        await asyncio.gather(*(client(number) for number in range(CLIENTS)))
        long = await history.submit("waits", "x")
        await eventually(lambda: _running(dsn, long.job_id), what="a running job")
        assert (await history.cancel(long.job_id or "")).outcome == "ok"
        assert await history.until_ended(long.job_id) == "cancelled"
        await history.check(TIMINGS)
        await history.close()
        served = await execute(
            dsn,
            "select count(distinct worker_id) as n, count(*) filter (where outcome = 'lost') as lost "
            "from corevo.executions",
        )
        assert (served[0]["n"], served[0]["lost"]) == (2, 0)
        fenced = await execute(dsn, "select name from corevo.workers where fenced_at is not null")
        assert fenced == [], "a live worker was declared dead"
        for role in (a, b, gateway):
            assert "prepared statement" not in role.output and "ProtocolViolation" not in role.output, role.output


async def _running(dsn: str, job_id: str | None) -> bool:
    rows = await execute(dsn, "select 1 from corevo.jobs where id = $1 and state = 'running'", job_id)
    return bool(rows)


async def test_with_a_direct_url_the_dedicated_connection_listens(server: Server, forks: Zygote) -> None:
    async with pgbouncer(server) as port:
        await serve_through_it(server, forks, port, {"COREVO_DATABASE_DIRECT_URL": "here", "COREVO_NOTIFY": "on"})


@pytest.mark.parametrize(
    "ignore",
    ["", ", statement_timeout, lock_timeout, idle_in_transaction_session_timeout, tcp_keepalives_idle, "
         "tcp_keepalives_interval, tcp_keepalives_count, jit"],
    ids=["strict", "ignoring"],
)  # fmt: skip
async def test_without_one_polling_serves_through_the_pooler_alone(server: Server, forks: Zygote, ignore: str) -> None:
    async with pgbouncer(server, ignore=ignore) as port:
        await serve_through_it(server, forks, port, {"COREVO_NOTIFY": "off"})
