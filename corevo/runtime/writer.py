"""The event writer: carries what all runs of a worker say to the database, in natural batches.

The first delta goes at once; while a flush is under way the next one gathers, for all runs together; a gap between
flushes appears only as their rate grows. Text that waits is merged before it is numbered. From its number on an
event is frozen: the same seq and bytes however often it is sent.

Appends commit asynchronously, so an answered event may still vanish if the server crashes. The writer keeps events
until the server's log is known to be flushed beyond them, and sends the missing ones again when an append finds a gap.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from corevo import clock, metrics, wire
from corevo.contracts import EVENT_CHANNEL, Append, Appended, Event, ExecutionId, JobId
from corevo.errors import CorevoError, ProtocolError
from corevo.notifier import Notifier
from corevo.runtime.sanitize import encode_text
from corevo.store import events
from corevo.store.connections import Connections

log = structlog.get_logger()

#: Text of one delta. 2000 characters fit a notification in almost every script.
DELTA_LIMIT_CHARACTERS = 2_000
#: The whole answer of one run.
TEXT_LIMIT_CHARACTERS = 2_000_000
#: A run that has more than this unsent waits in `say`.
UNSENT_LIMIT_BYTES = 262_144
#: More than this answered but not known flushed, and the run waits too.
UNFLUSHED_LIMIT_BYTES = 4_194_304
#: One append carries at most this many events; the rest goes in the next.
APPEND_LIMIT_EVENTS = 2_000
#: Between flushes once their rate has grown; PERFORMANCE of this spacing: a third of the CPU for 4 ms of latency.
FLUSH_GAP_SECONDS = 0.005
BUSY_FLUSHES = 10  # within BUSY_WINDOW_SECONDS: the rate has grown
BUSY_WINDOW_SECONDS = 0.1
BUSY_RETRY_SECONDS = 0.05
CLOSED_SECONDS = 0.05
PROBE_SECONDS = 0.5
RETRY_SECONDS = (0.1, 2.0)


@dataclass(slots=True)
class Draft:
    """Not numbered yet. `text` of a delta may still grow."""

    type: str
    data: str
    text: str | None = None


@dataclass(slots=True)
class RunOutput:
    """One execution's way out. Implements runtime.run.Output."""

    writer: EventWriter
    job_id: JobId
    execution_id: ExecutionId
    epoch: int
    token: UUID
    on_refused: Callable[[str], None]
    drafts: deque[Draft] = field(default_factory=deque)
    unsent_bytes: int = 0
    next_seq: int = 2
    said_characters: int = 0  # of numbered text: the next delta's offset
    text_parts: list[str] = field(default_factory=list)
    text_characters: int = 0
    frozen: deque[Event] = field(default_factory=deque)  # numbered, not known to be flushed
    frozen_bytes: int = 0
    stored_seq: int = 1  # answered as stored
    flushed_seq: int = 1
    unproved: bool = False  # a crash may have eaten what was answered: ask before trusting positions
    closed: bool = False
    not_before: float = 0.0
    room: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.room.set()
        self.idle.set()

    async def text(self, text: str) -> None:
        if not await self._wait_for_room():
            return
        self.text_characters += len(text)
        if self.text_characters > TEXT_LIMIT_CHARACTERS:
            raise ValueError(f"an answer may have {TEXT_LIMIT_CHARACTERS} characters")
        self.text_parts.append(text)
        for start in range(0, len(text), DELTA_LIMIT_CHARACTERS):
            piece = text[start : start + DELTA_LIMIT_CHARACTERS]
            last = self.drafts[-1] if self.drafts else None
            if last is not None and last.text is not None and len(last.text) + len(piece) <= DELTA_LIMIT_CHARACTERS:
                last.text += piece
            else:
                self.drafts.append(Draft("text.delta", "", piece))
            self._grew(len(piece))

    async def event(self, type: str, data: str) -> None:
        if not await self._wait_for_room():
            return
        self.drafts.append(Draft(type, data))
        self._grew(len(data))

    @property
    def said(self) -> str:
        return "".join(self.text_parts)

    @property
    def unsent(self) -> bool:
        return bool(self.drafts) or (bool(self.frozen) and self.frozen[-1].seq > self.stored_seq)

    async def _wait_for_room(self) -> bool:
        """False when the run was ended: what an agent says that does not stop is dropped, and it is slowed down."""
        while not self.room.is_set():
            await self.room.wait()
        if self.closed:
            await asyncio.sleep(CLOSED_SECONDS)
        return not self.closed

    def _grew(self, size: int) -> None:
        self.unsent_bytes += size
        self.judge_room()
        self.writer.wake()

    def judge_room(self) -> None:
        if self.closed or (self.unsent_bytes < UNSENT_LIMIT_BYTES and self.frozen_bytes < UNFLUSHED_LIMIT_BYTES):
            self.room.set()
        else:
            self.room.clear()

    def number_drafts(self, limit: int) -> None:
        """Gives drafts their seq and freezes their bytes."""
        while self.drafts and limit > 0:
            draft = self.drafts.popleft()
            limit -= 1
            data = draft.data
            if draft.text is not None:
                data = encode_text(draft.text, self.said_characters)
                self.said_characters += len(draft.text)
                self.unsent_bytes -= len(draft.text)
            else:
                self.unsent_bytes -= len(data)
            self.freeze(draft.type, data)

    def freeze(self, type: str, data: str) -> None:
        self.frozen.append(Event(self.next_seq, type, data))
        self.frozen_bytes += len(data)
        self.next_seq += 1

    def from_seq(self, seq: int) -> tuple[Event, ...]:
        return tuple(event for event in self.frozen if event.seq >= seq)

    def forget_flushed(self, seq: int) -> None:
        self.flushed_seq = max(self.flushed_seq, seq)
        while self.frozen and self.frozen[0].seq <= self.flushed_seq:
            self.frozen_bytes -= len(self.frozen.popleft().data)
        self.judge_room()


@dataclass(slots=True)
class Answered:
    """A flush that was answered, and the log position that proves it once it is flushed."""

    seqs: dict[ExecutionId, int]
    opened: int  # how many connections had been opened by then
    safe_at: int | None = None


class EventWriter:
    """One per worker; `run` is its only task, so at most one append of an execution is under way."""

    def __init__(self, db: Connections, notifier: Notifier, *, payload: bool = True) -> None:
        self._db = db
        self._notifier = notifier
        self._payload = payload
        self._runs: dict[ExecutionId, RunOutput] = {}
        self._wake = asyncio.Event()
        self._answered: deque[Answered] = deque()
        self._recent: deque[float] = deque(maxlen=BUSY_FLUSHES)

    def open(
        self, job_id: JobId, execution_id: ExecutionId, epoch: int, token: UUID, on_refused: Callable[[str], None]
    ) -> RunOutput:
        """`on_refused(ended_by)`: the database took this run away from us."""
        output = RunOutput(self, job_id, execution_id, epoch, token, on_refused)
        self._runs[execution_id] = output
        return output

    async def close(self, output: RunOutput) -> None:
        """Takes a run out of the batches, for its ending; waits for an append of it that is under way."""
        output.closed = True
        output.judge_room()
        await output.idle.wait()
        output.number_drafts(len(output.drafts))
        self._runs.pop(output.execution_id, None)

    def wake(self) -> None:
        self._wake.set()

    def publish(self, output: RunOutput, stored: tuple[Event, ...]) -> None:
        """Tells the gateways what is stored; only ever called after the commit."""
        for block in wire.encode(output.job_id, output.execution_id, output.epoch, stored, payload=self._payload):
            self._notifier.post(EVENT_CHANNEL, block)

    async def run(self) -> None:
        """Flushes until cancelled."""
        delay = RETRY_SECONDS[0]
        while True:
            try:
                async with asyncio.timeout(PROBE_SECONDS if self._answered else None):
                    await self._wake.wait()
                self._wake.clear()
            except TimeoutError:
                pass
            await self._space()
            batch = self._gather()
            if not batch and not self._answered:
                continue
            self._recent.append(clock.seconds())
            try:
                await self._flush(batch)
                delay = RETRY_SECONDS[0]
            except CorevoError as error:
                log.warning("events wait: the database does not take them", error=str(error), runs=len(batch))
                await asyncio.sleep(random.uniform(0.5, 1.0) * delay)
                delay = min(delay * 2, RETRY_SECONDS[1])
                self._wake.set()

    async def _space(self) -> None:
        if len(self._recent) == BUSY_FLUSHES:
            now = clock.seconds()
            if now - self._recent[0] < BUSY_WINDOW_SECONDS:
                await asyncio.sleep(max(0.0, FLUSH_GAP_SECONDS - (now - self._recent[-1])))

    def _gather(self) -> list[tuple[RunOutput, Append]]:
        batch: list[tuple[RunOutput, Append]] = []
        left = APPEND_LIMIT_EVENTS
        now = clock.seconds()
        for output in self._runs.values():
            if output.closed or not (output.unsent or output.unproved):
                continue
            if left <= 0 or output.not_before > now:
                self._wake.set()
                continue
            output.number_drafts(left)
            send = output.from_seq(output.stored_seq + 1)[:left]
            left -= len(send)
            output.idle.clear()
            batch.append((output, Append(output.execution_id, output.token, output.stored_seq + 1, send)))
        return batch

    async def _flush(self, batch: list[tuple[RunOutput, Append]]) -> None:
        answered_before = [a for a in self._answered if a.safe_at is None]
        try:
            try:
                answers = await events.append(self._db, [append for _, append in batch])
            except ProtocolError:
                if len(batch) == 1:
                    self._refuse(batch[0][0], "event_refused")
                    return
                for one in batch:  # one bad run must not fail the others
                    await self._flush([one])
                return
            by_id = {answer.execution_id: answer for answer in answers}
            seqs: dict[ExecutionId, int] = {}
            for output, append in batch:
                self._take(output, append, by_id[output.execution_id], seqs)
            if answers:
                self._note_positions(answered_before, answers[0].insert_lsn, answers[0].flush_lsn)
            else:
                insert_lsn, flush_lsn = await events.log_position(self._db)
                self._note_positions(answered_before, insert_lsn, flush_lsn)
            if seqs:
                self._answered.append(Answered(seqs, self._db.opened))
        finally:
            for output, _ in batch:
                output.idle.set()
                if output.unsent and not output.closed:
                    self._wake.set()

    def _take(self, output: RunOutput, append: Append, answer: Appended, seqs: dict[ExecutionId, int]) -> None:
        match answer.result:
            case "stored":
                if output.unproved:  # what was answered before the crash survived it
                    output.unproved = False
                    output.forget_flushed(append.first_seq - 1)
                if not append.events:
                    return
                output.stored_seq = append.events[-1].seq
                seqs[output.execution_id] = output.stored_seq
                metrics.EVENTS_STORED.add({}, len(append.events))
                self.publish(output, append.events)
            case "gap":
                self.rewind(output, answer.stored_seq or 0)
            case "busy":  # an ending holds it; what comes of that is seen next time
                output.not_before = clock.seconds() + BUSY_RETRY_SECONDS
                asyncio.get_running_loop().call_later(BUSY_RETRY_SECONDS, self.wake)
            case "fenced":
                self._refuse(output, answer.ended_by or "gone")

    def rewind(self, output: RunOutput, stored_seq: int) -> bool:
        """The server lost events in a crash: go on from what it still has. False when that is no longer kept here."""
        log.warning(
            "sending events again that the database lost", execution_id=str(output.execution_id), after_seq=stored_seq
        )
        output.stored_seq = stored_seq
        output.unproved = False
        output.forget_flushed(stored_seq)
        kept_from = output.frozen[0].seq if output.frozen else output.next_seq
        if kept_from > stored_seq + 1:
            self._refuse(output, "history_lost")
            return False
        return True

    def _refuse(self, output: RunOutput, ended_by: str) -> None:
        self._runs.pop(output.execution_id, None)
        output.closed = True
        output.judge_room()
        output.on_refused(ended_by)

    def _note_positions(self, before: list[Answered], insert_lsn: int, flush_lsn: int) -> None:
        """A flush answered before this call began lies below its insert position."""
        for answered in before:
            answered.safe_at = insert_lsn
        while self._answered:
            first = self._answered[0]
            crashed = first.opened != self._db.opened
            if not crashed and (first.safe_at is None or first.safe_at > flush_lsn):
                return
            self._answered.popleft()
            for execution_id, seq in first.seqs.items():
                output = self._runs.get(execution_id)
                if output is not None and crashed:
                    output.unproved = True
                    self._wake.set()
                elif output is not None:
                    output.forget_flushed(seq)
