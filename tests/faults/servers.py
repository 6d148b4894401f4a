"""A Postgres of a scenario's own, with everything that can happen to one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote, urlsplit

import asyncpg

from corevo.embedded import LocalPostgres, has_ended, is_postgres_of, pauses
from corevo.store.migrations import migrate
from tests.server import FAST, beside

Shutdown = Literal["fast", "immediate"]
SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
STOP_SECONDS = 30.0
RELOAD_SECONDS = 0.1

#: corevo.notify as it would be if no message ever arrived, each arrived twice, or the n-th got lost.
NOTIFY = {
    "on": "begin perform pg_notify(c, p) from unnest(p_channels, p_payloads) n (c, p); end",
    "off": "begin return; end",
    "doubled": """
begin
  perform pg_notify(c, p) from unnest(p_channels || p_channels, p_payloads || p_payloads) n (c, p);
end""",
    "one lost": """
declare v_n bigint;
begin
  select nextval('public.notified') into v_n;
  if v_n <> 3 then perform pg_notify(c, p) from unnest(p_channels, p_payloads) n (c, p); end if;
end""",
}


class Server(LocalPostgres):
    """`maintenance` is the DSN of a database to create others from. Every step here has happened when it returns."""

    maintenance: str

    def __enter__(self) -> Server:
        self.maintenance = self.start()
        return self

    def down(self, how: Shutdown) -> None:
        found = self._read_server_file()
        assert found is not None, "the server is down already"
        os.kill(found.pid, SIGNALS[how])
        for _ in pauses(STOP_SECONDS):
            if not is_postgres_of(found.pid, self.data):
                has_ended(found.pid)
                return
        raise AssertionError(f"Postgres does not stop; see {self.log}")

    def up(self) -> None:
        with self._turn() as turn:
            self._start_server(turn)

    async def restart(self, how: Shutdown, *, away_seconds: float = 0.0) -> None:
        await asyncio.to_thread(self.down, how)
        await asyncio.sleep(away_seconds)
        await asyncio.to_thread(self.up)

    @property
    def socket_path(self) -> str:
        host = urlsplit(self.maintenance).query.partition("host=")[2].partition("&")[0]
        return unquote(host) + "/.s.PGSQL.5432"

    async def run(self, sql: str, database: str = "postgres") -> list[asyncpg.Record]:
        """As the superuser, whatever the database's defaults say."""
        connection = await asyncpg.connect(
            beside(self.maintenance, database), server_settings={"default_transaction_read_only": "off"}
        )
        try:
            rows: list[asyncpg.Record] = await connection.fetch(sql)
            return rows
        finally:
            await connection.close()

    async def set(self, **settings: object) -> None:
        """ALTER SYSTEM, in force at once for every session; None resets."""
        for name, value in settings.items():
            quoted = "" if value is None else str(value).replace("'", "''")
            command = f"alter system reset {name}" if value is None else f"alter system set {name} = '{quoted}'"
            await self.run(command)
        await self.run("select pg_reload_conf()")
        await asyncio.sleep(RELOAD_SECONDS)  # the signal goes from process to process, and nobody tells when it arrived

    async def make(self, name: str, template: str = "template0") -> str:
        await self.run(f'create database "{name}" template "{template}" encoding \'UTF8\' strategy file_copy')
        return beside(self.maintenance, name)

    async def make_template(self) -> None:
        """corevo_template: migrated, and nobody connects to it."""
        await migrate(await self.make("corevo_template"))

    def fill_disk(self) -> Path:
        """Until nothing fits any more; returns the file to delete."""
        filler = self.root / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"x" * size)
        return filler

    async def end_sessions(self, application: str = "corevo%") -> int:
        rows = await self.run(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            f"where application_name like '{application}' and pid <> pg_backend_pid()"
        )
        return len(rows)


class MountError(Exception):
    """This machine lets us mount nothing."""


@contextlib.contextmanager
def _small(folder: str, size_mb: int | None) -> Iterator[None]:
    if size_mb is None:
        yield
        return
    options = f"size={size_mb}m,mode=0700"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], capture_output=True, text=True)
    if done.returncode:
        raise MountError(done.stderr)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextlib.contextmanager
def served(settings: Mapping[str, object] | None = None, small_mb: int | None = None) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="corevo-faults-pg-") as folder, _small(folder, small_mb):
        server = Server(Path(folder), {**FAST, **(settings or {})})
        server.maintenance = server.start()
        try:
            yield server
        finally:
            with contextlib.suppress(AssertionError):
                if server._read_server_file() is None:
                    server.up()
            server.stop()


@contextlib.asynccontextmanager
async def a_server(*, small_mb: int | None = None, **settings: object) -> AsyncIterator[Server]:
    """A server with a migrated template; on a small disk of its own where mounting is allowed (else MountError)."""
    with served(settings, small_mb) as server:
        await server.make_template()
        yield server


async def execute(dsn: str, sql: str, *args: object) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(dsn)
    try:
        rows: list[asyncpg.Record] = await connection.fetch(sql, *args)
        return rows
    finally:
        await connection.close()


async def notify_as(dsn: str, how: str) -> None:
    """Replaces corevo.notify in this database: off, doubled, one lost."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("create sequence if not exists public.notified")
        names = await connection.fetchval("select pg_get_function_arguments('corevo.notify'::regproc)")
        await connection.execute(
            f"create or replace function corevo.notify({names}) returns void language plpgsql as "
            f"$body$ {NOTIFY[how]} $body$"
        )
    finally:
        await connection.close()


async def clock_at(dsn: str, offset: str) -> None:
    """The protocol's clock goes on from `offset` ('2 hours', '-1 day') beside the real one."""
    await execute(
        dsn,
        "create or replace function corevo.now() returns timestamptz language sql volatile as "
        f"$body$ select clock_timestamp() + interval '{offset}' $body$",
    )


def with_user(dsn: str, user: str) -> str:
    return dsn.replace("postgres@", f"{quote(user)}@", 1)
