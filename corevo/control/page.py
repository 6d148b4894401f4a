"""The page at / and at /t/THREAD: one template in the reader's language, and a few static files, read once.

It may load nothing from elsewhere. Static files stand below a hash of all of them, so that they may be kept for ever
and a page never mixes two releases; only while a new release is being rolled out, another process may be asked for a
hash that it does not have, and then it answers with what it has, not to be kept.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from corevo.control import language
from corevo.control.identity import Identity
from corevo.control.jobs import TEXT_LIMIT_CHARACTERS
from corevo.errors import NotFound

HERE = Path(__file__).parent
KINDS = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
FOR_EVER = "public, max-age=31536000, immutable"


class Page:
    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._files = {path.name: path.read_bytes() for path in sorted((HERE / "static").iterdir())}
        self._hash = hashlib.sha256(repr(sorted(self._files.items())).encode()).hexdigest()[:16]
        words = language.load()
        self._pages = {tag: self._render(tag, found) for tag, found in words.items()}
        self._words = words

    def routes(self) -> list[Route]:
        return [
            Route("/", self._page, methods=["GET"]),
            Route("/t/{thread_id}", self._page, methods=["GET"]),
            Route("/static/{hash}/{name}", self._static, methods=["GET"]),
        ]

    def _render(self, tag: str, words: language.Words) -> bytes:
        environment = Environment(
            loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        settings = {"text_limit": TEXT_LIMIT_CHARACTERS, "language": tag}
        return (
            environment.get_template("page.html")
            .render(language=tag, words=words, static=f"/static/{self._hash}", settings=settings)
            .encode()
        )

    async def _page(self, request: Request) -> Response:
        """The same for every thread: what is in it the page asks for itself, and a thread that is none shows as one."""
        self._identity.check(request)
        tag = language.choose(request.headers.get("accept-language"), self._words)
        headers = {
            "Content-Security-Policy": POLICY,
            "Cache-Control": "no-cache",
            "Content-Language": tag,
            "Cross-Origin-Opener-Policy": "same-origin",
            "Vary": "Accept-Language",
            "X-DNS-Prefetch-Control": "off",  # a host in an answer is looked up when somebody follows the link
        }
        return Response(self._pages[tag], media_type="text/html; charset=utf-8", headers=headers)

    async def _static(self, request: Request) -> Response:
        self._identity.check(request)
        name = request.path_params["name"]
        if name not in self._files:
            raise NotFound("there is no such file")
        kept = FOR_EVER if request.path_params["hash"] == self._hash else "no-store"
        return Response(self._files[name], media_type=KINDS[Path(name).suffix], headers={"Cache-Control": kept})
