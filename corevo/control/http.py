"""The HTTP edge: request ids, problem documents, bodies, and what every answer has in common.

Whatever goes wrong becomes one document (RFC 9457) with a stable `code`. An error that nobody expected says nothing
of itself to the client; the log has it under the same request id.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, TypeVar
from uuid import uuid4

import structlog
from pydantic import BaseModel
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corevo.control import shapes, strict
from corevo.errors import CorevoError, Invalid, Refused, Unavailable

log = structlog.get_logger()

BODY_LIMIT_BYTES = 1_048_576
BODY_SECONDS = 30.0
#: From the whole body on. Several statements may be needed, each with a time-out of its own.
ANSWER_SECONDS = 9.0
#: A body larger than this is parsed in a thread.
PARSE_INLINE_BYTES = 65_536
RETRY_AFTER_SECONDS = 5

Model = TypeVar("Model", bound=BaseModel)


class TooLarge(Refused):
    code = "too_large"
    status = 413


# ── answers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def json_response(value: Any, status: int = 200) -> Response:
    return raw_json_response(shapes.encode(value), status)


def raw_json_response(text: str, status: int = 200) -> Response:
    return Response(
        text.encode(), status_code=status, media_type="application/json", headers={"Cache-Control": "no-store"}
    )


def retry_after(error: CorevoError) -> int | None:
    if error.retry_after_seconds is None and error.status in (429, 503):
        return RETRY_AFTER_SECONDS
    return error.retry_after_seconds


def problem(scope: Scope, error: CorevoError, headers: Mapping[str, str] | None = None) -> Response:
    wait = retry_after(error)
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "detail": error.detail or error.code.replace("_", " "),
        "code": error.code,
        "request_id": request_id(scope),
    }
    all_headers = {"Cache-Control": "no-store", **(headers or {})}
    if wait is not None:
        body["retry_after_seconds"] = wait
        all_headers["Retry-After"] = str(wait)
    # in ASCII: a detail may quote what the client sent
    return Response(
        json.dumps(body), status_code=error.status, media_type="application/problem+json", headers=all_headers
    )


def request_id(scope: Scope) -> str:
    value: str = scope.setdefault("corevo.request_id", uuid4().hex)
    return value


async def on_corevo_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, CorevoError)
    if error.status == 500:
        log_failure(request.scope, error)
        error = CorevoError("something went wrong here; the log has it under this request id")
    return problem(request.scope, error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """What the router refuses."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        refused = Refused(f"{request.method} is not possible here", code="method_not_allowed")
    elif error.status_code == 404:
        refused = Refused("there is nothing here", code="not_found")
    else:
        refused = Refused(error.detail, code="refused")
    refused.status = error.status_code
    return problem(request.scope, refused, error.headers)


EXCEPTION_HANDLERS = {CorevoError: on_corevo_error, HTTPException: on_http_exception}


def log_failure(scope: Scope, error: BaseException) -> None:
    """One line: the request, the error and where it came from."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "?"
    log.error(
        "a request failed",
        request_id=request_id(scope),
        route=getattr(scope.get("route"), "path", "unmatched"),
        error=f"{type(error).__name__}: {error}"[:500],
        where=where,
    )


class Edge:
    """ASGI middleware around everything: the request id, common headers, and the last net under an exception."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id(scope)
                headers.setdefault("X-Content-Type-Options", "nosniff")
                headers.setdefault("Referrer-Policy", "no-referrer")
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except ClientDisconnect:
            pass
        except Exception as error:
            log_failure(scope, error)
            if started:
                raise  # half an answer is out: only a broken connection says so
            failure = CorevoError("something went wrong here; the log has it under this request id")
            await problem(scope, failure)(scope, receive, send_with_headers)


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def answer_in_time() -> AsyncIterator[None]:
    """A client that asks while the database is away is told so within ten seconds, however many calls it takes."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            yield
    except TimeoutError:
        raise Unavailable("the database does not answer in time", retry_after_seconds=2) from None


async def read_body(request: Request, model: type[Model], *, may_be_empty: bool = False) -> Model:
    """Reads, parses and checks a body. Raises TooLarge, BadJson, Invalid."""
    raw = await _read_limited(request)
    if may_be_empty and not raw:
        raw = b"{}"
    value = await parse(raw)
    strict.check_storable(raw, value)
    return strict.validate(model, value)


async def parse(raw: bytes) -> Any:
    """Raises BadJson. A large text is parsed beside the loop."""
    if len(raw) <= PARSE_INLINE_BYTES:
        return strict.loads(raw)
    return await asyncio.to_thread(strict.loads, raw)


async def _read_limited(request: Request) -> bytes:
    """Stops reading at the limit, whatever the length header says."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and len(announced) < 20 and int(announced) > BODY_LIMIT_BYTES:
        raise TooLarge(f"a body may have {BODY_LIMIT_BYTES} bytes")
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > BODY_LIMIT_BYTES:
                    raise TooLarge(f"a body may have {BODY_LIMIT_BYTES} bytes")
                chunks.append(chunk)
    except TimeoutError:
        raise Invalid("the body did not arrive in time") from None
    return b"".join(chunks)


def read_limit(request: Request, *, default: int, most: int) -> int:
    """The `limit` parameter."""
    text = request.query_params.get("limit")
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 6 and 1 <= int(text) <= most):
        raise Invalid(f"limit: a number from 1 to {most}")
    return int(text)
