"""The bare page at /: three small files, read once. It may load nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from corevo.control.identity import Identity

HERE = Path(__file__).parent
FILES = {
    "/": ("templates/page.html", "text/html; charset=utf-8"),
    "/static/page.js": ("static/page.js", "text/javascript; charset=utf-8"),
    "/static/page.css": ("static/page.css", "text/css; charset=utf-8"),
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}


class Page:
    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._files = {path: ((HERE / name).read_bytes(), kind) for path, (name, kind) in FILES.items()}

    def routes(self) -> list[Route]:
        return [Route(path, self._get, methods=["GET"]) for path in FILES]

    async def _get(self, request: Request) -> Response:
        self._identity.check(request)
        body, kind = self._files[request.url.path]
        return Response(body, media_type=kind, headers=HEADERS)
