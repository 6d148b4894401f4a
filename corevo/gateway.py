"""The gateway: HTTP, WebSocket and pages; admits jobs and projects their events to clients. Runs no agent code."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from types import FrameType
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from corevo import metrics
from corevo.contracts import EVENT_CHANNEL, JOB_CHANNEL, LocalWorker
from corevo.control.closing import Closing
from corevo.control.events import Events
from corevo.control.http import EXCEPTION_HANDLERS, Edge
from corevo.control.identity import Identity
from corevo.control.jobs import Jobs
from corevo.control.page import Page
from corevo.control.projection import Projector
from corevo.control.socket import Sockets
from corevo.control.threads import Threads
from corevo.process import Process
from corevo.settings import Settings, load_settings
from corevo.tasks import Background

CHANNELS = (JOB_CHANNEL, EVENT_CHANNEL)
#: Between the word that we stop and the server's own closing of connections: time for the good-byes.
GOODBYE_SECONDS = 0.2


class Gateway:
    """The role without its app: solo composes it with a worker. `local`: takes jobs that are submitted here at once.

    The owner hands over what the pulse hears, calls `start`, and `shutdown` in the tick of the signal.
    """

    def __init__(self, process: Process, local: LocalWorker | None = None) -> None:
        db, settings = process.db, process.settings
        self._closing = Closing()
        self._projector = Projector(db, settings, process.listening)
        identity = Identity(settings, db)
        jobs = Jobs(db, settings, process.notifier, self._projector, identity, local)
        self._sockets = Sockets(self._projector, jobs, identity, self._closing)
        self._routes: list[BaseRoute] = [
            *Threads(db, identity).routes(),
            *Events(db, self._projector, jobs, identity, self._closing).routes(),
            *jobs.routes(),
            *self._sockets.routes(),
            *Page(identity).routes(),
        ]
        process.samplers.append(self._sample)

    def start(self, background: Background) -> None:
        background.start(self._projector.run(), "projector")

    def on_message(self, channel: str, payload: str) -> None:
        self._projector.on_message(channel, payload)

    def resync(self) -> None:
        self._projector.resync()

    def shutdown(self) -> None:
        """Every stream says good-bye and ends; may be called again. Runs go on elsewhere."""
        self._closing.begin()

    def application(
        self, more: Sequence[BaseRoute], lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]]
    ) -> Starlette:
        """An app with this gateway's routes and `more`. `app.state.on_stop` may be replaced before it starts."""

        @asynccontextmanager
        async def around(app: Starlette) -> AsyncIterator[None]:
            async with lifespan(app):
                with goodbye_first(app.state.on_stop):
                    yield

        app = Starlette(
            routes=[*more, *self._routes],
            lifespan=around,
            middleware=[Middleware(metrics.Measured), Middleware(Edge)],
            exception_handlers=EXCEPTION_HANDLERS,
        )
        app.router.redirect_slashes = False  # a path that is not ours is answered as such
        app.state.on_stop = self.shutdown
        return app

    def _sample(self) -> None:
        metrics.SOCKETS.set({}, self._sockets.open)
        metrics.STREAMS.set({}, self._projector.watched)


def create_app(settings: Settings | None = None) -> Starlette:
    """The role alone."""
    process = Process(settings or load_settings(), "web")
    gateway = Gateway(process)
    process.add_pulse(CHANNELS, gateway.on_message, gateway.resync)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await process.pass_gate()
        process.begin()
        gateway.start(process.background)
        try:
            yield
        finally:
            gateway.shutdown()
            await process.end()

    return gateway.application(process.routes(), lifespan)


@contextmanager
def goodbye_first(shutdown: Callable[[], None]) -> Iterator[None]:
    """For a bare `uvicorn corevo.gateway:app`, which tells an app of its stop only after every stream has ended:
    calls `shutdown` in the tick of the signal, and lets the server have the signal a moment later. The command line
    does so by itself.
    """
    taken: dict[int, Callable[[int, FrameType | None], Any]] = {}
    loop = asyncio.get_running_loop()

    def on_signal(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(shutdown)
        loop.call_soon_threadsafe(loop.call_later, GOODBYE_SECONDS, taken[number], number, None)

    for number in (int(signal.SIGTERM), int(signal.SIGINT)):
        handler = signal.getsignal(number)
        owner = getattr(handler, "__self__", None)
        if callable(handler) and type(owner).__module__.startswith("uvicorn."):
            taken[number] = handler
            signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


def __getattr__(name: str) -> Starlette:
    """`uvicorn corevo.gateway:app` makes the app on first use."""
    if name == "app":
        return create_app()
    raise AttributeError(name)
