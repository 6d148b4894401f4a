"""How this worker ends executions: with the database's answer, whatever it takes."""

from __future__ import annotations

import asyncio
import random

import structlog

from corevo import metrics
from corevo.contracts import JOB_CHANNEL, LANES, WORK_CHANNEL, Claim, Event, Finish, Finished, OwnedJob
from corevo.errors import ProtocolError, Unavailable
from corevo.notifier import Notifier
from corevo.runtime.batching import Batcher
from corevo.runtime.place import Place
from corevo.runtime.writer import EventWriter, RunOutput
from corevo.store import jobs
from corevo.store.connections import Connections

log = structlog.get_logger()

RETRY_SECONDS = (0.2, 3.0)
#: Endings that wait together travel together.
BATCH_LIMIT = 20


class Endings:
    """Finishes runs, and what was found to be ours and running nowhere."""

    def __init__(self, db: Connections, notifier: Notifier, writer: EventWriter) -> None:
        self._db = db
        self._notifier = notifier
        self._writer = writer
        self._finishing: Batcher[Finish, Finished] = Batcher(lambda batch: jobs.finish(db, batch), limit=BATCH_LIMIT)

    async def finish(self, place: Place, output: RunOutput, ending: Finish) -> None:
        """Ends the execution. Repeats until the database has answered: what happened is asked, never guessed."""
        place.finishing = True
        delay = RETRY_SECONDS[0]
        unknown = False
        while True:
            try:
                answer = await self._finishing.ask(ending)
            except Unavailable as error:
                unknown = True
                if place.stop_reason == "fenced":
                    return
                log.warning("an ending waits for the database", job_id=str(place.claim.job_id), error=str(error))
                await asyncio.sleep(random.uniform(0.5, 1.0) * delay)
                delay = min(delay * 2, RETRY_SECONDS[1])
                continue
            except ProtocolError as error:
                log.error(
                    "an ending was refused; ending it without its last words",
                    job_id=str(place.claim.job_id),
                    error=str(error),
                )
                ending = Finish(
                    ending.execution_id,
                    ending.token,
                    "failed",
                    "event_refused",
                    "its last events could not be stored",
                    (),
                )
                await asyncio.sleep(delay)  # should even that be refused
                continue
            if answer.result == "gap":
                again = self._writer.rewind(output, answer.stored_seq or 0)
                tail = output.from_seq(output.stored_seq + 1) if again else ()
                ending = Finish(ending.execution_id, ending.token, ending.outcome, ending.reason, ending.message, tail)
                continue
            break
        if answer.result == "fenced":
            if not unknown:
                log.warning("an ending came too late", job_id=str(place.claim.job_id), ended_by=answer.ended_by)
            self._notifier.post(JOB_CHANNEL, str(place.claim.job_id))
            return
        metrics.JOBS_ENDED.inc({"outcome": ending.outcome})
        if answer.terminal_seq is not None and answer.terminal_data is not None:
            terminal = Event(answer.terminal_seq, f"run.{ending.outcome}", answer.terminal_data)
            self._writer.publish(output, (*ending.tail, terminal))
        self._notifier.post(JOB_CHANNEL, str(place.claim.job_id))
        if answer.promoted is not None:
            self._notifier.post(JOB_CHANNEL, str(answer.promoted))
        if answer.promoted is not None or answer.result == "retry":
            self._notifier.post(WORK_CHANNEL, place.lane)

    async def end_ghost(self, job: OwnedJob) -> None:
        """Gives back what did not start, ends what did as lost. Raises Stale when others were quicker, Unavailable."""
        if job.execution_id is None:
            await jobs.release(self._db, Claim(job.job_id, job.epoch, job.token))
            self._notifier.post_lines(WORK_CHANNEL, LANES)
        else:
            await self._finishing.ask(
                Finish(job.execution_id, job.token, "lost", "worker_lost", "the worker lost this run", ())
            )
        self._notifier.post(JOB_CHANNEL, str(job.job_id))
