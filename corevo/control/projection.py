"""The projector: one stream for each job that somebody watches, whatever the number of viewers.

Messages from the pulse arrive in the main loop and only merge (`merge`). What a stream or a viewer wants to have read
is read by a few tasks, each with one statement at a time: heads and job rows for all streams at once, history one
stream at a time. Nothing is held in the database between two statements, and with nothing watched nothing is asked.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import structlog

from corevo import clock, metrics, wire
from corevo.contracts import (
    EVENT_CHANNEL,
    JOB_CHANNEL,
    AccountId,
    ExecutionId,
    JobId,
    JobView,
    StoredEvent,
)
from corevo.control import cursor, merge, shapes
from corevo.control.merge import Item, JobStream, Viewer
from corevo.errors import BadCursor, CorevoError, NotFound
from corevo.settings import Settings
from corevo.store import events, jobs
from corevo.store.connections import Connections

log = structlog.get_logger()

READERS = 2
FILL_EVENTS = 500
PAGE_EVENTS = 256
PAGE_BYTES = 131_072
JOBS_A_STATEMENT = 1_000
#: Without a healthy channel: from the first to the second while nothing changes.
POLL_SECONDS = (0.2, 1.0)
TICK_SECONDS = 0.25
RETRY_SECONDS = (0.1, 2.0)


class Projector:
    def __init__(self, db: Connections, settings: Settings, listening: Callable[[], bool]) -> None:
        self._db = db
        self._settings = settings
        self._listening = listening
        self._streams: dict[str, JobStream] = {}  # by the id's text, as it travels
        self._waiting: dict[str, int] = {}  # attaches under way, by job: they keep a stream without viewers
        self._heads: set[JobStream] = set()
        self._rows: set[JobStream] = set()
        self._queued: set[JobStream | Viewer] = set()
        self._history: asyncio.Queue[JobStream | Viewer] = asyncio.Queue()
        self._heads_due = asyncio.Event()
        self._rows_due = asyncio.Event()
        self._poll_now = False
        self._quiet = 0  # polls in a row that found nothing

    @property
    def watched(self) -> int:
        return len(self._streams)

    # ── from the pulse, and from this process ─────────────────────────────────────────────────────────

    def on_message(self, channel: str, payload: str) -> None:
        """Never blocks: a block of a job that nobody watches costs one look-up."""
        if channel == EVENT_CHANNEL:
            for text in payload.split("\n\n"):
                stream = self._streams.get(text[:36])
                if stream is not None:
                    self._offer(stream, text)
        elif channel == JOB_CHANNEL:
            self.touch(payload.split("\n"))

    def resync(self) -> None:
        """Messages may have been lost: where does everything stand?"""
        self._poll_now = True
        self._heads_due.set()

    def touch(self, job_ids: Iterable[object]) -> None:
        """These jobs have changed."""
        for job_id in job_ids:
            stream = self._streams.get(str(job_id))
            if stream is not None and not stream.ended:
                stream.wants_job = True
                self._serve(stream)

    # ── viewers ───────────────────────────────────────────────────────────────────────────────────────

    async def attach(
        self,
        account_id: AccountId,
        job_id: JobId,
        after: str | None,
        wake: Callable[[], None],
        *,
        knows_job: bool,
    ) -> tuple[Viewer, JobView]:
        """A new viewer of a job after a cursor, and the job. Raises NotFound, BadCursor.

        `knows_job`: the caller shows the returned job to the client, so that no frame repeats it.
        The stream is registered before anything is read, and before the first await: what happens meanwhile is heard.
        """
        key = str(job_id)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = JobStream(job_id)
            metrics.STREAMS.set({}, len(self._streams))
        self._waiting[key] = self._waiting.get(key, 0) + 1
        try:
            view = await jobs.read(self._db, account_id, job_id)
            if view is None:
                raise NotFound("no such job")
            if stream.job is None:  # else the rows' one reader keeps it, in order
                stream.see_job(view, shapes.job_frame(view))
            viewer = await self._place(stream, view, after, wake)
            if knows_job and view == stream.job:
                viewer.version = stream.version
            stream.viewers.add(viewer)
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
            self._forget_unwatched(stream)
        self._serve(stream)
        self._quiet = 0
        self._heads_due.set()  # there may have been nothing to poll for before
        return viewer, view

    def detach(self, viewer: Viewer) -> None:
        viewer.done = True
        viewer.stream.viewers.discard(viewer)
        self._forget_unwatched(viewer.stream)

    def take(self, viewer: Viewer) -> list[Item]:
        """The next items for a viewer; none when it has to wait until it is woken, or is done."""
        items = viewer.take()
        self._serve(viewer.stream)
        if viewer.wants_page:
            self._read(viewer)
        return items

    async def _place(self, stream: JobStream, view: JobView, after: str | None, wake: Callable[[], None]) -> Viewer:
        if after is None:
            return Viewer(stream, wake)
        at = cursor.parse_stream(after)
        if at.seq is None:
            if at.id == stream.job_id:
                heads = await events.heads(self._db, [stream.job_id])
                if heads and heads[0].ends_with_job_frame:
                    return Viewer(stream, wake, ended=True)
            raise BadCursor("this job did not end so")
        execution = ExecutionId(at.id)
        epoch = await events.execution_epoch(self._db, stream.job_id, execution)
        if epoch is None:
            raise BadCursor("this cursor is not of this job")
        terminal = final = False
        if at.end:
            # believed only if the terminal event is really there: a crash of the database may have taken it
            rows = await events.read(self._db, stream.job_id, epoch=epoch, seq=at.seq - 1, limit=1)
            if rows and (rows[0].epoch, rows[0].seq) == (epoch, at.seq):
                found = merge.encode_row(stream.job_id, rows[0])
                terminal, final = found.terminal, found.final
        return Viewer(
            stream,
            wake,
            epoch=epoch,
            seq=at.seq,
            execution_id=execution,
            terminal=terminal,
            final=final,
            disproved=at.end and not terminal,
        )

    def _forget_unwatched(self, stream: JobStream) -> None:
        key = str(stream.job_id)
        if not stream.viewers and key not in self._waiting and self._streams.get(key) is stream:
            del self._streams[key]
            self._heads.discard(stream)
            self._rows.discard(stream)
            metrics.STREAMS.set({}, len(self._streams))

    # ── what wants to be read ─────────────────────────────────────────────────────────────────────────

    def _offer(self, stream: JobStream, text: str) -> None:
        try:
            for block in wire.decode(text):
                stream.offer(block)
        except Exception:  # not ours, or a defect: the tables have the truth, and the next message must be heard
            log.exception("a message on the event channel was not understood")
            stream.wants_head = True
        self._serve(stream)

    def _serve(self, stream: JobStream) -> None:
        """Turns a stream's flags into work for the readers."""
        if stream.wants_head:
            self._heads.add(stream)
            self._heads_due.set()
        elif stream.wants_fill:  # a head may make it needless: it comes first
            self._read(stream)
        if stream.wants_job:
            self._rows.add(stream)
            self._rows_due.set()

    def _read(self, wanting: JobStream | Viewer) -> None:
        if wanting not in self._queued:
            self._queued.add(wanting)
            self._history.put_nowait(wanting)

    # ── the readers ───────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Reads until cancelled."""
        async with asyncio.TaskGroup() as readers:
            readers.create_task(self._read_heads())
            readers.create_task(self._read_rows())
            for _ in range(READERS):
                readers.create_task(self._read_history())

    async def _read_heads(self) -> None:
        """Heads that were asked for at once; those of every unended stream when a poll is due. One statement."""
        watching = False
        last, patience = clock.seconds(), 1.0
        while True:
            unended = [stream for stream in self._streams.values() if not stream.ended]
            if unended and not watching:
                last = clock.seconds()  # whoever came was told where his job stands
            watching = bool(unended)
            due = last + self._period() * patience - clock.seconds()
            poll = watching and (self._poll_now or due <= 0)
            if not poll and not self._heads:
                self._poll_now = False
                await self._wait_for_heads(min(due, TICK_SECONDS) if watching else None)
                continue
            wanted = set(self._heads)
            if poll:
                self._poll_now = False
                last, patience = clock.seconds(), random.uniform(0.8, 1.2)
                wanted.update(unended)
            self._heads.clear()
            for stream in wanted:
                stream.wants_head = False
            before = sum(stream.changes for stream in wanted)
            try:
                await self._heads_of(wanted)
            except CorevoError as error:
                log.info("heads could not be read", error=str(error))
                self._heads.update(stream for stream in wanted if self._streams.get(str(stream.job_id)) is stream)
                await asyncio.sleep(random.uniform(0.5, 1.0) * RETRY_SECONDS[1])
                continue
            if poll:
                news = sum(stream.changes for stream in wanted) != before or any(s.wants_fill for s in wanted)
                self._quiet = 0 if news else self._quiet + 1

    def _period(self) -> float:
        """Seconds between two polls."""
        if self._listening():
            return self._settings.poll_seconds
        return min(POLL_SECONDS[0] * 1.25 ** min(self._quiet, 20), POLL_SECONDS[1], self._settings.poll_seconds)

    async def _wait_for_heads(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._heads_due.wait()
            self._heads_due.clear()
        except TimeoutError:
            pass

    async def _heads_of(self, wanted: Iterable[JobStream]) -> None:
        left = iter(wanted)
        while streams := list(islice(left, JOBS_A_STATEMENT)):
            found = {head.job_id: head for head in await events.heads(self._db, [s.job_id for s in streams])}
            for stream in streams:
                stream.see_head(found.get(stream.job_id))
                self._serve(stream)

    async def _read_rows(self) -> None:
        """The rows of jobs that changed, for their job frames."""
        delay = RETRY_SECONDS[0]
        while True:
            await self._rows_due.wait()
            self._rows_due.clear()
            streams = list(islice(self._rows, JOBS_A_STATEMENT))
            self._rows.difference_update(streams)
            if self._rows:
                self._rows_due.set()
            for stream in streams:
                stream.wants_job = False
            try:
                found = {view.id: view for view in await jobs.read_many(self._db, [s.job_id for s in streams])}
            except CorevoError as error:
                log.info("jobs could not be read", error=str(error))
                for stream in streams:
                    if str(stream.job_id) in self._streams:
                        stream.wants_job = True
                        self._rows.add(stream)
                await asyncio.sleep(random.uniform(0.5, 1.0) * delay)
                delay = min(delay * 2, RETRY_SECONDS[1])
                self._rows_due.set()
                continue
            delay = RETRY_SECONDS[0]
            for stream in streams:
                view = found.get(stream.job_id)
                if view is None:
                    stream.wants_head = True  # deleted, probably; the head says so
                else:
                    stream.see_job(view, shapes.job_frame(view))
                self._serve(stream)

    async def _read_history(self) -> None:
        """Pages for streams with a hole and for viewers behind the ring, in the order in which they asked."""
        delay = RETRY_SECONDS[0]
        while True:
            wanting = await self._history.get()
            try:
                if isinstance(wanting, JobStream):
                    await self._fill(wanting)
                else:
                    await self._page(wanting)
                delay = RETRY_SECONDS[0]
            except CorevoError as error:
                log.info("history could not be read", error=str(error))
                await asyncio.sleep(random.uniform(0.5, 1.0) * delay)
                delay = min(delay * 2, RETRY_SECONDS[1])
                self._history.put_nowait(wanting)  # still queued: nobody adds it a second time
            except Exception:
                # one stream that cannot be merged must not end the others
                stream = wanting if isinstance(wanting, JobStream) else wanting.stream
                log.exception("a stream is given up", job_id=str(stream.job_id))
                self._queued.discard(wanting)
                stream.see_head(None)

    async def _fill(self, stream: JobStream) -> None:
        if str(stream.job_id) not in self._streams or stream.gone:
            self._queued.discard(stream)
            return
        stream.wants_fill = False
        try:
            rows = await events.read(self._db, stream.job_id, epoch=stream.epoch, seq=stream.seq, limit=FILL_EVENTS)
        except CorevoError:
            stream.wants_fill = True
            raise
        self._queued.discard(stream)
        stream.fill(rows, full=_may_be_full(rows, FILL_EVENTS, 262_144))
        self._serve(stream)

    async def _page(self, viewer: Viewer) -> None:
        if viewer.done or not viewer.wants_page:
            self._queued.discard(viewer)
            return
        asked = viewer.ask()
        try:
            rows = await events.read(
                self._db,
                viewer.stream.job_id,
                epoch=asked[0],
                seq=asked[1],
                limit=PAGE_EVENTS,
                limit_bytes=PAGE_BYTES,
            )
        except CorevoError:
            viewer.wants_page = True
            raise
        self._queued.discard(viewer)
        viewer.feed(asked, rows)
        self._serve(viewer.stream)


def _may_be_full(rows: Sequence[StoredEvent], limit: int, limit_bytes: int) -> bool:
    """Whether a page may have been cut. A character takes at most four bytes."""
    return len(rows) >= limit or 4 * sum(len(row.data) for row in rows) >= limit_bytes
