"""Threads, their messages, and the agents one can talk to."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from corevo.contracts import AccountId, ThreadId, ThreadView
from corevo.control import cursor, shapes
from corevo.control.http import answer_in_time, json_response, read_body, read_limit
from corevo.control.identity import Identity
from corevo.control.markdown import Renderer
from corevo.control.strict import Body, check_text
from corevo.errors import Invalid, NotFound
from corevo.store import threads, workers
from corevo.store.connections import Connections

PAGE_DEFAULT, PAGE_LIMIT = 50, 100

WORDS_LIMIT_CHARACTERS = 200

Title = Annotated[str, Field(max_length=200)]


class NewThread(Body):
    title: Title = ""


class ThreadChange(Body):
    title: Title | None = None
    unread: bool | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> ThreadChange:
        if self.title is None and self.unread is None:
            raise ValueError("give a title, unread or both")
        return self


class Threads:
    def __init__(self, db: Connections, identity: Identity) -> None:
        self._db = db
        self._identity = identity
        self._renderer = Renderer()

    def routes(self) -> list[Route]:
        return [
            Route("/api/agents", self._agents, methods=["GET"]),
            Route("/api/threads", self._post, methods=["POST"]),
            Route("/api/threads", self._list, methods=["GET"]),
            Route("/api/threads/{thread_id}", self._get, methods=["GET"]),
            Route("/api/threads/{thread_id}", self._patch, methods=["PATCH"]),
            Route("/api/threads/{thread_id}", self._delete, methods=["DELETE"]),
            Route("/api/threads/{thread_id}/messages", self._messages, methods=["GET"]),
        ]

    async def _agents(self, request: Request) -> Response:
        async with answer_in_time():
            await self._identity.account(request)
            served = await workers.agents_served(self._db)
        return json_response({"items": [shapes.agent(spec) for spec in served], "next": None})

    async def _post(self, request: Request) -> Response:
        self._identity.check(request)
        body = await read_body(request, NewThread, may_be_empty=True)
        async with answer_in_time():
            account = await self._identity.account(request)
            view = await self._read(account, await threads.create(self._db, account, body.title))
        return json_response(shapes.thread(view), 201)

    async def _list(self, request: Request) -> Response:
        limit = read_limit(request, default=PAGE_DEFAULT, most=PAGE_LIMIT)
        after = request.query_params.get("after")
        before = None if after is None else cursor.parse_page_by_time(after)
        words = request.query_params.get("q") or None
        if words is not None:
            check_text("q", words)
            if len(words) > WORDS_LIMIT_CHARACTERS:
                raise Invalid(f"q: at most {WORDS_LIMIT_CHARACTERS} characters")
        async with answer_in_time():
            account = await self._identity.account(request)
            found = await threads.list_newest(self._db, account, words=words, before=before, limit=limit + 1)
        items, more = found[:limit], len(found) > limit
        return json_response(
            {
                "items": [shapes.thread(view) for view in items],
                "next": cursor.page_by_time(items[-1].updated_at, items[-1].id) if more else None,
            }
        )

    async def _get(self, request: Request) -> Response:
        async with answer_in_time():
            account = await self._identity.account(request)
            view = await self._read(account, thread_id_of(request))
        return json_response(shapes.thread(view))

    async def _patch(self, request: Request) -> Response:
        self._identity.check(request)
        body = await read_body(request, ThreadChange)
        async with answer_in_time():
            account = await self._identity.account(request)
            thread_id = thread_id_of(request)
            if body.title is not None:
                await threads.rename(self._db, account, thread_id, body.title)
            if body.unread is not None:
                await threads.mark(self._db, account, thread_id, unread=body.unread)
            view = await self._read(account, thread_id)
        return json_response(shapes.thread(view))

    async def _delete(self, request: Request) -> Response:
        async with answer_in_time():
            account = await self._identity.account(request)
            await threads.delete(self._db, account, thread_id_of(request))
        return Response(status_code=204)

    async def _messages(self, request: Request) -> Response:
        limit = read_limit(request, default=PAGE_DEFAULT, most=PAGE_LIMIT)
        order = request.query_params.get("order", "oldest")
        if order not in ("oldest", "newest"):
            raise Invalid("order: oldest or newest")
        text = request.query_params.get("after")
        place = None if text is None else cursor.parse_page_by_place(text)
        async with answer_in_time():
            account = await self._identity.account(request)
            thread_id = thread_id_of(request)
            if order == "oldest":
                found = await threads.messages(self._db, account, thread_id, after=place or (0, 0), limit=limit + 1)
            else:
                found = await threads.messages_newest(
                    self._db, account, thread_id, before=place or threads.NEWEST, limit=limit + 1
                )
            if not found:
                await self._read(account, thread_id)  # no message, or no such thread?
        items, more = found[:limit], len(found) > limit
        rendered = await self._renderer.html(items)
        return json_response(
            {
                "items": [shapes.message(view, html) for view, html in zip(items, rendered, strict=True)],
                "next": cursor.page_by_place(items[-1].turn, items[-1].part) if more else None,
            }
        )

    async def _read(self, account: AccountId, thread_id: ThreadId) -> ThreadView:
        view = await threads.read(self._db, account, thread_id)
        if view is None:
            raise NotFound("no such thread")
        return view


def thread_id_of(request: Request) -> ThreadId:
    """Raises NotFound: what is no id is the id of nothing."""
    found = cursor.parse_uuid(request.path_params["thread_id"])
    if found is None:
        raise NotFound("no such thread")
    return ThreadId(found)
