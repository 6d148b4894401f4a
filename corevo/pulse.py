"""The pulse: a thread with an event loop and one dedicated connection of its own.

It LISTENs, sends the worker's heartbeat, and watches the main loop. A blocked main loop therefore neither drops the
heartbeat at once nor holds up the server's notification queue. It stops beating on purpose when the process cannot
make progress: a beat asserts that work can go on.

Everything it learns is handed to the main loop through a bounded line; overflow means "read state again".
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import asyncpg
import structlog

from corevo import clock, metrics
from corevo.contracts import PING_CHANNEL, OwnedJob, WorkerId
from corevo.errors import CorevoError
from corevo.settings import Settings
from corevo.stall import Stall, StallWatch
from corevo.store.connections import connect

log = structlog.get_logger()

#: A statement of the pulse that has no answer by then is given up, and so is its connection. Where the TTL is short, a
#: third of it: a black-holed connection must be noticed and replaced before the worker counts as dead.
STATEMENT_SECONDS = 5.0
LAG_SAMPLE_SECONDS = 0.25
#: A tick that takes longer is a stall; it is told at once, and again each time it has doubled.
STALL_SECONDS = 0.25
STALL_TOLD_AGAIN = 2.0
STALLS_KEPT = 50
HANDOVER_LIMIT = 20_000
STOP_SECONDS = 1.5
#: Between attempts at most; a quarter of a short TTL: when the database is back, janitors watch for one TTL only.
RECONNECT_SECONDS = (0.2, 5.0)


class Heart:
    """What a worker wants to hear of its heartbeats. Callbacks run in the main loop.

    on_beat(owned, began): the database took a beat that began at `began` (corevo.clock), and lists what it says we own.
    on_refused(): this incarnation was declared dead; no further beat is sent for it.
    may_beat(): None, or in a word why this process cannot make progress. Called in the pulse's thread.
    """

    def __init__(
        self,
        worker_id: WorkerId,
        on_beat: Callable[[list[OwnedJob], float], None],
        on_refused: Callable[[WorkerId], None],
        may_beat: Callable[[], str | None],
    ) -> None:
        self.worker_id: WorkerId | None = worker_id
        self.on_beat = on_beat
        self.on_refused = on_refused
        self.may_beat = may_beat


class Pulse:
    """`listening` is true while the channel is proved end to end: our own ping came back lately."""

    def __init__(
        self,
        settings: Settings,
        *,
        channels: Sequence[str],
        on_message: Callable[[str, str], None],
        on_resync: Callable[[], None],
        heart: Heart | None = None,
    ) -> None:
        self.listening = False
        self.lag_ms = 0.0
        self.stalled_seconds = 0.0
        self.overflows = 0
        self._settings = settings
        self._channels = tuple(channels) if settings.notify == "on" else ()
        self._on_message = on_message
        self._on_resync = on_resync
        self._heart = heart
        self._line: deque[tuple[str, str]] = deque()
        self._line_lock = threading.Lock()
        self._overflowed = False
        self._drain_due = False
        self._ping = str(uuid4())
        self._pinged_at = 0.0
        self._thread: threading.Thread | None = None
        self._main: asyncio.AbstractEventLoop
        self._own: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._lost: asyncio.Event
        self._ready = threading.Event()
        self._stalls: deque[Stall] = deque(maxlen=STALLS_KEPT)
        self._stall_watch: StallWatch
        self._statement_seconds = min(STATEMENT_SECONDS, settings.heartbeat_ttl_seconds / 3)

    # ── from the main loop ────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        self._main = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._main_thread = threading.current_thread()
        self._stall_watch = StallWatch(self._main_thread, self._main)
        self._thread = threading.Thread(target=self._run_thread, name="corevo-pulse", daemon=True)
        self._thread.start()
        self._ready.wait(10)

    async def stop(self) -> None:
        if self._thread is None:
            return
        self._call_own(self._stop.set)
        with suppress(TimeoutError):  # it is a daemon: a statement that hangs holds up no exit
            async with asyncio.timeout(STOP_SECONDS):
                await self._ended.wait()
        self._stall_watch.close()
        self._thread = None

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _call_own(self, callback: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # its loop has ended
            self._own.call_soon_threadsafe(callback)

    def _drain(self) -> None:
        with self._line_lock:
            messages = list(self._line)
            self._line.clear()
            overflowed, self._overflowed = self._overflowed, False
            self._drain_due = False
        for channel, payload in messages:
            self._on_message(channel, payload)
        if overflowed:
            self._on_resync()

    # ── in the pulse's thread ─────────────────────────────────────────────────────────────────────────

    def _run_thread(self) -> None:
        try:
            asyncio.run(self._run())
        finally:
            self._to_main(self._ended.set)

    async def _run(self) -> None:
        self._own = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._lost = asyncio.Event()
        self._ready.set()
        watch = asyncio.create_task(self._watch_main())
        try:
            if self._channels or self._heart:
                await self._keep_connected()
            else:
                await self._stop.wait()
        finally:
            watch.cancel()

    async def _keep_connected(self) -> None:
        delay = RECONNECT_SECONDS[0]
        while not self._stop.is_set():
            connection: asyncpg.Connection[Any] | None = None
            try:
                self._lost.clear()
                url = self._settings.direct_url
                connection = await connect(
                    url,
                    name="corevo pulse",
                    pooled=self._settings.behind_pooler and url == self._settings.database_url,
                    command_seconds=self._statement_seconds,
                )
                connection.add_termination_listener(lambda _: self._lost.set())
                for channel in self._channels:
                    await connection.add_listener(channel, self._heard)
                if self._channels:
                    await connection.add_listener(PING_CHANNEL, self._heard_ping)
                while not self._stop.is_set() and not self._lost.is_set():
                    await self._round(connection)
                    delay = RECONNECT_SECONDS[0]  # not before: a server that takes no writes lets us in all the same
                    await self._sleep(self._settings.heartbeat_seconds)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, CorevoError) as error:
                log.warning(
                    "pulse lost its connection", error=f"{type(error).__name__}: {error}", retry_seconds=round(delay, 2)
                )
            except Exception as error:  # whatever it is: a worker without a pulse is a dead worker
                log.error("the pulse failed; it goes on", exc_info=error, retry_seconds=round(delay, 2))
            finally:
                self.listening = False
                if connection is not None:
                    await _discard(connection, politely=self._stop.is_set())
            if not self._stop.is_set():
                self._to_main(self._on_resync)
                await self._sleep(random.uniform(0.5, 1.0) * delay, even_if_lost=True)
                delay = min(delay * 2, RECONNECT_SECONDS[1], self._settings.heartbeat_ttl_seconds / 4)

    async def _round(self, connection: asyncpg.Connection[Any]) -> None:
        if self._heart is not None and self._heart.worker_id is not None:
            await self._beat(connection, self._heart, self._heart.worker_id)
        while self._stalls and self._heart is not None and self._heart.worker_id is not None:
            await self._record(connection, self._heart.worker_id, self._stalls[0])
            self._stalls.popleft()
        if self._channels:
            silent = clock.seconds() - self._pinged_at
            if self.listening and silent > 3 * self._settings.heartbeat_seconds:
                self.listening = False
                self._to_main(self._on_resync)
            await connection.execute("select pg_notify($1, $2)", PING_CHANNEL, self._ping)

    async def _record(self, connection: asyncpg.Connection[Any], worker_id: WorkerId, stall: Stall) -> None:
        """A row that people see with psql, for workers that nobody can scrape. The stall that cost an incarnation its
        jobs is told by the next one, under the same name.
        """
        await connection.execute(
            "select corevo.record_stall($1, $2, $3, $4, $5, $6, $7)",
            worker_id,
            self._settings.process_name,
            stall.seconds,
            stall.place,
            stall.task,
            stall.cpu_seconds,
            stall.gc_seconds,
        )

    async def _beat(self, connection: asyncpg.Connection[Any], heart: Heart, worker_id: WorkerId) -> None:
        reason = self._stall() or heart.may_beat()
        if reason is not None:
            log.error("no heartbeat: this process cannot make progress", reason=reason)
            await connection.execute("select corevo.report_trouble($1, $2)", worker_id, reason)
            return
        began = clock.seconds()
        lag, self.lag_ms = self.lag_ms, 0.0
        try:
            rows = await connection.fetch(
                "select job_id, epoch, token, claim_request, execution_id, has_commands from corevo.beat($1, $2)",
                worker_id,
                lag,
            )
        except asyncpg.PostgresError as error:
            if error.sqlstate != "RV004":
                raise
            if heart.worker_id == worker_id:
                heart.worker_id = None
            self._to_main(heart.on_refused, worker_id)
            return
        self._to_main(heart.on_beat, [OwnedJob(**row) for row in rows], began)

    def _stall(self) -> str | None:
        """None, or the trouble in a word."""
        if not self._main_thread.is_alive() or self._main.is_closed():
            return "main_thread_ended"
        if self.stalled_seconds > self._settings.loop_stall_limit_seconds:
            return "loop_blocked"
        return None

    async def _watch_main(self) -> None:
        """Sends the main loop a tick and measures how long it takes to run: the loop's lag. Names what holds it."""
        stall, told = self._stall_watch, 0.0
        while True:
            back = asyncio.Event()
            sent = clock.seconds()
            if not self._to_main(lambda back=back: self._call_own(back.set)):
                return
            stall.mark()
            while not back.is_set():
                try:
                    async with asyncio.timeout(STALL_SECONDS):
                        await back.wait()
                except TimeoutError:
                    self.stalled_seconds = clock.seconds() - sent
                    self.lag_ms = max(self.lag_ms, self.stalled_seconds * 1000)
                    seen = stall.look(self.stalled_seconds)
                    if self.stalled_seconds >= told:  # while it lasts too: it may never end
                        self._tell_stall(seen)
                        told = self.stalled_seconds * STALL_TOLD_AGAIN
            took = clock.seconds() - sent
            self.lag_ms = max(self.lag_ms, took * 1000)
            self.stalled_seconds = 0.0
            ended = stall.done(took)
            if ended is not None:
                self._stalls.append(ended)
                metrics.STALLS.inc({})
            told = 0.0
            await asyncio.sleep(LAG_SAMPLE_SECONDS)

    def _tell_stall(self, stall: Stall) -> None:
        log.warning(
            "the event loop is blocked",
            place=stall.place,
            task=stall.task,
            seconds=round(stall.seconds, 3),
            cpu_seconds=round(stall.cpu_seconds, 3),
            gc_seconds=round(stall.gc_seconds, 3),
        )

    def _heard(self, _connection: Any, _pid: int, channel: str, payload: object) -> None:
        with self._line_lock:
            if len(self._line) >= HANDOVER_LIMIT:
                self._line.clear()
                self._overflowed = True
                self.overflows += 1
            self._line.append((channel, str(payload)))
            if self._drain_due:
                return
            self._drain_due = True
        self._to_main(self._drain)

    def _heard_ping(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        if payload != self._ping:
            return
        self._pinged_at = clock.seconds()
        if not self.listening:
            self.listening = True
            self._to_main(self._on_resync)  # what was said before LISTEN was answered is read from the tables

    def _to_main(self, callback: Callable[..., None], *args: object) -> bool:
        try:
            self._main.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            return False  # the main loop has ended
        return True

    async def _sleep(self, seconds: float, *, even_if_lost: bool = False) -> None:
        waits = [asyncio.create_task(self._stop.wait())]
        if not even_if_lost:
            waits.append(asyncio.create_task(self._lost.wait()))
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


async def _discard(connection: asyncpg.Connection[Any], *, politely: bool) -> None:
    if not politely:  # it may be a black hole: a farewell would cost the time that the next beat needs
        connection.terminate()
        return
    try:
        await connection.close(timeout=1.0)
    except Exception:
        connection.terminate()
