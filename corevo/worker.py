"""The worker: claims, starts and runs jobs; beats; obeys commands; drains. Holds no client connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from uuid import UUID, uuid4

import structlog
from starlette.applications import Starlette

from corevo import __version__, clock, metrics
from corevo.contracts import JOB_CHANNEL, LANES, WORK_CHANNEL, Claim, JobId, OwnedJob, WorkerId
from corevo.errors import CorevoError, Unavailable, UsageError, WorkerFenced
from corevo.janitor import Janitor
from corevo.process import Process
from corevo.pulse import Heart
from corevo.runtime.claiming import Claimer
from corevo.runtime.executor import Executor
from corevo.runtime.registry import Agent, load
from corevo.runtime.writer import EventWriter
from corevo.settings import Settings, load_settings
from corevo.store import workers
from corevo.tasks import Background

log = structlog.get_logger()

CHANNELS = (WORK_CHANNEL, JOB_CHANNEL)
#: Kept of the grace for ending what was interrupted.
ENDING_SECONDS = 5.0
#: Of these, kept for storing the endings of agents that do not stop.
STORING_SECONDS = 2.5
#: A last word that the database does not take by then is left to the janitor.
SAY_SECONDS = 1.0
LOOK_SECONDS = 0.1
REGISTER_RETRY_SECONDS = 2.0


class Worker:
    """One worker's life: `begin`, `run` until cancelled, `drain`. Implements contracts.LocalWorker for solo."""

    def __init__(self, process: Process, agents: dict[str, Agent]) -> None:
        self.worker_id = WorkerId(uuid4())
        self.draining = False
        settings, db, notifier = process.settings, process.db, process.notifier
        self._settings = settings
        self._db = db
        self._listening = process.listening
        self._database_silent = db.silent_seconds
        self._agents = agents
        self._retired = False
        self._ends_at = 0.0
        self._wake = asyncio.Event()
        self._good_beat = clock.seconds()
        self._claimed_at = clock.seconds()
        self.writer = EventWriter(db, notifier, payload=settings.notify_payload == "on")
        self.executor = Executor(
            db,
            notifier,
            self.writer,
            worker_id=self.worker_id,
            agents=agents,
            places={"normal": settings.places, "heavy": settings.heavy_places},
            on_free=self._wake.set,
            may_start=self.may_start,
        )
        self._claimer = Claimer(db, self.executor, agents.values(), poll_seconds=settings.poll_seconds)
        self.heart = Heart(self.worker_id, self._on_beat, self._on_refused, self._may_beat)
        process.checks.append(self._why_not)
        process.samplers.append(self._sample)
        process.facts["running"] = lambda: len(self.executor.jobs)

    # ── life ──────────────────────────────────────────────────────────────────────────────────────────

    async def begin(self) -> None:
        """Registers this incarnation and its agents."""
        began = clock.seconds()
        await workers.register(
            self._db,
            self.worker_id,
            name=self._settings.process_name,
            version=__version__,
            agents=[agent.spec(self._settings.agent_timeout_seconds) for agent in self._agents.values()],
        )
        self._good_beat = began
        self.executor.worker_id = self.worker_id
        self.heart.worker_id = self.worker_id
        log.info("worker began", worker_id=str(self.worker_id), agents=sorted(self._agents))

    async def begin_surely(self) -> None:
        """At the start: a database that went away after the gate, or takes no writes, is waited for."""
        while True:
            try:
                return await self.begin()
            except Unavailable as error:
                log.warning("could not register; trying again", error=str(error), retry_seconds=REGISTER_RETRY_SECONDS)
                self.worker_id = WorkerId(uuid4())  # the answer may be what got lost
            await asyncio.sleep(REGISTER_RETRY_SECONDS)

    def start(self, background: Background) -> None:
        background.start(self.writer.run(), "event writer")
        background.start(self.run(), "claim loop")

    async def run(self) -> None:
        """Claims until drained. Woken by messages, correct by polling."""
        while True:
            self._claimed_at = clock.seconds()
            if self.heart.worker_id is None:
                await self._begin_again()
            again = False
            if self.may_start():
                try:
                    again = await self._claimer.claim(self.worker_id)
                except WorkerFenced:
                    self.heart.worker_id = None
                    self._on_refused(self.worker_id)
            if not again:
                await self._rest()

    async def _rest(self) -> None:
        seconds = await self._claimer.rest_seconds(listening=self._listening())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    def stop_claiming(self) -> None:
        """In the tick of the signal, from which the grace counts; may be called again."""
        if not self.draining:
            self.draining = True
            self._ends_at = clock.seconds() + self._settings.stop_grace_seconds
        self._wake.set()

    async def drain(self) -> None:
        """Takes nothing more, gives back what did not start, lets runs finish within the grace, interrupts the rest."""
        self.stop_claiming()
        try:
            async with asyncio.timeout(SAY_SECONDS):
                await workers.drain(self._db, self.worker_id)
        except (CorevoError, TimeoutError) as error:
            log.warning("could not say that this worker drains", error=str(error))
        if not await self._ended_by(self._ends_at - ENDING_SECONDS):
            log.warning("interrupting runs", count=self.executor.unended)
            self.executor.interrupt_all(max(0.0, self._ends_at - clock.seconds() - STORING_SECONDS))
            await self._ended_by(self._ends_at - SAY_SECONDS)

    async def retire(self) -> None:
        """The last word; the heartbeat has outlived the last job."""
        self._retired = True
        self.heart.worker_id = None
        try:
            async with asyncio.timeout(SAY_SECONDS):
                await workers.retire(self._db, self.worker_id)
        except (CorevoError, TimeoutError) as error:
            log.warning("could not say goodbye; a janitor will notice", error=str(error))

    # ── for solo: the local direct path ───────────────────────────────────────────────────────────────

    def reserve(self) -> bool:
        return not self.draining and self.executor.reserve("normal")

    def take(self, claim: Claim) -> None:
        self.executor.give_back("normal")
        self.executor.take(claim, "normal")

    def give_back(self) -> None:
        self.executor.give_back("normal")
        self._wake.set()

    # ── what comes from the pulse, in the main loop ───────────────────────────────────────────────────

    def on_message(self, channel: str, payload: str) -> None:
        if channel == WORK_CHANNEL:
            self._wake.set()
        elif channel == JOB_CHANNEL and self.executor.jobs:
            self.executor.hear_jobs([JobId(UUID(line)) for line in payload.split("\n")])

    def resync(self) -> None:
        self._wake.set()

    def may_start(self) -> bool:
        """False while draining, and while suspended: no good beat for two thirds of the TTL."""
        silent = clock.seconds() - self._good_beat
        return not self.draining and silent < self._settings.heartbeat_ttl_seconds * 2 / 3

    def _on_beat(self, owned: list[OwnedJob], began: float) -> None:
        self._good_beat = began
        self.executor.hear_beat(owned, began)

    def _on_refused(self, worker_id: WorkerId) -> None:
        if worker_id == self.worker_id and self.heart.worker_id != self.worker_id and not self._retired:
            log.error("this worker was declared dead; its runs end here", worker_id=str(worker_id))
            self.executor.fence_all()
            self._wake.set()

    def _why_not(self) -> str | None:
        if self.may_start():
            return None
        return "draining" if self.draining else "suspended: no heartbeat was taken lately"

    def _sample(self) -> None:
        for lane in LANES:
            metrics.PLACES_BUSY.set({"lane": lane}, self.executor.places[lane] - self.executor.free(lane))

    def _may_beat(self) -> str | None:
        silent = clock.seconds() - self._claimed_at
        if not self.draining and silent > self._settings.poll_seconds * 2 + self._settings.loop_stall_limit_seconds:
            return "claim_loop_dead"
        if self._database_silent() > self._settings.loop_stall_limit_seconds:
            return "connections_dead"
        return None

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────

    async def _begin_again(self) -> None:
        """A refused worker comes back as a new incarnation, once its old runs have ended."""
        if self.draining:
            return
        await self._ended_by(clock.seconds() + 2 * ENDING_SECONDS)
        self.worker_id = WorkerId(uuid4())
        try:
            await self.begin()
        except CorevoError as error:
            log.warning("could not register again", error=str(error))
            await asyncio.sleep(REGISTER_RETRY_SECONDS)

    async def _ended_by(self, moment: float) -> bool:
        """Waits until no job of ours is unended in the database; False when `moment` came first."""
        while self.executor.unended:
            left = moment - clock.seconds()
            if left <= 0:
                return False
            await self.executor.wait_for_one(min(left, LOOK_SECONDS))
        return True


def create_app(settings: Settings | None = None, app: str | None = None) -> Starlette:
    """The role with its health routes. `app` (else COREVO_APP) names the module or file with the agents."""
    settings = settings or load_settings()
    process = Process(settings, "worker")
    worker = Worker(process, load_agents(settings, app, "worker"))
    janitor = Janitor(settings, process.db, process.notifier)
    process.add_pulse(CHANNELS, worker.on_message, worker.resync, worker.heart)

    @asynccontextmanager
    async def lifespan(starlette: Starlette) -> AsyncIterator[None]:
        await process.pass_gate()
        await worker.begin_surely()
        process.begin()
        worker.start(process.background)
        process.background.start(janitor.run(), "janitor")
        try:
            yield
        finally:
            await worker.drain()
            await worker.retire()
            await process.end()

    starlette = Starlette(routes=process.routes(), lifespan=lifespan)
    starlette.state.on_stop = worker.stop_claiming
    return starlette


def load_agents(settings: Settings, app: str | None, role: str) -> dict[str, Agent]:
    if settings.places + settings.heavy_places == 0:
        raise UsageError("COREVO_PLACES and COREVO_HEAVY_PLACES are both 0: nothing could run")
    target = app or settings.app
    if not target:
        raise UsageError(f"name the agents to serve: `corevo {role} APP`, or COREVO_APP")
    return load(target)


def __getattr__(name: str) -> Starlette:
    """`uvicorn corevo.worker:app` makes the app on first use; COREVO_APP names the agents."""
    if name == "app":
        return create_app()
    raise AttributeError(name)
