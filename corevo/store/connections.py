"""The process's few database connections, and the one way to call through them.

Every call is one autocommit statement. The connection is held for that statement alone, never across an await of
anything else, so that no task holds two and one connection is enough for everything.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from corevo import clock
from corevo.contracts import Row
from corevo.errors import (
    LASTING_SQLSTATES,
    MOVED_SQLSTATES,
    TRANSIENT_SQLSTATES,
    CorevoError,
    Unavailable,
    from_sqlstate,
)

#: A call that has no answer by then is given up; statement_timeout below it ends it on the server.
CALL_SECONDS = 8.0
CONNECT_SECONDS = 5.0
#: How long a call waits for a free connection before the caller is told that the database is busy.
WAIT_SECONDS = 8.0
ATTEMPTS = 4
CLOSE_SECONDS = 1.0

SESSION_SETTINGS = {
    "statement_timeout": "7000",
    "lock_timeout": "4000",
    "idle_in_transaction_session_timeout": "10000",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "timezone": "UTC",
    "jit": "off",
}

#: Addresses, at most the two that a process has, whose pooler takes no session settings.
_plain: set[str] = set()


async def connect(
    url: str, *, name: str, pooled: bool = False, command_seconds: float = CALL_SECONDS
) -> asyncpg.Connection[Any]:
    """Opens one connection with Corevo's session settings. `pooled`: perhaps through a transaction-mode pooler, where a
    prepared statement may meet another backend, and which refuses most start-up settings (the role's own hold then).
    """
    host = urlsplit(url).hostname
    remote = host not in (None, "", "localhost", "127.0.0.1", "::1") and "sslmode=" not in url

    async def attempt(settings: dict[str, str]) -> asyncpg.Connection[Any]:
        return await asyncpg.connect(
            url,
            timeout=CONNECT_SECONDS,
            command_timeout=command_seconds,
            statement_cache_size=0 if pooled else 200,
            server_settings={"application_name": name, **settings},
            # the library would fall back to plain text by itself
            ssl="require" if remote else None,
        )

    if pooled and url in _plain:
        return await attempt({})
    try:
        return await attempt(SESSION_SETTINGS)
    except asyncpg.ProtocolViolationError:
        if not pooled:
            raise
        _plain.add(url)
        return await attempt({})


class Connections:
    """At most `limit` connections, opened when needed, reused last in first out.

    A failed call never leaves its connection behind in an unknown state: it is closed. A cancelled caller does not
    cancel its statement; the statement ends by itself and the connection comes back then.
    """

    def __init__(self, url: str, *, limit: int, name: str, pooled: bool = False) -> None:
        self.url = url
        self.limit = limit
        self.name = name
        self.pooled = pooled
        self.statements = 0
        self.opened = (
            0  # a server crash closes every connection: the same count later proves that none happened between
        )
        self._idle: list[asyncpg.Connection[Any]] = []
        self._places = asyncio.Semaphore(limit)
        self._calls: set[asyncio.Task[list[Row]]] = set()
        self._silent_since: float | None = None
        self._refused = (float("-inf"), "")
        self._closed = False

    async def fetch(self, sql: str, *args: object) -> list[Row]:
        """Runs one statement and returns its rows. Raises CorevoError's tree and nothing else."""
        for attempt in range(ATTEMPTS):
            try:
                return await self._call(sql, args)
            except asyncpg.PostgresError as error:
                state = error.sqlstate or ""
                if state in TRANSIENT_SQLSTATES and attempt + 1 < ATTEMPTS:
                    await asyncio.sleep(random.uniform(0.01, 0.05) * 2**attempt)
                    continue
                raise from_sqlstate(state, str(error.message or error), str(error.detail or "")) from error
        raise AssertionError("unreachable")

    async def row(self, sql: str, *args: object) -> Row | None:
        rows = await self.fetch(sql, *args)
        return rows[0] if rows else None

    async def value(self, sql: str, *args: object) -> Any:
        rows = await self.fetch(sql, *args)
        return next(iter(rows[0].values())) if rows else None

    def silent_seconds(self) -> float:
        """For how long every call has failed to reach the database; 0 while the last one did reach it."""
        return 0.0 if self._silent_since is None else clock.seconds() - self._silent_since

    def refusal(self, seconds: float) -> str | None:
        """What the database refused within the last `seconds` and will go on refusing until somebody mends it."""
        at, what = self._refused
        return what if clock.seconds() - at <= seconds else None

    async def close(self) -> None:
        """Waits a moment for statements under way, then closes every connection."""
        self._closed = True
        if self._calls:
            await asyncio.wait(self._calls, timeout=CLOSE_SECONDS)
        await self._discard_idle()

    async def _call(self, sql: str, args: tuple[object, ...]) -> list[Row]:
        if self._closed:
            raise Unavailable("this process is stopping")
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._places.acquire()
        except TimeoutError:
            raise Unavailable("all database connections are busy", retry_after_seconds=2) from None
        # a task of its own: a caller that is cancelled must not leave a statement half sent
        task = asyncio.create_task(self._run(sql, args))
        self._calls.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[list[Row]]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved here too, for a caller that went away

    async def _run(self, sql: str, args: tuple[object, ...]) -> list[Row]:
        connection: asyncpg.Connection[Any] | None = None
        try:
            while self._idle and connection is None:
                connection = self._idle.pop()
                if connection.is_closed():
                    connection = None
            if connection is None:
                self.opened += 1
                connection = await connect(self.url, name=self.name, pooled=self.pooled)
            self.statements += 1
            rows: list[Row] = await connection.fetch(sql, *args)
        except asyncpg.PostgresError as error:
            self._silent_since = None
            if (error.sqlstate or "").startswith(LASTING_SQLSTATES):
                self._refused = (clock.seconds(), f"{error.sqlstate} {error.message}")
            refused = (error.sqlstate or "").startswith("RV") or error.sqlstate in TRANSIENT_SQLSTATES
            await self._give_back(connection, keep=refused)
            if (error.sqlstate or "").startswith(MOVED_SQLSTATES):
                await self._discard_idle()
            raise
        except (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            await self._give_back(connection, keep=False)
            self._silent_since = self._silent_since or clock.seconds()
            if isinstance(error, asyncpg.DataError):
                raise CorevoError(f"bad argument for the database: {error}") from error
            raise Unavailable(
                f"the database does not answer ({type(error).__name__})", retry_after_seconds=2
            ) from error
        except BaseException:
            await self._give_back(connection, keep=False)
            raise
        self._silent_since = None
        await self._give_back(connection, keep=True)
        return rows

    async def _discard_idle(self) -> None:
        """After a failover the others are on the wrong node too."""
        while self._idle:
            await _close(self._idle.pop())

    async def _give_back(self, connection: asyncpg.Connection[Any] | None, *, keep: bool) -> None:
        try:
            if connection is not None:
                if keep and not self._closed and not connection.is_closed():
                    self._idle.append(connection)
                else:
                    await _close(connection)
        finally:
            self._places.release()


async def _close(connection: asyncpg.Connection[Any]) -> None:
    try:
        await connection.close(timeout=1.0)
    except Exception:
        connection.terminate()
