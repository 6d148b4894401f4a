"""One job's stream, merged: what travelled on the channel, what history says, where the database says it stands.

Pure logic, no I/O. A `JobStream` follows the job; a `Viewer` is one client's place in it. Neither reads anything: each
raises a flag for what it wants (`wants_fill`, `wants_head`, `wants_job`, `wants_page`), and `projection` reads it.

Order is (epoch, seq). The stream's *front* is the newest event it knows without a hole before it; the *ring* holds the
newest events up to the front, contiguous from just after *base*. A viewer whose place lies in [base, front] is served
from the ring, one before it from pages of history, and one after it waits until the front has come there.

What can go wrong, and what then holds:

- Messages are lost, doubled, late, reordered. Only what continues the front is taken; what is early is kept within a
  bound; a hole, an unknown epoch or a bare position asks for history from the front on. History may overlap what
  travelled meanwhile: everything at or before the front is dropped.
- A crash of the database loses events that clients already saw, because appends commit asynchronously. If their owner
  lives it stores the same bytes under the same numbers again, and nobody notices. If it does not, the execution's
  terminal event takes the place of the first lost one. So a terminal event at or before a place where none was seen
  there proves that place wrong: the viewer is *reset* and gets the stored history of that execution.
- Therefore nobody leaves an execution (for the next epoch, or for the end) without its terminal event. Whoever would
  have to is reset. This one rule covers a viewer that was away, one on another gateway, and one that sat here.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from corevo.contracts import UNENDED_STATES, ExecutionId, JobId, JobView, StoredEvent, StreamHead
from corevo.control import cursor
from corevo.wire import Block

RING_LIMIT_EVENTS = 512
RING_LIMIT_CHARACTERS = 262_144
EARLY_LIMIT_BLOCKS = 64
EARLY_LIMIT_CHARACTERS = 262_144
#: A stream that is longer than this when it is first looked at begins at its end; its viewers read history themselves.
FOLLOW_FROM_START_EVENTS = 256

TERMINAL_TYPES = frozenset(
    {"run.completed", "run.failed", "run.cancelled", "run.interrupted", "run.timed_out", "run.lost"}
)


class Entry(NamedTuple):
    """One event, encoded once for all viewers. Compares by (epoch, seq), also with a bare pair."""

    epoch: int
    seq: int
    execution_id: ExecutionId
    terminal: bool  # nothing follows in this execution
    final: bool  # nothing follows in this job
    frame: str  # as on the WebSocket

    @property
    def cursor(self) -> str:
        return cursor.of_event(self.execution_id, self.seq, self.terminal)


class Notice(NamedTuple):
    """A frame that is no event. `cursor` is set where a stream ends without one."""

    kind: Literal["job", "reset"]
    frame: str
    cursor: str | None


Item = Entry | Notice


@lru_cache(1024)
def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def event_text(job_id: JobId, execution_id: ExecutionId, epoch: int, seq: int, kind: str, data: str) -> str:
    """An event's members. `data` is spliced as it is stored; a newline between its tokens would break SSE."""
    if "\n" in data or "\r" in data:
        data = data.replace("\n", " ").replace("\r", " ")
    return (
        f'"job_id":"{job_id}","execution_id":"{execution_id}","epoch":{epoch},"seq":{seq},'
        f'"type":{_quoted(kind)},"data":{data}}}'
    )


def encode(job_id: JobId, execution_id: ExecutionId, epoch: int, seq: int, kind: str, data: str) -> Entry:
    terminal = kind in TERMINAL_TYPES
    frame = '{"ev":"event",' + event_text(job_id, execution_id, epoch, seq, kind, data)
    return Entry(epoch, seq, execution_id, terminal, terminal and not _will_retry(data), frame)


def encode_row(job_id: JobId, row: StoredEvent) -> Entry:
    return encode(job_id, row.execution_id, row.epoch, row.seq, row.type, row.data)


def _will_retry(data: str) -> bool:
    """The only data that is ever parsed here: once an execution."""
    try:
        value = json.loads(data)
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("will_retry") is True


class JobStream:
    """What this process knows of one job's stream."""

    def __init__(self, job_id: JobId) -> None:
        self.job_id = job_id
        self.viewers: set[Viewer] = set()
        # the front; epoch 0 is before any execution, and nothing more comes of it
        self.epoch = 0
        self.seq = 0
        self.terminal = True
        self.final = False
        # the ring
        self.base: tuple[int, int] = (0, 0)
        self.ring: list[Entry] = []
        self._ring_characters = 0
        self._early: dict[tuple[int, int], Block] = {}
        self._early_characters = 0
        # the job's row
        self.job: JobView | None = None
        self.job_frame = ""
        self.version = 0
        # how the stream ends: with its final event, or with the job frame once everything up to end_at was delivered
        self.end: Literal["event", "job"] | None = None
        self.end_at: tuple[int, int] = (0, 0)
        self.gone = False  # the job is not there any more, or cannot be served
        # what has to be read; whoever reads clears the flag before he begins
        self.wants_head = False
        self.wants_fill = False
        self.wants_job = False
        self.changes = 0  # grows whenever a waiting viewer may find more
        self._placed = False

    @property
    def front(self) -> tuple[int, int]:
        return (self.epoch, self.seq)

    @property
    def ended(self) -> bool:
        """Nothing more will be told of this job: no need to poll for it."""
        return self.gone or (self.end is not None and self.job is not None and self.job.state not in UNENDED_STATES)

    # ── what comes in ─────────────────────────────────────────────────────────────────────────────────

    def offer(self, block: Block) -> None:
        """Takes a block from the channel, in any order, any number of times."""
        if self.final or block.epoch < self.epoch or (block.epoch == self.epoch and self.terminal):
            return
        if block.epoch == self.epoch and block.last_seq <= self.seq:
            if block.events and block.events[-1][0] in TERMINAL_TYPES:
                self._cut(block.epoch, block.last_seq, not _will_retry(block.events[-1][1]))
                self._changed()
            return
        if self._continues(block):
            self._take(block)
            self._take_early()
            self._changed()
            return
        self._keep(block)
        self.wants_fill = True

    def fill(self, rows: Sequence[StoredEvent], *, full: bool) -> None:
        """Takes history that was read from some front of this stream on. `full`: there may be more."""
        for row in rows:
            if row.epoch < self.epoch or (row.epoch == self.epoch and self.terminal):
                continue
            entry = encode_row(self.job_id, row)
            if row.epoch == self.epoch and row.seq <= self.seq:
                if entry.terminal:
                    self._cut(entry.epoch, entry.seq, entry.final)
                continue
            if row.epoch > self.epoch and not self.terminal:
                # The execution we are in ended at or before our front, or its end would have been read before this
                # row: a crash took what we know of it.
                self._empty_ring((row.epoch, row.seq - 1))
            self._advance(entry)
        if full:
            self.wants_fill = True
        self._take_early()
        if rows:
            self._changed()

    def see_head(self, head: StreamHead | None) -> None:
        """Takes where the database says this stream stands; None: there is no such job."""
        if head is None:
            self.gone = True
            self._changed()
            return
        if self.job is not None and (head.state, head.cancel_requested) != (self.job.state, self.job.cancel_requested):
            self.wants_job = True
        # events past their retention are as if they had never been
        stored = (head.last_epoch, head.last_seq) if head.last_epoch and head.last_seq else (0, 0)
        before = (self.front, self.terminal, self.end)
        if not self._placed and self.front == (0, 0) and stored[1] > FOLLOW_FROM_START_EVENTS:
            self.epoch, self.seq = stored
            self.terminal = head.last_ended
            self.final = head.last_ended and not head.last_will_retry
            self._empty_ring(stored)
            self.wants_fill = False
            self._take_early()
        elif stored[0] == self.epoch and head.last_ended and not self.terminal and 0 < stored[1] <= self.seq:
            self._cut(*stored, not head.last_will_retry)
        elif stored > self.front and not self.final:
            self.wants_fill = True
        self._placed = True
        if self.final and self.end is None:
            self.end = "event"
        if head.ended and not (head.ends_with_event and stored[1]):
            # No execution ends this job, or nothing of it is there any more: the job frame is the end.
            self.end, self.end_at = "job", stored
        if (self.front, self.terminal, self.end) != before:
            self._changed()

    def see_job(self, view: JobView, frame: str) -> None:
        """Takes the job's row, read after this stream began to listen."""
        if self.job is None or view != self.job:
            self.job, self.job_frame = view, frame
            self.version += 1
            self._changed()
        if view.started_at is None:  # no execution yet: the front at (0, 0) is the truth
            self._placed = True
            if view.state not in UNENDED_STATES and self.end is None:
                self.end = "job"
                self._changed()
        elif not self._placed or (view.state not in UNENDED_STATES and self.end is None):
            self.wants_head = True

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────

    def _continues(self, block: Block) -> bool:
        if not block.events:
            return False
        if block.epoch == self.epoch:
            return block.first_seq <= self.seq + 1
        # Between two epochs there may have been one whose messages were lost: only history knows.
        return self.terminal and block.epoch == self.epoch + 1 and block.first_seq == 1

    def _take(self, block: Block) -> None:
        skip = self.seq + 1 - block.first_seq if block.epoch == self.epoch else 0
        for seq, (kind, data) in enumerate(block.events[skip:], block.first_seq + skip):
            self._advance(encode(self.job_id, block.execution_id, block.epoch, seq, kind, data))

    def _advance(self, entry: Entry) -> None:
        self.epoch, self.seq = entry.epoch, entry.seq
        self.terminal, self.final = entry.terminal, entry.final
        self.ring.append(entry)
        self._ring_characters += len(entry.frame)
        if len(self.ring) > RING_LIMIT_EVENTS or self._ring_characters > RING_LIMIT_CHARACTERS:
            self._trim()
        if entry.seq == 1 or entry.terminal:
            self.wants_job = True
        if entry.final:
            self.end = "event"
        beyond = self.front > self.end_at or (self.front == self.end_at and not self.terminal)
        if self.end == "job" and self.end_at != (0, 0) and beyond:
            # A head has told where the last execution ended; what a slower read brings above it was lost in a crash.
            self._cut(*self.end_at, False)

    def _trim(self) -> None:
        """Drops the oldest quarter at least, so that trimming is rare."""
        drop = 0
        while drop < len(self.ring) and (
            len(self.ring) - drop > RING_LIMIT_EVENTS * 3 // 4 or self._ring_characters > RING_LIMIT_CHARACTERS * 3 // 4
        ):
            self._ring_characters -= len(self.ring[drop].frame)
            drop += 1
        if drop:
            self.base = self.ring[drop - 1][:2]
            del self.ring[:drop]

    def _cut(self, epoch: int, seq: int, final: bool) -> None:
        """The execution ended at `seq`, and what we know at or above it never became history."""
        self.epoch, self.seq = epoch, seq
        self.terminal, self.final = True, final
        self._empty_ring((epoch, seq))
        self.wants_job = True
        if final:
            self.end = "event"

    def _empty_ring(self, base: tuple[int, int]) -> None:
        self.ring.clear()
        self._ring_characters = 0
        self.base = base

    def suspect(self) -> None:
        """A viewer found in history that the ring may hold events that were lost: everyone reads history again."""
        self._empty_ring(self.front)
        self.wants_head = True

    def _keep(self, block: Block) -> None:
        size = sum(len(data) for _, data in block.events)
        key = (block.epoch, block.first_seq)
        fits = len(self._early) < EARLY_LIMIT_BLOCKS and self._early_characters + size <= EARLY_LIMIT_CHARACTERS
        if block.events and fits and key not in self._early:
            self._early[key] = block
            self._early_characters += size

    def _take_early(self) -> None:
        taken = True
        while taken and self._early:
            taken = False
            for key in sorted(self._early):
                block = self._early[key]
                continues = self._continues(block)
                if not continues and (block.epoch, block.last_seq) > self.front and not self.final:
                    continue
                del self._early[key]
                self._early_characters -= sum(len(data) for _, data in block.events)
                new = not self.final and (block.epoch, block.last_seq) > self.front
                if continues and new and (block.epoch > self.epoch or not self.terminal):
                    self._take(block)
                    taken = True

    def _changed(self) -> None:
        self.changes += 1
        for viewer in self.viewers:
            viewer.wake()


class Viewer:
    """One client's place in a job's stream. Pulled from: what is not asked for is not held.

    `terminal`: the event at this place ended its execution, and the client has it. `final`: it ended the stream.
    """

    def __init__(
        self,
        stream: JobStream,
        wake: Callable[[], None],
        *,
        epoch: int = 0,
        seq: int = 0,
        execution_id: ExecutionId | None = None,
        terminal: bool = True,
        final: bool = False,
        ended: bool = False,
        disproved: bool = False,
    ) -> None:
        self.stream = stream
        self.wake = wake
        self.epoch = epoch
        self.seq = seq
        self.terminal = terminal
        self.final = final
        self.ended = ended  # the client already has the job frame that ends this stream
        self.version = 0  # of the newest job frame the client has
        self.done = False
        self.wants_page = False
        self._execution_id = execution_id
        self._disproved = disproved  # the client has an end that is not in history
        self._page: deque[Entry] = deque()
        self._dry_at = -1  # the stream's changes when we asked and history had nothing for us

    @property
    def place(self) -> tuple[int, int]:
        return (self.epoch, self.seq)

    @property
    def delivered(self) -> bool:
        """The client came with everything: there is nothing to stream."""
        return self.final or self.ended

    def take(self, limit: int = 64, limit_characters: int = 65_536) -> list[Item]:
        """The next items for this client, in order; none when it has to wait. Sets `done` with the last one."""
        items: list[Item] = []
        stream = self.stream
        self.wants_page = False
        if self.done:
            return items
        if stream.gone:
            self.done = True
            return items
        job = stream.job
        if job is not None and job.state in UNENDED_STATES and self.version != stream.version:
            self.version = stream.version
            items.append(Notice("job", stream.job_frame, None))
        room = limit_characters
        while room > 0 and len(items) < limit:
            entries = self._at_hand(limit - len(items))
            if entries is None:
                items.append(self._reset())
                continue
            if not entries:
                break
            for entry in entries:
                if room <= 0 or not self._fits(entry):
                    break
                if self._goes_on(entry):
                    self.epoch, self.seq, self._execution_id = entry.epoch, entry.seq, entry.execution_id
                    self.terminal, self.final = entry.terminal, entry.final
                    items.append(entry)
                    room -= len(entry.frame)
                if self._page:
                    self._page.popleft()
            else:
                continue
            if room > 0:  # an entry that does not fit: our execution ended where we did not see it end
                if self._page:
                    stream.suspect()
                items.append(self._reset())
        if room > 0 and len(items) < limit and not self._page:
            self._end(items)
        return items

    def ask(self) -> tuple[int, int, int]:
        """Begins the reading of a page: from where, and when in the stream's life."""
        self.wants_page = False
        return (self.epoch, self.seq, self.stream.changes)

    def feed(self, asked: tuple[int, int, int], rows: Iterable[StoredEvent]) -> None:
        """Takes a page of history for an `ask`. A viewer that was reset meanwhile does not want it any more."""
        if asked[:2] == self.place and not self._page:
            self._page = deque(encode_row(self.stream.job_id, row) for row in rows)
            if not self._page:
                self._dry_at = asked[2]  # not the changes of now: the page may be older than the newest one
                if self.stream.ended:
                    self.stream.wants_head = True  # ended, and history has less than we knew: look again
        self.wake()

    def _at_hand(self, limit: int) -> Sequence[Entry] | None:
        """Entries that follow this place, without reading; None when this place is proved wrong."""
        stream = self.stream
        ended_before = stream.epoch == self.epoch and stream.terminal and 0 < stream.seq <= self.seq
        if self._disproved or (ended_before and not self.terminal):
            return None
        if self._page:
            return list(self._page)[:limit]
        if self.delivered:
            return ()
        if self.place < stream.base:
            self.wants_page = self._dry_at != stream.changes
            return ()
        following = (self.epoch + 1, 0) if self.terminal else (self.epoch, self.seq + 1)
        start = bisect_left(stream.ring, following)
        return stream.ring[start : start + limit]

    def _fits(self, entry: Entry) -> bool:
        if entry.epoch > self.epoch:
            return self.terminal or self.seq == 0
        return not (entry.terminal and entry.epoch == self.epoch and entry.seq <= self.seq and not self.terminal)

    def _goes_on(self, entry: Entry) -> bool:
        """Whether the client does not have it yet: a page may overlap."""
        return entry.epoch > self.epoch or (entry.epoch == self.epoch and entry.seq > self.seq and not self.terminal)

    def _reset(self) -> Notice:
        self.seq = 0
        self.terminal = self.final = self._disproved = False
        self._page.clear()
        self._dry_at = -1
        frame = f'{{"ev":"reset","job_id":"{self.stream.job_id}","execution_id":"{self._execution_id}"}}'
        return Notice("reset", frame, None)

    def _end(self, items: list[Item]) -> None:
        """Adds the job frame that ends the stream, once everything before it was taken."""
        stream = self.stream
        by_job = stream.end == "job" and stream.front >= stream.end_at and self.place >= stream.end_at
        if not (self.final or self.ended or by_job):
            return
        if stream.job is None or stream.job.state in UNENDED_STATES:
            stream.wants_job = True
            return
        self.version = stream.version
        self.done = True
        items.append(Notice("job", stream.job_frame, None if self.final else cursor.of_job_end(stream.job_id)))
