"""Jobs: submitting them, looking at them, cancelling them. Admission itself is one SQL function."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Annotated, Any, Literal, cast

from pydantic import Field, model_validator
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from corevo.contracts import (
    JOB_CHANNEL,
    LANES,
    WORK_CHANNEL,
    AccountId,
    Admission,
    Admitted,
    Command,
    CommandId,
    JobId,
    JobView,
    LocalWorker,
    OnBusy,
    ThreadId,
)
from corevo.control import cursor, shapes
from corevo.control.http import answer_in_time, json_response, read_body, read_limit
from corevo.control.identity import Identity
from corevo.control.projection import Projector
from corevo.control.strict import Body, check_text
from corevo.errors import Invalid, NotFound
from corevo.notifier import Notifier
from corevo.settings import Settings
from corevo.store import commands, jobs
from corevo.store.connections import Connections

TEXT_LIMIT_CHARACTERS = 200_000
METADATA_LIMIT_BYTES = 16_384
PAGE_DEFAULT, PAGE_LIMIT = 50, 100

Text = Annotated[str, Field(min_length=1, max_length=TEXT_LIMIT_CHARACTERS)]
AgentName = Annotated[str, Field(min_length=1, max_length=200)]


class Submission(Body):
    """What POST /api/jobs and the socket's `send` accept. `input` is any JSON value for an agent that wants no text."""

    text: Text | None = None
    input: Any = None
    agent: AgentName | None = None
    thread_id: str | None = None
    on_busy: OnBusy | None = None
    metadata: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Submission:
        if (self.text is None) == (self.input is None):
            raise ValueError("give either text or input")
        if self.metadata is not None and len(shapes.encode(self.metadata).encode()) > METADATA_LIMIT_BYTES:
            raise ValueError(f"metadata: at most {METADATA_LIMIT_BYTES} bytes as JSON")
        return self

    @property
    def shown(self) -> str:
        """What the thread shows as the user's message."""
        if self.text is not None:
            return self.text
        text = self.input if isinstance(self.input, str) else shapes.encode(self.input)
        return text[:TEXT_LIMIT_CHARACTERS]

    @property
    def hash(self) -> str:
        """Equal for the same body, whatever the order and spelling of its fields."""
        canonical = json.dumps(self.model_dump(exclude_none=True), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


class RunInput(Body):
    """A sentence for a run that goes on."""

    text: Text


class RunAnswer(Body):
    """The answer to a question that a run asked with `input.requested`."""

    question_id: Annotated[str, Field(min_length=1, max_length=100)]
    answer: Text


class Jobs:
    """`local`: a worker in this process that may take a new job at once."""

    def __init__(
        self,
        db: Connections,
        settings: Settings,
        notifier: Notifier,
        projector: Projector,
        identity: Identity,
        local: LocalWorker | None,
    ) -> None:
        self._db = db
        self._settings = settings
        self._notifier = notifier
        self._projector = projector
        self._identity = identity
        self._local = local
        self._admissions: set[asyncio.Task[Admitted]] = set()

    def routes(self) -> list[Route]:
        return [
            Route("/api/jobs", self._post, methods=["POST"]),
            Route("/api/jobs", self._list, methods=["GET"]),
            Route("/api/jobs/{job_id}", self._get, methods=["GET"]),
            Route("/api/jobs/{job_id}/cancel", self._cancel, methods=["POST"]),
            Route("/api/jobs/{job_id}/input", self._input, methods=["POST"]),
            Route("/api/jobs/{job_id}/answer", self._answer, methods=["POST"]),
            Route("/api/jobs/{job_id}/commands/{command_id}", self._command, methods=["GET"]),
        ]

    # ── for both edges ────────────────────────────────────────────────────────────────────────────────

    async def submit(self, account_id: AccountId, body: Submission, key: str | None) -> Admitted:
        """Admits, hands the job to the local worker when it was taken for it, and tells everybody else."""
        thread_id = None
        if body.thread_id is not None:
            found = cursor.parse_uuid(body.thread_id)
            if found is None:
                raise NotFound("no such thread")
            thread_id = ThreadId(found)
        if key is not None:
            check_key(key)
        admission = Admission(
            account_id=account_id,
            text=body.shown,
            input=body.input if body.text is None else body.text,
            metadata=body.metadata,
            agent=body.agent,
            thread_id=thread_id,
            on_busy=body.on_busy,
            idempotency_key=key,
            body_hash=body.hash if key is not None else None,
        )
        # A task of its own: a caller that goes or gives up must not leave behind a job that was claimed for nobody.
        task = asyncio.create_task(self._admit(admission))
        self._admissions.add(task)
        task.add_done_callback(self._admitted)
        return await asyncio.shield(task)

    async def _admit(self, admission: Admission) -> Admitted:
        local = self._local if self._local is not None and self._local.reserve() else None
        claim = None
        try:
            admitted = await jobs.admit(
                self._db,
                admission,
                next_limit=self._settings.next_limit,
                worker_id=None if local is None else local.worker_id,
            )
            claim = admitted.claim
        finally:
            # A claim whose answer the database did not get to us is a ghost; the worker's beats find it.
            if local is not None and claim is None:
                local.give_back()
        if local is not None and claim is not None:
            local.take(claim)
        elif admitted.outcome in ("queued", "replaced"):
            self._notifier.post(WORK_CHANNEL, admitted.lane)
        self.changed(admitted.job_id, *admitted.touched)
        return admitted

    def _admitted(self, task: asyncio.Task[Admitted]) -> None:
        self._admissions.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved here too, for a caller that went away

    async def cancel(self, account_id: AccountId, job_id: JobId) -> Command:
        """Requests it; answers with the command as it is then."""
        cancelled = await commands.request_cancel(self._db, account_id, job_id)
        if cancelled.promoted is not None:
            self._notifier.post_lines(WORK_CHANNEL, LANES)
            self.changed(cancelled.promoted)
        self.changed(job_id)
        return await self._read_command(account_id, job_id, cancelled.command_id)

    async def give_input(self, account_id: AccountId, job_id: JobId, body: RunInput) -> Command:
        """Adds a sentence to a run that goes on; answers with the command as it is then."""
        return await self._give(account_id, job_id, "input", {"text": body.text})

    async def give_answer(self, account_id: AccountId, job_id: JobId, body: RunAnswer) -> Command:
        """Answers a question of a run; answers with the command as it is then."""
        payload = {"question_id": body.question_id, "answer": body.answer}
        return await self._give(account_id, job_id, "answer", payload)

    async def _give(
        self, account_id: AccountId, job_id: JobId, kind: Literal["input", "answer"], payload: dict[str, str]
    ) -> Command:
        command_id = await commands.request(self._db, account_id, job_id, kind, payload)
        self.changed(job_id)
        return await self._read_command(account_id, job_id, command_id)

    async def command(self, account_id: AccountId, admitted: Admitted) -> Command:
        """The input that an admission with `on_busy: steer` gave to the run."""
        assert admitted.command_id is not None
        return await self._read_command(account_id, admitted.job_id, admitted.command_id)

    async def _read_command(self, account_id: AccountId, job_id: JobId, command_id: CommandId) -> Command:
        command = await commands.read(self._db, account_id, job_id, command_id)
        if command is None:
            raise NotFound("no such command")
        return command

    async def read(self, account_id: AccountId, job_id: JobId) -> JobView:
        view = await jobs.read(self._db, account_id, job_id)
        if view is None:
            raise NotFound("no such job")
        return view

    def changed(self, *job_ids: JobId) -> None:
        """Hurries everybody who watches or runs these jobs; this process does not wait for its own message."""
        self._notifier.post_lines(JOB_CHANNEL, job_ids)
        self._projector.touch(job_ids)

    # ── HTTP ──────────────────────────────────────────────────────────────────────────────────────────

    async def _post(self, request: Request) -> Response:
        self._identity.check(request)
        body = await read_body(request, Submission)
        keys = request.headers.getlist("idempotency-key")
        if len(keys) > 1:
            raise Invalid("Idempotency-Key: give one")
        async with answer_in_time():
            account = await self._identity.account(request)
            admitted = await self.submit(account, body, keys[0] if keys else None)
            view = await self.read(account, admitted.job_id)
            answer: dict[str, Any] = {"outcome": admitted.outcome, "job": shapes.job(view)}
            if admitted.command_id is not None:
                answer["command"] = shapes.command(await self.command(account, admitted))
        return json_response(answer, 202)

    async def _list(self, request: Request) -> Response:
        limit = read_limit(request, default=PAGE_DEFAULT, most=PAGE_LIMIT)
        after = request.query_params.get("after")
        before = None if after is None else cursor.parse_page_by_time(after)
        thread_id = None
        if (text := request.query_params.get("thread_id")) is not None:
            found = cursor.parse_uuid(text)
            if found is None:
                raise NotFound("no such thread")
            thread_id = ThreadId(found)
        async with answer_in_time():
            account = await self._identity.account(request)
            found_jobs = await jobs.list_newest(self._db, account, thread_id=thread_id, before=before, limit=limit + 1)
        items, more = found_jobs[:limit], len(found_jobs) > limit
        return json_response(
            {
                "items": [shapes.job(view) for view in items],
                "next": cursor.page_by_time(items[-1].created_at, items[-1].id) if more else None,
            }
        )

    async def _get(self, request: Request) -> Response:
        async with answer_in_time():
            account = await self._identity.account(request)
            view = await self.read(account, job_id_of(request))
        return json_response(shapes.job(view))

    async def _cancel(self, request: Request) -> Response:
        async with answer_in_time():
            account = await self._identity.account(request)
            command = await self.cancel(account, job_id_of(request))
        return json_response({"command": shapes.command(command)}, 202)

    async def _input(self, request: Request) -> Response:
        self._identity.check(request)
        body = await read_body(request, RunInput)
        async with answer_in_time():
            account = await self._identity.account(request)
            command = await self.give_input(account, job_id_of(request), body)
        return json_response({"command": shapes.command(command)}, 202)

    async def _answer(self, request: Request) -> Response:
        self._identity.check(request)
        body = await read_body(request, RunAnswer)
        async with answer_in_time():
            account = await self._identity.account(request)
            command = await self.give_answer(account, job_id_of(request), body)
        return json_response({"command": shapes.command(command)}, 202)

    async def _command(self, request: Request) -> Response:
        found = cursor.parse_uuid(request.path_params["command_id"])
        async with answer_in_time():
            account = await self._identity.account(request)
            if found is None:
                raise NotFound("no such command")
            command = await self._read_command(account, job_id_of(request), CommandId(found))
        return json_response(shapes.command(command))


def job_id_of(request: Request) -> JobId:
    return as_job_id(cast(str, request.path_params["job_id"]))


def as_job_id(text: str) -> JobId:
    """Raises NotFound: what is no id is the id of nothing."""
    found = cursor.parse_uuid(text)
    if found is None:
        raise NotFound("no such job")
    return JobId(found)


def check_key(key: str) -> None:
    check_text("Idempotency-Key", key)
    if not (1 <= len(key) <= 255 and key.isascii() and key.isprintable()):
        raise Invalid("Idempotency-Key: 1 to 255 printable ASCII characters")
