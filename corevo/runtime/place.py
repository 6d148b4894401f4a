"""One job's place in a worker: who claimed it, what runs there, why it was told to stop, and how it ended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

import structlog

from corevo.contracts import Claim, ExecutionId, Lane, Outcome, WorkerId
from corevo.errors import AgentFailed
from corevo.runtime.call import BadAgent
from corevo.runtime.mailbox import Mailbox
from corevo.runtime.run import Run
from corevo.runtime.sanitize import clean_text, describe_error, describe_failure

log = structlog.get_logger()

#: `fenced`: others own the job, nothing more may be written. `broken`: ours, but its events cannot be stored.
StopReason = Literal["cancelled", "timed_out", "interrupted", "broken", "fenced"]
BROKEN = ("event_refused", "history_lost")

#: An agent that was told to stop and does not: its job ends all the same, its place stays taken.
STOP_SECONDS = 10.0


@dataclass(slots=True)
class Place:
    """One job on its way through this worker."""

    claim: Claim
    lane: Lane
    taken_at: float
    worker_id: WorkerId
    execution_id: ExecutionId | None = None
    run: Run | None = None
    mailbox: Mailbox | None = None
    has_commands: bool = False  # some came before the start
    task: asyncio.Task[None] | None = None  # the agent's
    stop_reason: StopReason | None = None
    refused: str | None = None  # what the database said it lost to
    finishing: bool = False
    ended: bool = False  # the database has it, or others do: nothing more is to be written
    patience_seconds: float = STOP_SECONDS
    missed_beats: int = 0
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self, reason: StopReason) -> None:
        """Cancels the agent, once; the first reason stays, but for a fence, which forbids every further write."""
        if self.stop_reason is None or reason == "fenced":
            self.stop_reason = reason
        self.stopping.set()
        if self.task is not None and not self.task.done() and self.run is not None and not self.run.cancelled:
            self.run._cancel()
            self.task.cancel()


def judge(place: Place) -> tuple[Outcome, str, str | None]:
    """The outcome, its reason (a stable code) and words for people."""
    task = place.task
    assert task is not None
    if place.stop_reason == "broken":
        return "failed", place.refused or "event_refused", "the run's events could not be stored"
    if place.stop_reason == "cancelled":
        return "cancelled", "cancelled", None
    if place.stop_reason == "timed_out":
        return "timed_out", "deadline", "the run took longer than it may"
    if place.stop_reason == "interrupted":
        return "interrupted", "worker_stopping", "the worker was stopped, by a deploy for instance"
    if task.cancelled():
        return "failed", "agent_error", "the agent cancelled itself"
    error = task.exception()
    if error is None:
        return "completed", "completed", None
    if isinstance(error, AgentFailed):
        reason, message = describe_failure(error)
        log.warning("agent failed", job_id=str(place.claim.job_id), agent=task.get_name(), code=reason, why=message)
        return "failed", reason, message
    log.warning("agent failed", job_id=str(place.claim.job_id), agent=task.get_name(), exc_info=error)
    if isinstance(error, BadAgent):
        return "failed", "bad_agent", clean_text(str(error))
    return "failed", "agent_error", describe_error(error)
