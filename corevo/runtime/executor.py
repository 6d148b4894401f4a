"""Runs jobs in the places of a worker: from a claim to the end of its execution.

One task a job owns its whole way here: read, start, run the agent in a task of its own, finish. A place is free again
when the agent's coroutine has really ended, whatever the database said before.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import structlog

from corevo import clock
from corevo.contracts import (
    JOB_CHANNEL,
    WORK_CHANNEL,
    AcceptedCommand,
    Claim,
    ClaimedJob,
    CommandId,
    Event,
    ExecutionId,
    Finish,
    JobId,
    Lane,
    OwnedJob,
    Started,
    WorkerId,
)
from corevo.errors import CorevoError, Stale, Unavailable
from corevo.notifier import Notifier
from corevo.runtime.batching import Batcher
from corevo.runtime.call import call_agent
from corevo.runtime.ending import Endings
from corevo.runtime.ghosts import Ghosts
from corevo.runtime.mailbox import Mailbox, Settle
from corevo.runtime.place import BROKEN, Place, judge
from corevo.runtime.registry import Agent
from corevo.runtime.run import Run
from corevo.runtime.sanitize import encode_answer
from corevo.runtime.writer import EventWriter, RunOutput
from corevo.store import commands, jobs
from corevo.store.connections import Connections

log = structlog.get_logger()

#: What a run sees of its thread at most.
CONTEXT_LIMIT_MESSAGES = 1_000
CONTEXT_LIMIT_CHARACTERS = 1_000_000
RETRY_SECONDS = (0.2, 3.0)
PATIENCE_STEP_SECONDS = 0.25


class Executor:
    """The places of one worker process. `worker_id` changes when an incarnation was fenced and a new one began.

    on_free: called when a place became free.
    may_start: whether this incarnation may begin anything now (it is not suspended).
    """

    def __init__(
        self,
        db: Connections,
        notifier: Notifier,
        writer: EventWriter,
        *,
        worker_id: WorkerId,
        agents: dict[str, Agent],
        places: dict[Lane, int],
        on_free: Callable[[], None],
        may_start: Callable[[], bool],
    ) -> None:
        self.worker_id = worker_id
        self.places = places
        self.jobs: dict[JobId, Place] = {}
        self.claiming: set[UUID] = set()  # requests whose answer is awaited
        self._db = db
        self._notifier = notifier
        self._writer = writer
        self._agents = agents
        self._on_free = on_free
        self._may_start = may_start
        self._reserved: dict[Lane, int] = {"normal": 0, "heavy": 0}
        self._busy: dict[Lane, int] = {"normal": 0, "heavy": 0}
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading = Batcher(self._read_batch)
        self._starting = Batcher(self._start_batch)
        self._endings = Endings(db, notifier, writer)
        self._ghosts = Ghosts(self._endings, self._spawn)
        self._accepting = Batcher(self._accept_batch)

    # ── places ────────────────────────────────────────────────────────────────────────────────────────

    def free(self, lane: Lane) -> int:
        return self.places[lane] - self._busy[lane] - self._reserved[lane]

    def reserve(self, lane: Lane) -> bool:
        """Keeps a place for a job that is about to come. Every reservation is taken or given back."""
        if self.free(lane) <= 0 or not self._may_start():
            return False
        self._reserved[lane] += 1
        return True

    def give_back(self, lane: Lane) -> None:
        self._reserved[lane] -= 1

    def take(self, claim: Claim, lane: Lane) -> None:
        """Begins a claimed job. Returns at once."""
        place = Place(claim, lane, clock.seconds(), self.worker_id)
        self.jobs[claim.job_id] = place
        self._busy[lane] += 1
        self._spawn(self._carry(place))

    async def wait_for_one(self, seconds: float) -> None:
        """Returns when some job has left, or after `seconds`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def _spawn(self, work: Awaitable[None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception:
                log.exception("a job's task failed")

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ── one job's way ─────────────────────────────────────────────────────────────────────────────────

    async def _carry(self, place: Place) -> None:
        try:
            job = await self._prepare(place)
            if job is not None:
                await self._execute(place, job)
        finally:
            place.ended = True
            if place.task is not None and not place.task.done():
                await asyncio.wait([place.task])  # the place is free when the coroutine has ended
            if self.jobs.get(place.claim.job_id) is place:
                del self.jobs[place.claim.job_id]
            self._busy[place.lane] -= 1
            self._on_free()

    async def _prepare(self, place: Place) -> ClaimedJob | None:
        """Reads what the job needs and starts it. None: it is not ours to run, and nothing has begun."""
        try:
            job = await self._reading.ask(place.claim)
            if job is None:
                return None
            if job.agent not in self._agents:
                log.error("claimed a job of an agent that is not served here", agent=job.agent)
                await self._release(place)
                return None
            messages = await jobs.read_context(
                self._db,
                job.thread_id,
                job.turn,
                limit=CONTEXT_LIMIT_MESSAGES,
                limit_characters=CONTEXT_LIMIT_CHARACTERS,
            )
            if place.stop_reason is not None or not self._may_start():
                await self._release(place)
                return None
            started = await self._start(place)
        except Stale:
            return None
        except Unavailable as error:
            log.warning("a claim could not be started", job_id=str(place.claim.job_id), error=str(error))
            await self._release(place)
            return None
        if started.result != "started" or started.execution_id is None or started.remaining_seconds is None:
            log.info(
                "a claim was lost before its start",
                job_id=str(place.claim.job_id),
                lost_to=started.ended_by or started.result,
            )
            return None
        place.execution_id = started.execution_id
        place.mailbox = Mailbox(self._settler(place.claim, started.execution_id))
        place.has_commands = place.has_commands or job.has_commands
        place.run = Run(
            job_id=job.job_id,
            execution_id=started.execution_id,
            thread_id=job.thread_id,
            account_id=job.account_id,
            agent=job.agent,
            messages=messages,
            input=job.input,
            metadata=job.metadata,
            attempt=job.attempt,
            remaining_seconds=started.remaining_seconds,
            output=self._writer.open(
                job.job_id,
                started.execution_id,
                place.claim.epoch,
                place.claim.token,
                lambda why: self._refused(place, why),
            ),
            mailbox=place.mailbox,
        )
        return job

    async def _start(self, place: Place) -> Started:
        """Start is repeatable with the same token, so an unknown outcome is resolved by asking again."""
        delay = RETRY_SECONDS[0]
        while True:
            try:
                return await self._starting.ask(place.claim)
            except Unavailable:
                if not self._may_start():
                    # It may have started. If so the next beats list it as ours: a ghost, ended as lost.
                    raise
            await asyncio.sleep(random.uniform(0.5, 1.0) * delay)
            delay = min(delay * 2, RETRY_SECONDS[1])

    async def _release(self, place: Place) -> None:
        """Gives an unstarted claim back; if that fails the next beat lists it as a ghost and it is released then."""
        try:
            await jobs.release(self._db, place.claim)
            self._notifier.post(WORK_CHANNEL, place.lane)
            self._notifier.post(JOB_CHANNEL, str(place.claim.job_id))
        except CorevoError as error:
            log.info("a claim was not released", job_id=str(place.claim.job_id), error=str(error))

    async def _execute(self, place: Place, job: ClaimedJob) -> None:
        run = place.run
        assert run is not None
        output = run._output
        assert isinstance(output, RunOutput)
        self._writer.publish(output, (Event(1, "run.started", "{}"),))
        self._notifier.post(JOB_CHANNEL, str(job.job_id))
        place.task = asyncio.create_task(
            call_agent(self._agents[job.agent].function, run), name=f"agent {job.agent} job {job.job_id}"
        )
        if place.stop_reason is not None:
            place.stop(place.stop_reason)
        if place.has_commands:
            self._spawn(self._obey(place))
        deadline = asyncio.get_running_loop().call_later(run.deadline, place.stop, "timed_out")
        try:
            await self._until_ended_or_stopped(place)
        finally:
            deadline.cancel()
        outcome, reason, message = judge(place)  # now: a stop that comes while the last events travel is too late
        await self._writer.close(output)
        if place.stop_reason == "fenced":
            log.warning("a run was ended by others", job_id=str(job.job_id), ended_by=place.refused or "fenced")
            return
        if place.stop_reason == "broken":
            outcome, reason, message = judge(place)
        if outcome == "completed" and output.said:
            output.freeze("text.done", encode_answer(output.said))
        tail = () if place.stop_reason == "broken" else output.from_seq(output.stored_seq + 1)
        await self._endings.finish(
            place, output, Finish(output.execution_id, output.token, outcome, reason, message, tail)
        )

    async def _until_ended_or_stopped(self, place: Place) -> None:
        """Returns when the agent has ended, or when its patience is over after it was told to."""
        task = place.task
        assert task is not None
        stopping = asyncio.create_task(place.stopping.wait())
        try:
            await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
            told = clock.seconds()
            while not task.done() and clock.seconds() - told < place.patience_seconds:  # a deploy may shorten it
                await asyncio.wait([task], timeout=min(PATIENCE_STEP_SECONDS, place.patience_seconds))
            if not task.done():
                log.error("an agent swallows its cancellation", agent=task.get_name(), job_id=str(place.claim.job_id))
        finally:
            stopping.cancel()

    # ── what comes from outside ───────────────────────────────────────────────────────────────────────

    def hear_jobs(self, job_ids: Sequence[JobId]) -> None:
        """Commands may be there for these jobs."""
        for job_id in job_ids:
            place = self.jobs.get(job_id)
            if place is None or place.finishing:
                continue
            if place.execution_id is None:
                place.has_commands = True  # asked for as soon as it has started
            else:
                self._spawn(self._obey(place))

    def hear_beat(self, owned: Sequence[OwnedJob], began: float) -> None:
        """Compares what the database says we own with what we know, in both directions."""
        listed = {(job.job_id, job.token) for job in owned}
        unknown = []
        for job in owned:
            place = self.jobs.get(job.job_id)
            if place is not None and place.claim.token == job.token:
                if job.has_commands:
                    self.hear_jobs([job.job_id])
            elif job.claim_request not in self.claiming:
                unknown.append(job)
        self._ghosts.compare(unknown)
        for place in self.jobs.values():
            known = (place.claim.job_id, place.claim.token)
            if known in listed or place.finishing or place.taken_at >= began:
                place.missed_beats = 0
                continue
            place.missed_beats += 1
            if place.missed_beats >= 2 and place.execution_id is not None:
                self._refused(place, "gone")

    def fence_all(self) -> None:
        """This incarnation was declared dead: its runs end here and write nothing more."""
        for place in self.jobs.values():
            place.stop("fenced")

    def interrupt_all(self, patience_seconds: float) -> None:
        """Ends every run as interrupted, also of agents that do not stop within the patience."""
        for place in self.jobs.values():
            place.patience_seconds = min(place.patience_seconds, patience_seconds)
            place.stop("interrupted")

    @property
    def unended(self) -> int:
        """Jobs that are not ended in the database yet. An agent that swallows its cancellation may outlive its job."""
        return sum(not place.ended for place in self.jobs.values())

    def _refused(self, place: Place, ended_by: str) -> None:
        place.refused = ended_by
        place.stop("broken" if ended_by in BROKEN else "fenced")

    def _settler(self, claim: Claim, execution_id: ExecutionId) -> Settle:
        async def settle(command_id: CommandId, state: str) -> str:
            return await commands.settle(self._db, execution_id, claim.token, command_id, state)

        return settle

    async def _obey(self, place: Place) -> None:
        assert place.execution_id is not None
        try:
            accepted = await self._accepting.ask((place.execution_id, place.claim.token))
        except CorevoError as error:
            log.info("commands could not be read; the next beat tells again", error=str(error))
            return
        for command in accepted:
            if command.kind == "cancel":
                place.stop("cancelled")
            elif place.mailbox is not None:
                try:
                    await place.mailbox.deliver(command)
                except Stale as error:
                    log.info("a command came for a run that was taken away", lost_to=error.ended_by)

    # ── batches ───────────────────────────────────────────────────────────────────────────────────────

    async def _read_batch(self, claims: Sequence[Claim]) -> list[ClaimedJob | None]:
        found = {job.job_id: job for job in await jobs.read_claims(self._db, self.worker_id, claims)}
        return [found.get(claim.job_id) for claim in claims]

    async def _start_batch(self, claims: Sequence[Claim]) -> list[Started]:
        answers = await jobs.start(self._db, self.worker_id, claims)
        if any(answer.result == "worker_fenced" for answer in answers):
            log.warning("a start was refused: this worker was declared dead")
        return answers

    async def _accept_batch(self, runs: Sequence[tuple[ExecutionId, UUID]]) -> list[list[AcceptedCommand]]:
        wanted = list(dict.fromkeys(runs))
        accepted = await commands.accept(self._db, wanted)
        return [[c for c in accepted if c.execution_id == execution] for execution, _ in runs]
