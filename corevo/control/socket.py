"""The WebSocket /api/ws, subprotocol corevo.v1: one connection, many streams, one reader, one writer.

The reader obeys one operation after the other; the writer sends answers first, then what the attached viewers take, in
turn. Whichever ends first ends the other. A connection owns nothing: losing it changes no job.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Annotated, Any

import structlog
from pydantic import Field
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from corevo import clock, metrics
from corevo.contracts import AccountId, JobId, OnBusy
from corevo.control import shapes
from corevo.control.closing import Closing
from corevo.control.http import ANSWER_SECONDS, parse, problem, retry_after
from corevo.control.identity import Identity
from corevo.control.jobs import AgentName, Jobs, RunAnswer, RunInput, Submission, Text, as_job_id
from corevo.control.merge import Viewer
from corevo.control.projection import Projector
from corevo.control.strict import BadJson, Body, check_storable, storable, validate
from corevo.errors import CorevoError, Invalid, Refused, Unavailable

log = structlog.get_logger()

SUBPROTOCOL = "corevo.v1"
FRAME_LIMIT_BYTES = 1_048_576
PING_SECONDS = 20.0
#: A client that takes nothing for so long is told to resume elsewhere, if it ever reads again.
STALL_SECONDS = 20.0
CLOSE_SECONDS = 20.0
BYE_SECONDS = 1.0
STREAMS_LIMIT = 100
#: More frames than this within the time is a flood.
FLOOD_FRAMES, FLOOD_SECONDS = 200, 10.0
#: The reader waits while so many answers have not been taken.
ANSWERS_LIMIT = 64

BAD_FRAME, TOO_SLOW, FLOOD, RESTARTING, TOO_BIG = 4400, 4408, 4429, 1012, 1009

REF_LIMIT_CHARACTERS = 200

Ref = Annotated[str, Field(max_length=REF_LIMIT_CHARACTERS)] | int | None
IdText = Annotated[str, Field(max_length=200)]


class Operation(Body):
    op: str
    ref: Ref = None


class Send(Operation):
    text: Text
    thread_id: IdText | None = None
    agent: AgentName | None = None
    on_busy: OnBusy | None = None
    idempotency_key: str | None = None

    @property
    def submission(self) -> Submission:
        return Submission(text=self.text, thread_id=self.thread_id, agent=self.agent, on_busy=self.on_busy)


class Attach(Operation):
    job_id: IdText
    after: IdText | None = None


class Detach(Operation):
    job_id: IdText


class Cancel(Operation):
    job_id: IdText


class Input(Operation):
    job_id: IdText
    text: Text


class Answer(Operation):
    job_id: IdText
    question_id: IdText
    answer: Text


class Ping(Operation):
    pass


class Auth(Operation):
    token: str | None = None


OPERATIONS: dict[str, type[Operation]] = {
    "send": Send,
    "attach": Attach,
    "detach": Detach,
    "cancel": Cancel,
    "input": Input,
    "answer": Answer,
    "ping": Ping,
    "auth": Auth,
}


class Close(Exception):
    """Ends the connection with a code."""

    def __init__(self, code: int, error: CorevoError | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.error = error


class Sockets:
    """The route, and what every connection needs."""

    def __init__(self, projector: Projector, jobs: Jobs, identity: Identity, closing: Closing) -> None:
        self.projector = projector
        self.jobs = jobs
        self.closing = closing
        self._identity = identity
        self.open = 0

    def routes(self) -> list[WebSocketRoute]:
        return [WebSocketRoute("/api/ws", self._serve)]

    async def _serve(self, socket: WebSocket) -> None:
        """The handshake is refused before it is accepted, with a problem document. No subprotocol is offered: fine."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                account = await self._identity.account(socket)
        except (CorevoError, TimeoutError) as error:
            refusal = error if isinstance(error, CorevoError) else Unavailable("the database does not answer")
            if "websocket.http.response" in socket.scope.get("extensions", {}):
                await socket.send_denial_response(problem(socket.scope, refusal))
            else:
                await socket.close()  # a server without the extension answers 403 by itself
            return
        offered = socket.scope.get("subprotocols", [])
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        self.open += 1
        metrics.SOCKETS.set({}, self.open)
        try:
            await Session(socket, account, self).run()
        finally:
            self.open -= 1
            metrics.SOCKETS.set({}, self.open)


class Session:
    def __init__(self, socket: WebSocket, account: AccountId, sockets: Sockets) -> None:
        self._socket = socket
        self._account = account
        self._projector = sockets.projector
        self._jobs = sockets.jobs
        self._closing = sockets.closing
        self._viewers: dict[JobId, Viewer] = {}
        self._answers: deque[str] = deque()
        self._wake = asyncio.Event()  # for the writer: something to send
        self._taken = asyncio.Event()  # for the reader: answers went out
        self._ready: dict[Viewer, None] = {}  # woken viewers, in turn
        self._frames: deque[float] = deque(maxlen=FLOOD_FRAMES + 1)

    async def run(self) -> None:
        self._closing.add(self._wake)
        ending: Close | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                both = [tasks.create_task(self._read()), tasks.create_task(self._write())]
                done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                for task in both:
                    task.cancel()
                for task in done:
                    ending = task.result() or ending
        except* (WebSocketDisconnect, OSError):
            ending = None  # the connection broke while something was sent
        finally:
            self._closing.discard(self._wake)
            for viewer in self._viewers.values():
                self._projector.detach(viewer)
            self._viewers.clear()
        if ending is not None:
            await self._close(ending)

    async def _close(self, ending: Close) -> None:
        """Says why, if the client takes it; one that never reads again is left to the transport."""
        with contextlib.suppress(TimeoutError, WebSocketDisconnect, OSError, RuntimeError):
            async with asyncio.timeout(BYE_SECONDS if ending.code == RESTARTING else CLOSE_SECONDS):
                if ending.error is not None:
                    await self._socket.send_text(_error(ending.error, None))
                await self._socket.close(ending.code)

    # ── the writer ────────────────────────────────────────────────────────────────────────────────────

    async def _write(self) -> Close | None:
        """Sends until the connection has to end; a ping when nothing else was due for a while."""
        ping_at = clock.seconds() + PING_SECONDS
        try:
            while True:
                if self._closing.begun:
                    bye = {"ev": "bye", "resume": True, "retry_in_ms": self._closing.return_in_ms()}
                    await self._send(shapes.encode(bye))  # here, before the server closes the connection over our head
                    return Close(RESTARTING)
                if clock.seconds() >= ping_at:
                    ping_at = clock.seconds() + PING_SECONDS
                    await self._send('{"ev":"ping"}')
                elif self._answers:
                    await self._send(self._answers.popleft())
                    self._taken.set()
                elif self._ready:
                    viewer = next(iter(self._ready))
                    del self._ready[viewer]
                    await self._send_turn(viewer)
                else:
                    self._wake.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(max(0.0, ping_at - clock.seconds())):
                            await self._wake.wait()
        except TimeoutError:
            return Close(TOO_SLOW)

    async def _send_turn(self, viewer: Viewer) -> None:
        """One batch of one viewer; if it has more, it stands behind the others again."""
        items = self._projector.take(viewer)
        for item in items:
            await self._send(item.frame)
            if viewer.done and self._viewers.get(viewer.stream.job_id) is not viewer:
                return  # detached meanwhile: the rest is not wanted
        if viewer.done:
            if self._viewers.get(viewer.stream.job_id) is viewer:
                self._detach(viewer.stream.job_id)
        elif items:
            self._stand(viewer)

    async def _send(self, text: str) -> None:
        """Raises TimeoutError when the client has taken nothing for too long."""
        async with asyncio.timeout(STALL_SECONDS):
            try:
                await self._socket.send_text(text)
            except RuntimeError:  # the server has closed the connection already
                raise WebSocketDisconnect(1006) from None

    def _answer(self, text: str) -> None:
        self._answers.append(text)
        self._wake.set()

    def _stand(self, viewer: Viewer) -> None:
        self._ready[viewer] = None
        self._wake.set()

    # ── the reader ────────────────────────────────────────────────────────────────────────────────────

    async def _read(self) -> Close | None:
        """Obeys until the client goes or misbehaves."""
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return None
            text = message.get("text")
            if text is None:
                return _bad_frame("a frame is a JSON object as text")
            now = clock.seconds()
            self._frames.append(now)
            if len(self._frames) > FLOOD_FRAMES and now - self._frames[0] < FLOOD_SECONDS:
                return Close(FLOOD, Refused("too many frames", code="flood"))
            raw = text.encode("utf-8", "surrogatepass")
            if len(raw) > FRAME_LIMIT_BYTES:
                return Close(TOO_BIG)
            try:
                await self._obey(raw)
            except Close as ending:
                return ending
            while len(self._answers) >= ANSWERS_LIMIT:
                self._taken.clear()
                await self._taken.wait()

    async def _obey(self, raw: bytes) -> None:
        """One frame, one answer. Raises Close for a frame that is none of the protocol's."""
        try:
            frame = await parse(raw)
        except BadJson as error:
            raise _bad_frame(error.detail) from None
        if not isinstance(frame, dict) or not isinstance(frame.get("op"), str):
            raise _bad_frame("a frame is a JSON object with an op")
        model = OPERATIONS.get(frame["op"])
        if model is None:
            raise _bad_frame("there is no such op")
        ref = _ref(frame)
        try:
            check_storable(raw, frame)
            operation = validate(model, frame)
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._do(operation)
        except TimeoutError:
            self._answer(_error(Unavailable("the database does not answer in time", retry_after_seconds=2), ref))
        except CorevoError as error:
            self._answer(_error(error, ref))
        except Exception:
            log.exception("an operation of a socket failed")
            self._answer(_error(CorevoError("something went wrong here"), ref))

    async def _do(self, operation: Operation) -> None:
        match operation:
            case Send():
                await self._do_send(operation)
            case Attach():
                await self._do_attach(operation)
            case Cancel():
                command = await self._jobs.cancel(self._account, as_job_id(operation.job_id))
                self._ack(operation, command=shapes.command(command))
            case Input():
                body = RunInput(text=operation.text)
                command = await self._jobs.give_input(self._account, as_job_id(operation.job_id), body)
                self._ack(operation, command=shapes.command(command))
            case Answer():
                reply = RunAnswer(question_id=operation.question_id, answer=operation.answer)
                command = await self._jobs.give_answer(self._account, as_job_id(operation.job_id), reply)
                self._ack(operation, command=shapes.command(command))
            case Detach():
                self._detach(as_job_id(operation.job_id))
                if operation.ref is not None:
                    self._ack(operation)
            case Ping():
                self._answer('{"ev":"pong"}')
            case Auth():
                self._ack(operation)  # everyone is signed in already
            case _:
                raise AssertionError(operation)

    async def _do_send(self, operation: Send) -> None:
        self._room_for_one()
        admitted = await self._jobs.submit(self._account, operation.submission, operation.idempotency_key)
        result: dict[str, Any] = {"outcome": admitted.outcome}
        if admitted.command_id is not None:
            result["command"] = shapes.command(await self._jobs.command(self._account, admitted))
        if admitted.job_id in self._viewers:  # joined: the client has this stream already
            view = await self._jobs.read(self._account, admitted.job_id)
            self._ack(operation, **result, job=shapes.job(view))
        else:
            await self._attach(operation, admitted.job_id, None, **result)

    async def _do_attach(self, operation: Attach) -> None:
        job_id = as_job_id(operation.job_id)
        if job_id not in self._viewers:
            self._room_for_one()
        await self._attach(operation, job_id, operation.after)

    async def _attach(self, operation: Operation, job_id: JobId, after: str | None, **result: Any) -> None:
        """The ack first, then what the stream has: the viewer stands in line only after its answer."""
        begun = False

        def wake() -> None:
            if begun:
                self._stand(viewer)

        viewer, view = await self._projector.attach(self._account, job_id, after, wake, knows_job=True)
        self._detach(job_id)  # attached again with another cursor: the new one counts
        self._viewers[job_id] = viewer
        self._ack(operation, **result, job=shapes.job(view))
        begun = True
        self._stand(viewer)

    def _room_for_one(self) -> None:
        if len(self._viewers) >= STREAMS_LIMIT:
            raise Invalid(f"one connection carries {STREAMS_LIMIT} streams; detach some", code="too_many_streams")

    def _detach(self, job_id: JobId) -> None:
        viewer = self._viewers.pop(job_id, None)
        if viewer is not None:
            self._projector.detach(viewer)

    def _ack(self, operation: Operation, **result: Any) -> None:
        self._answer(shapes.encode({"ev": "ack", "ref": operation.ref, **result}))


def _bad_frame(detail: str) -> Close:
    return Close(BAD_FRAME, Refused(detail, code="bad_frame"))


def _ref(frame: dict[str, Any]) -> str | int | None:
    """The frame's ref, if it can be said back."""
    ref = frame.get("ref")
    if isinstance(ref, str):
        return ref if len(ref) <= REF_LIMIT_CHARACTERS and storable(ref) else None
    return ref if isinstance(ref, int) and not isinstance(ref, bool) else None


def _error(error: CorevoError, ref: str | int | None) -> str:
    frame: dict[str, Any] = {"ev": "error"}
    if ref is not None:
        frame["ref"] = ref
    frame |= {"code": error.code, "detail": error.detail or error.code.replace("_", " ")}
    if (wait := retry_after(error)) is not None:
        frame["retry_after_seconds"] = wait
    return shapes.encode(frame)
