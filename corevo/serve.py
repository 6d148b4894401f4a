"""Runs a role's app until a signal: the lifespan by itself, or behind uvicorn when the role has a port."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette

from corevo.errors import CorevoError

#: Between the word that we stop and the closing of connections: every stream says where to resume.
GOODBYE_SECONDS = 0.2
#: Connections that streams left open; the streams themselves were closed before.
CLOSE_SECONDS = 3
#: For the interpreter to end by itself; it joins threads, and one may be in a blocking call of an agent.
LEAVE_SECONDS = 1.0
KEEP_ALIVE_SECONDS = 100  # a platform's router keeps its side for 90
FRAME_LIMIT_BYTES = 1_048_576 + 65_536


class _Server(uvicorn.Server):
    """Signals are ours: uvicorn would raise them again after it stopped, and the exit status would be −15."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(app: Starlette, listener: socket.socket | None, on_ready: Callable[[], None] = lambda: None) -> None:
    """Serves until SIGTERM or SIGINT; repeated ones change nothing. Raises what the app's start raises."""
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:
        factory = None
    runner = asyncio.Runner(loop_factory=factory)
    runner.run(_run(app, listener, on_ready))
    # Not closed: closing waits without end for a task that swallows its cancellation, and for a thread in a blocking
    # call. Everything of ours has ended by now; `leave` ends the process.


def leave() -> None:
    """Lets the interpreter end, and ends it with status 0 where something of an agent still holds it."""
    last = threading.Timer(LEAVE_SECONDS, os._exit, [0])
    last.daemon = True
    last.start()


async def _run(app: Starlette, listener: socket.socket | None, on_ready: Callable[[], None]) -> None:
    stop = asyncio.Event()
    started = False
    body = asyncio.current_task()
    assert body is not None

    def on_signal() -> None:
        stop.set()
        if not started:
            body.cancel()  # still at the gate, perhaps waiting for a database

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        async with app.router.lifespan_context(app):
            started = True
            await _serve(app, listener, stop, on_ready)
    except asyncio.CancelledError:
        if not stop.is_set():
            raise


async def _serve(
    app: Starlette, listener: socket.socket | None, stop: asyncio.Event, on_ready: Callable[[], None]
) -> None:
    if listener is None:
        on_ready()
        await stop.wait()
        on_stop(app)
        return
    config = uvicorn.Config(
        app,
        lifespan="off",  # entered by _run, so that a refusal at the gate is one clear line
        ws="websockets-sansio",
        ws_max_size=FRAME_LIMIT_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=20,
        ws_ping_timeout=40,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=CLOSE_SECONDS,
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    try:
        on_ready()  # the socket listens already: a client that comes now is served
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        on_stop(app)
        await asyncio.wait([serving], timeout=GOODBYE_SECONDS)
        server.should_exit = True
        await serving
    finally:
        stopping.cancel()


def on_stop(app: Starlette) -> None:
    """What a role wants done in the tick of the signal: stop claiming, close streams."""
    hook: Any = getattr(app.state, "on_stop", None)
    if hook is not None:
        hook()


def listen(host: str, port: int) -> socket.socket:
    """Binds before anything else starts, so that a taken port costs nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise CorevoError(f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port") from error
    listener.listen(2048)
    listener.setblocking(False)
    return listener
