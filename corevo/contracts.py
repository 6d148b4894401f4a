"""What the layers say to each other: ids, states and small frozen records. Imports nothing of Corevo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NewType, Protocol
from uuid import UUID

AccountId = NewType("AccountId", UUID)
ThreadId = NewType("ThreadId", UUID)
JobId = NewType("JobId", UUID)
ExecutionId = NewType("ExecutionId", UUID)
CommandId = NewType("CommandId", UUID)
WorkerId = NewType("WorkerId", UUID)

Lane = Literal["normal", "heavy"]
LANES: tuple[Lane, ...] = ("normal", "heavy")
OnBusy = Literal["join", "replace", "enqueue", "reject", "steer"]
Outcome = Literal["completed", "failed", "cancelled", "interrupted", "timed_out", "lost"]

#: How a job's life can stand. The last seven are terminal.
JobState = Literal[
    "queued", "running", "completed", "failed", "cancelled", "interrupted", "timed_out", "lost", "expired"
]
UNENDED_STATES = frozenset({"queued", "running"})

#: The channels of NOTIFY: few and fixed, never one a job.
WORK_CHANNEL = "corevo_work"  # a job may be claimable; payload: its lane
JOB_CHANNEL = "corevo_job"  # a job's state or commands changed; payload: job ids, one a line
EVENT_CHANNEL = "corevo_event"  # events were stored; payload: see corevo.wire
PING_CHANNEL = "corevo_ping"  # a pulse listens for its own

#: The server refuses 8000 bytes and more; below it with some room.
NOTIFY_LIMIT_BYTES = 7900


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a thread, as an agent sees it. `status` of an assistant message: the state its job ended in."""

    role: str
    text: str
    status: str | None = None
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """What a worker registers of an agent."""

    name: str
    lane: Lane = "normal"
    timeout_seconds: float = 300.0
    retry_safe: bool = False
    max_attempts: int = 1


@dataclass(frozen=True, slots=True)
class Claim:
    """One generation of ownership: epoch orders, token names."""

    job_id: JobId
    epoch: int
    token: UUID


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """What a claimed job needs to run."""

    job_id: JobId
    thread_id: ThreadId
    account_id: AccountId
    turn: int
    agent: str
    lane: Lane
    input: Any
    metadata: Any
    timeout_seconds: float
    attempt: int
    max_attempts: int
    created_at: datetime
    has_commands: bool


@dataclass(frozen=True, slots=True)
class Started:
    """The answer to one start. `execution_id` and `remaining_seconds` only when `result` is `started`."""

    job_id: JobId
    result: Literal["started", "stale", "worker_fenced"]
    execution_id: ExecutionId | None
    remaining_seconds: float | None
    ended_by: str | None


@dataclass(frozen=True, slots=True)
class Event:
    """One fact of an execution. `data` is JSON text, frozen when it was numbered."""

    seq: int
    type: str
    data: str


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as it is read back."""

    execution_id: ExecutionId
    epoch: int
    seq: int
    type: str
    data: str


@dataclass(frozen=True, slots=True)
class Append:
    """Events of one run for one append, without a gap from `first_seq` (at least 2) on.

    Without events it only asks whether everything below `first_seq` is stored.
    """

    execution_id: ExecutionId
    token: UUID
    first_seq: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Appended:
    """The answer for one run. On `gap` send again from `stored_seq + 1`; positions are of the server's log."""

    execution_id: ExecutionId
    result: Literal["stored", "gap", "busy", "fenced"]
    ended_by: str | None
    stored_seq: int | None
    insert_lsn: int
    flush_lsn: int


@dataclass(frozen=True, slots=True)
class Finish:
    """One ending. `reason` is a stable code, `message` a sentence for people, `tail` what no append acknowledged."""

    execution_id: ExecutionId
    token: UUID
    outcome: Outcome
    reason: str
    message: str | None
    tail: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer for one ending; the terminal event's seq and data when it `ended` or will `retry`."""

    execution_id: ExecutionId
    result: Literal["ended", "retry", "gap", "fenced"]
    ended_by: str | None
    stored_seq: int | None
    job_id: JobId | None
    terminal_seq: int | None
    terminal_data: str | None
    promoted: JobId | None


@dataclass(frozen=True, slots=True)
class OwnedJob:
    """What the database says a worker owns: one row of a beat's reply."""

    job_id: JobId
    epoch: int
    token: UUID
    claim_request: UUID | None
    execution_id: ExecutionId | None
    has_commands: bool


@dataclass(frozen=True, slots=True)
class AcceptedCommand:
    command_id: CommandId
    execution_id: ExecutionId
    kind: Literal["cancel", "input", "answer"]
    payload: Any


@dataclass(frozen=True, slots=True)
class Command:
    id: CommandId
    kind: str
    state: Literal["requested", "accepted", "done", "already_finished", "returned", "unknown"]
    requested_at: datetime
    accepted_at: datetime | None
    done_at: datetime | None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The answer to a cancel: `ended` when the job had not started and this call ended it."""

    command_id: CommandId
    ended: bool
    promoted: JobId | None


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep decided about one job, with the terminal event of the execution it ended."""

    job_id: JobId
    result: str
    execution_id: ExecutionId | None
    epoch: int | None
    terminal_type: str | None
    terminal_seq: int | None
    terminal_data: str | None
    promoted: JobId | None


@dataclass(frozen=True, slots=True)
class Admission:
    """One request to run something. `input` is any JSON value; `text` is what the thread shows."""

    account_id: AccountId
    text: str
    input: Any
    metadata: Any = None
    agent: str | None = None
    thread_id: ThreadId | None = None
    on_busy: OnBusy | None = None
    idempotency_key: str | None = None
    body_hash: str | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """`claim` is set when this process's worker took the job at once; `touched` are other jobs that changed."""

    outcome: Literal["queued", "already_running", "replaced", "enqueued", "steered"]
    job_id: JobId
    thread_id: ThreadId
    command_id: CommandId | None
    lane: Lane
    claim: Claim | None
    touched: tuple[JobId, ...]


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as the API shows it."""

    id: JobId
    account_id: AccountId
    thread_id: ThreadId
    agent: str
    lane: Lane
    state: JobState
    epoch: int
    execution_id: ExecutionId | None
    queue_position: int | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error_code: str | None
    error_message: str | None
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class ThreadView:
    id: ThreadId
    title: str
    agent: str | None
    current_job_id: JobId | None
    current_state: JobState | None
    unread: bool
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class MessageView:
    """`turn` and `part` are the message's place in its thread. The error is the one an answer's job ended with."""

    id: UUID
    turn: int
    part: int
    role: str
    text: str
    job_id: JobId
    status: str | None
    error_code: str | None
    error_message: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class StreamHead:
    """Where a job's stream stands: its state, its newest execution and what is stored of it."""

    job_id: JobId
    state: JobState
    cancel_requested: bool
    last_execution_id: ExecutionId | None
    last_epoch: int | None
    last_seq: int | None
    last_ended: bool
    last_will_retry: bool

    @property
    def ended(self) -> bool:
        return self.state not in UNENDED_STATES

    @property
    def ends_with_event(self) -> bool:
        """Whether the stream's end is a terminal event; else an ended job's end is its job frame."""
        return self.last_execution_id is not None and self.last_ended and not self.last_will_retry


    @property
    def ends_with_job_frame(self) -> bool:
        """An ended job whose end is no event: no execution ended it, or nothing of it is stored any more."""
        return self.ended and not (self.ends_with_event and self.last_seq)


@dataclass(frozen=True, slots=True)
class Duty:
    held: bool
    watched_seconds: float


Row = Mapping[str, Any]


class LocalWorker(Protocol):
    """A worker in the gateway's own process, for the local direct path of solo.

    reserve: keeps a free place of the lane normal, if there is one, before a job is admitted for it.
    take: begins the claim that admission made; uses up the reservation, whatever the claim's lane turned out to be.
    give_back: frees the reservation; admission made no claim.
    """

    @property
    def worker_id(self) -> WorkerId: ...

    def reserve(self) -> bool: ...

    def take(self, claim: Claim) -> None: ...

    def give_back(self) -> None: ...
