"""The janitor: converges what nobody owns. Every worker offers itself; two at once, or none for a while, are harmless.

It decides nothing that the database does not decide again under its locks. The duty is a row that only a finished
sweep renews; a frozen janitor loses it by doing nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from uuid import uuid4

import structlog
from starlette.applications import Starlette

from corevo import clock, metrics, wire
from corevo.contracts import EVENT_CHANNEL, JOB_CHANNEL, WORK_CHANNEL, Event, JobId, Swept
from corevo.errors import CorevoError
from corevo.notifier import Notifier
from corevo.process import Process
from corevo.settings import Settings, load_settings
from corevo.store import events, janitor
from corevo.store.connections import Connections

log = structlog.get_logger()

DUTY = "janitor"
#: A duty's lease, in sweep periods: longer than the longest pause between two sweeps. Whoever does not hold it looks
#: twice a period. So a dead janitor's place is taken before the hole between sweeps reaches half the TTL, which is at
#: least two periods (corevo.settings); a longer hole would begin the watch over, and a loss would wait for a TTL more.
LEASE_PERIODS = 1.2
LOOKS_A_PERIOD = 2
#: How long after its deadline, or after a cancel, a run that its owner does not end is ended here.
LATE_SECONDS = 20.0
JOBS_A_SWEEP = 200
LATE_PERIODS = 6
DAYS_AHEAD = 7
KEEP_HOUSE_SECONDS = 3600.0
PRUNE_ROWS = 5000


class Janitor:
    """One offer to do the duty; `run` sweeps for as long as it is held."""

    def __init__(self, settings: Settings, db: Connections, notifier: Notifier) -> None:
        self.holds_duty = False
        self.swept_at = 0.0
        self._settings = settings
        self._db = db
        self._notifier = notifier
        self._holder = uuid4()
        self._token = uuid4()
        self._kept_at: float | None = None

    async def run(self) -> None:
        """Sweeps each period until cancelled. A failed sweep is logged and tried again at the next."""
        period = self._settings.janitor_seconds
        try:
            while True:
                try:
                    await self.tick()
                except CorevoError as error:
                    self.holds_duty = False
                    log.warning("a sweep failed", error=str(error))
                    await self._keep_house()  # where a plan's size limit leaves only deleting, nothing else helps
                await asyncio.sleep((period if self.holds_duty else period / LOOKS_A_PERIOD) * random.uniform(0.9, 1.1))
        finally:
            if self.holds_duty:
                self.holds_duty = False
                with suppress(CorevoError):  # its lease runs out by itself
                    await janitor.drop_duty(self._db, DUTY, self._token)

    def why_not(self) -> str | None:
        late = clock.seconds() - self.swept_at > LATE_PERIODS * self._settings.janitor_seconds
        return "no sweep lately" if self.holds_duty and late else None

    async def tick(self) -> None:
        """Takes or keeps the duty, then does one sweep."""
        settings = self._settings
        duty = await janitor.hold_duty(
            self._db,
            DUTY,
            self._holder,
            self._token,
            lease_seconds=LEASE_PERIODS * settings.janitor_seconds,
            ttl_seconds=settings.heartbeat_ttl_seconds,
        )
        self.holds_duty = duty.held
        if not duty.held:
            return
        if duty.watched_seconds >= settings.heartbeat_ttl_seconds:  # what nobody watched, nobody may call dead
            for worker_id, name in await janitor.fence_workers(self._db, settings.heartbeat_ttl_seconds):
                log.warning("a worker is silent and was declared dead", worker_id=str(worker_id), worker=name)
        for job_id in await janitor.jobs_to_sweep(self._db, late_seconds=LATE_SECONDS, limit=JOBS_A_SWEEP):
            await self._one("sweep", job_id)
        for job_id in await janitor.jobs_to_expire(
            self._db, limit_seconds=settings.queue_start_seconds, limit=JOBS_A_SWEEP
        ):
            await self._one("expire", job_id)
        ended = await janitor.end_stuck_backends(self._db, settings.heartbeat_ttl_seconds)
        if ended:
            log.warning("ended database sessions of frozen clients", count=ended)
        self.swept_at = clock.seconds()
        metrics.SWEEPS.inc({})
        await self._keep_house()

    async def _keep_house(self) -> None:
        """Once an hour: days of events ahead and behind, old small rows. Each part for itself: none stops another."""
        if self._kept_at is not None and clock.seconds() - self._kept_at <= KEEP_HOUSE_SECONDS:
            return
        self._kept_at = clock.seconds()
        for part in (self._make_days, self._remove_days, self._prune_rows):
            try:
                await part()
            except CorevoError as error:
                log.error("housekeeping failed; it is tried again", part=part.__name__.strip("_"), error=str(error))
                self._kept_at = clock.seconds() - KEEP_HOUSE_SECONDS * 0.9

    async def _make_days(self) -> None:
        made = await events.ensure_partitions(self._db, DAYS_AHEAD)
        if made:
            log.info("made day partitions for events", count=made)

    async def _remove_days(self) -> None:
        days = self._settings.event_retention_days
        for name, state in await events.old_partitions(self._db, days):
            try:
                await events.remove_partition(self._db, name, state)
                log.info("removed a day of events", partition=name)
                metrics.DAYS_REMOVED.inc({})
            except CorevoError as error:
                log.warning("a day of events cannot be dropped; deleting its rows", partition=name, error=str(error))
                while pruned := await events.prune_events(self._db, days, PRUNE_ROWS):
                    log.info("deleted old events", count=pruned)
                return

    async def _prune_rows(self) -> None:
        while await janitor.prune_rows(self._db, PRUNE_ROWS) >= PRUNE_ROWS:
            pass

    async def _one(self, what: str, job_id: JobId) -> None:
        """One job, one transaction; its failure must not stop the sweep."""
        try:
            if what == "sweep":
                self._tell(await janitor.sweep_job(self._db, job_id, late_seconds=LATE_SECONDS))
                return
            expired, promoted = await janitor.expire_job(
                self._db, job_id, limit_seconds=self._settings.queue_start_seconds
            )
            if expired:
                self._tell(Swept(job_id, "expired", None, None, None, None, None, promoted))
        except CorevoError as error:
            log.error("a job could not be swept; going on", what=what, job_id=str(job_id), error=str(error))

    def _tell(self, swept: Swept) -> None:
        if swept.result in ("busy", "nothing"):
            return
        log.info("swept a job", job_id=str(swept.job_id), result=swept.result)
        metrics.SWEPT.inc({"result": swept.result})
        if swept.execution_id and swept.epoch and swept.terminal_seq and swept.terminal_type and swept.terminal_data:
            terminal = Event(swept.terminal_seq, swept.terminal_type, swept.terminal_data)
            payload = self._settings.notify_payload == "on"
            for block in wire.encode(swept.job_id, swept.execution_id, swept.epoch, [terminal], payload=payload):
                self._notifier.post(EVENT_CHANNEL, block)
        self._notifier.post(JOB_CHANNEL, str(swept.job_id))
        if swept.promoted:
            self._notifier.post(JOB_CHANNEL, str(swept.promoted))
        if swept.promoted or swept.result in ("released", "retry"):
            self._notifier.post_lines(WORK_CHANNEL, ("normal", "heavy"))


def create_app(settings: Settings | None = None) -> Starlette:
    """The role alone, with its health routes."""
    settings = settings or load_settings()
    process = Process(settings, "janitor")
    role = Janitor(settings, process.db, process.notifier)
    process.checks.append(role.why_not)
    process.facts["duty"] = lambda: role.holds_duty

    @asynccontextmanager
    async def lifespan(starlette: Starlette) -> AsyncIterator[None]:
        await process.pass_gate()
        process.begin()
        process.background.start(role.run(), "janitor")
        try:
            yield
        finally:
            await process.end()

    return Starlette(routes=process.routes(), lifespan=lifespan)


def __getattr__(name: str) -> Starlette:
    """`uvicorn corevo.janitor:app` makes the app on first use."""
    if name == "app":
        return create_app()
    raise AttributeError(name)
