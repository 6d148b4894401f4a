"""The routes every role has: /healthz (alive), /readyz (able to serve now, with reasons), /metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from corevo import metrics
from corevo.settings import Settings


def routes(
    settings: Settings,
    reasons: Callable[[], Awaitable[list[str]]],
    facts: Callable[[], Mapping[str, Any]],
    sample: Callable[[], None] = lambda: None,
) -> list[BaseRoute]:
    """`reasons`: why the role cannot serve now, empty when it can. `facts`: what /readyz says beside it.

    `sample` sets the gauges just before they are printed.
    """

    async def healthz(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        why = await reasons()
        body = {"ready": not why, "reasons": why, **facts()}
        return JSONResponse(body, status_code=503 if why else 200, headers={"Cache-Control": "no-store"})

    async def metrics_text(request: Request) -> Response:
        client = request.client.host if request.client else None
        forwarded = "x-forwarded-for" in request.headers or "forwarded" in request.headers
        if not metrics.allowed(settings.metrics_token, request.headers.get("authorization"), client, forwarded):
            return PlainTextResponse("a metrics token is needed (COREVO_METRICS_TOKEN)\n", status_code=401)
        sample()
        body, content_type = await metrics.render()
        return Response(body, media_type=content_type)

    return [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics_text)]
