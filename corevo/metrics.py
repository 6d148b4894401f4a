"""The metrics of one process. Names, labels and meanings are listed in ops/README.md; a test compares.

aioprometheus keeps and prints them, but for what it does not do: label values are escaped here, a counter that was
never touched is set to 0 at start, and printing happens off the event loop. Label values come from fixed sets only.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from aioprometheus.collectors import REGISTRY, Counter, Gauge, Histogram
from aioprometheus.formats.text import TEXT_CONTENT_TYPE, TextFormatter

from corevo import clock

REQUESTS = Counter("corevo_http_requests_total", "HTTP requests answered, by route template, method and status class")
REQUEST_SECONDS = Histogram(
    "corevo_http_request_seconds",
    "Seconds from request to response start, by route template",
    buckets=[0.005, 0.02, 0.1, 0.5, 2.0, 10.0],
)
SOCKETS = Gauge("corevo_websockets", "Open WebSockets of this process")
STREAMS = Gauge("corevo_watched_jobs", "Jobs whose stream this process projects")
JOBS_ENDED = Counter("corevo_jobs_ended_total", "Executions this worker ended, by outcome")
PLACES_BUSY = Gauge("corevo_places_busy", "Places in use in this worker, by lane")
EVENTS_STORED = Counter("corevo_events_stored_total", "Events this worker stored")
SWEEPS = Counter("corevo_sweeps_total", "Sweeps finished by this process as janitor")
DAYS_REMOVED = Counter("corevo_event_days_removed_total", "Days of events this process removed as janitor")
SWEPT = Counter("corevo_swept_jobs_total", "Jobs this process ended or released as janitor, by result")
LAG = Gauge("corevo_event_loop_lag_ms", "Greatest event loop lag since the last heartbeat, in milliseconds")
STALLS = Counter("corevo_event_loop_stalls_total", "Times the event loop did not answer for a quarter of a second")
LISTENING = Gauge("corevo_listening", "1 while the notification channel is proved end to end, 0 while polling")
STATEMENTS = Gauge("corevo_statements", "Statements this process has sent since its start")

METHODS = ("GET", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS", "WEBSOCKET")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


def prepare() -> None:
    """Makes every series without labels visible from the start."""
    for counter in (EVENTS_STORED, SWEEPS, STALLS, DAYS_REMOVED):
        counter.set({}, 0)
    for gauge in (SOCKETS, STREAMS, LAG, LISTENING, STATEMENTS):
        gauge.set({}, 0)


class EscapingFormatter(TextFormatter):
    """The library prints label values as they are; a quote or a newline in one would forge lines."""

    def _format_line(self, name: str, labels: Any, value: Any, const_labels: Any) -> str:
        joined = {**(const_labels or {}), **(labels or {})}
        text = ",".join(f'{key}="{escape(str(label))}"' for key, label in joined.items())
        return f"{name}{{{text}}} {value}" if text else f"{name} {value}"


def escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def sample_process(lag_ms: float, listening: bool, statements: int) -> None:
    """Sets the gauges that every role has."""
    LAG.set({}, lag_ms)
    LISTENING.set({}, int(listening))
    STATEMENTS.set({}, statements)


async def render() -> tuple[bytes, str]:
    """The exposition text and its content type; printed in a thread, it can take tens of milliseconds."""
    return await asyncio.to_thread(_print), TEXT_CONTENT_TYPE


def _print() -> bytes:
    while True:
        try:
            return EscapingFormatter().marshall(REGISTRY)
        except RuntimeError:
            continue  # a series was born while we were walking over them; the set of series is bounded


def allowed(token: str, authorization: str | None, client_host: str | None, forwarded: bool) -> bool:
    """With a token configured only its bearer may read; without one only a direct client on this machine."""
    if token:
        given = (authorization or "").removeprefix("Bearer ")
        return hmac.compare_digest(given.encode(), token.encode())
    return not forwarded and client_host in ("127.0.0.1", "::1")


class Measured:
    """ASGI middleware: counts and times requests by route template, never by path."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        began = clock.seconds()
        status = 0

        async def watch(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                REQUEST_SECONDS.observe({"route": _route(scope)}, clock.seconds() - began)
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            method = scope.get("method", "WEBSOCKET")
            labels = {
                "route": _route(scope),
                "method": method if method in METHODS else "OTHER",
                "status": f"{status // 100}xx" if status else "none",
            }
            REQUESTS.inc(labels)


def _route(scope: Scope) -> str:
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else "unmatched"
