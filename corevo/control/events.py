"""A job's events over HTTP: stored ones as JSON, or replay and then live as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from corevo.contracts import ExecutionId, JobId
from corevo.control import cursor, shapes
from corevo.control.closing import Closing
from corevo.control.http import answer_in_time, raw_json_response, read_limit
from corevo.control.identity import Identity
from corevo.control.jobs import Jobs, job_id_of
from corevo.control.merge import TERMINAL_TYPES, Entry, Item, Viewer, event_text
from corevo.control.projection import Projector
from corevo.errors import BadCursor, Unavailable
from corevo.store import events
from corevo.store.connections import Connections

PAGE_DEFAULT, PAGE_LIMIT = 200, 1_000
PAGE_BYTES = 1_048_576
HEARTBEAT_SECONDS = 20.0
#: A client that takes nothing for so long is let go; it comes back with its cursor.
STALL_SECONDS = 20.0
RETRY_MS = 1_000

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class Events:
    def __init__(self, db: Connections, projector: Projector, jobs: Jobs, identity: Identity, closing: Closing) -> None:
        self._db = db
        self._projector = projector
        self._jobs = jobs
        self._identity = identity
        self._closing = closing

    def routes(self) -> list[Route]:
        return [Route("/api/jobs/{job_id}/events", self._get, methods=["GET"])]

    async def _get(self, request: Request) -> Response:
        after = request.query_params.get("after")
        if request.method == "GET" and "text/event-stream" in request.headers.get("accept", ""):
            return await self._stream(request, request.headers.get("last-event-id") or after)
        return await self._page(request, after)

    async def _page(self, request: Request, after: str | None) -> Response:
        limit = read_limit(request, default=PAGE_DEFAULT, most=PAGE_LIMIT)
        async with answer_in_time():
            account = await self._identity.account(request)
            job_id = job_id_of(request)
            await self._jobs.read(account, job_id)
            place = await self._place(job_id, after)
            rows = []
            if place is not None:
                rows = await events.read(
                    self._db, job_id, epoch=place[0], seq=place[1], limit=limit + 1, limit_bytes=PAGE_BYTES
                )
        more = len(rows) > limit or sum(len(row.data.encode()) for row in rows) >= PAGE_BYTES
        items = rows[:limit]
        texts = ",".join("{" + event_text(job_id, e.execution_id, e.epoch, e.seq, e.type, e.data) for e in items)
        following = None
        if more:
            last = items[-1]
            following = cursor.of_event(last.execution_id, last.seq, last.type in TERMINAL_TYPES)
        return raw_json_response(f'{{"items":[{texts}],"next":{shapes.encode(following)}}}')

    async def _place(self, job_id: JobId, after: str | None) -> tuple[int, int] | None:
        """The position after which to read; None for the end of a job."""
        if after is None:
            return (0, 0)
        at = cursor.parse_stream(after)
        if at.seq is None:
            heads = await events.heads(self._db, [job_id]) if at.id == job_id else []
            if not heads or not heads[0].ends_with_job_frame:
                raise BadCursor("this job did not end so")
            return None
        epoch = await events.execution_epoch(self._db, job_id, ExecutionId(at.id))
        if epoch is None:
            raise BadCursor("this cursor is not of this job")
        return (epoch, at.seq)

    async def _stream(self, request: Request, after: str | None) -> Response:
        if self._closing.begun:
            raise Unavailable("this process is stopping", retry_after_seconds=1)
        wake = asyncio.Event()
        async with answer_in_time():
            account = await self._identity.account(request)
            viewer, _ = await self._projector.attach(account, job_id_of(request), after, wake.set, knows_job=False)
        if viewer.delivered:
            self._projector.detach(viewer)
            return Response(status_code=204)  # tells an EventSource not to come back
        return EventStream(self._projector, viewer, wake, self._closing)


class EventStream(Response):
    """Sends what a viewer takes until the stream ends, the client goes, or the process stops."""

    def __init__(self, projector: Projector, viewer: Viewer, wake: asyncio.Event, closing: Closing) -> None:
        super().__init__()
        self._projector = projector
        self._viewer = viewer
        self._wake = wake
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._closing.add(self._wake)
        try:
            # Two tasks, and the first to end ends the other: a client that goes is noticed while nothing is sent.
            async with asyncio.TaskGroup() as tasks:
                both = [tasks.create_task(self._send(send)), tasks.create_task(_until_gone(receive))]
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                for task in both:
                    task.cancel()
        finally:
            self._closing.discard(self._wake)
            self._projector.detach(self._viewer)

    async def _send(self, send: Send) -> None:
        with contextlib.suppress(TimeoutError, OSError):
            await _send_timed(send, {"type": "http.response.start", "status": 200, "headers": HEADERS})
            await _send_text(send, f"retry: {RETRY_MS}\n\n")
            while not self._viewer.done:
                self._wake.clear()
                if self._closing.begun:
                    await _send_text(send, f"retry: {self._closing.return_in_ms()}\n: stopping\n\n")
                    break
                items = self._projector.take(self._viewer)
                if items:
                    await _send_text(send, "".join(map(_encode, items)))
                elif not self._viewer.done:
                    await self._wait(send)
            await _send_timed(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _wait(self, send: Send) -> None:
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                await self._wake.wait()
        except TimeoutError:
            await _send_text(send, ": \n\n")


def _encode(item: Item) -> str:
    if isinstance(item, Entry):
        return f"id: {item.cursor}\ndata: {item.frame}\n\n"
    place = f"id: {item.cursor}\n" if item.cursor is not None else ""
    return f"event: {item.kind}\n{place}data: {item.frame}\n\n"


async def _send_text(send: Send, text: str) -> None:
    await _send_timed(send, {"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _send_timed(send: Send, message: Message) -> None:
    async with asyncio.timeout(STALL_SECONDS):
        await send(message)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
