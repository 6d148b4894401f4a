"""`corevo dev`: all of Corevo on a developer's machine, from nothing. Never for production."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from corevo import gate, logs, serve
from corevo.embedded import LocalPostgres
from corevo.errors import CorevoError, UsageError

if TYPE_CHECKING:
    from socket import socket

DEMO = "corevo.agents.demo"
DATABASE = "corevo"
FIRST_PORT = 8000
PORTS_TRIED = 50
#: Set by platforms that run things for real users.
PLATFORM_VARIABLES = ("DYNO", "FLY_APP_NAME", "RENDER", "RAILWAY_ENVIRONMENT", "KUBERNETES_SERVICE_HOST")
RELOAD_POLL_SECONDS = 0.4


def run(app: str | None, *, host: str | None, port: int | None, reload: bool) -> None:
    """Starts everything and serves until a signal."""
    for variable in PLATFORM_VARIABLES:
        if os.environ.get(variable):
            raise UsageError(f"corevo dev is for a developer's machine, and ${variable} is set: use `corevo solo`")
    if reload:
        _supervise(app, host, port)
        return
    logs.configure()
    server = None
    url = os.environ.get("DATABASE_URL")
    if url:
        _say("using the Postgres that DATABASE_URL names")
        _serve(url, app, host, port)
        serve.leave()
        return
    server = LocalPostgres(Path(os.environ.get("COREVO_DATA_DIR", ".corevo")), report=_say)
    starting = _InThread(server)
    try:
        from corevo import solo  # noqa: F401 (imported while Postgres starts)

        starting.wait()
        _serve(server.create_database(DATABASE), app, host, port)
    finally:
        starting.end()
        server.stop()
        serve.leave()


class _InThread:
    """Starts the server in a thread, so that imports do not wait for it."""

    def __init__(self, server: LocalPostgres) -> None:
        self._error: BaseException | None = None
        self._server = server
        self._thread = threading.Thread(target=self._start, name="embedded-postgres")
        self._thread.start()

    def _start(self) -> None:
        try:
            self._server.start()
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        self._thread.join()


def _serve(url: str, app: str | None, host: str | None, port: int | None) -> None:
    from corevo import metrics, solo
    from corevo.settings import load_settings
    from corevo.store import migrations

    os.environ.setdefault("COREVO_AUTH", "off")
    settings = load_settings(database_url=url, host=host, port=port)
    address = settings.host or "127.0.0.1"
    gate.check_identity(settings, address)
    starlette = solo.create_app(settings, app or DEMO)
    listener = _listen(address, settings.port)
    metrics.prepare()
    asyncio.run(migrations.migrate(settings.direct_url, _say))

    def ready() -> None:
        if app is None:
            _say("demo agent: no model is behind it; name your own with `corevo dev path/to/agent.py`")
        _say(f"its database, for psql and `corevo job`: DATABASE_URL='{url}'")
        print(f"Corevo is ready: http://{address}:{listener.getsockname()[1]}", flush=True)

    serve.run(starlette, listener, ready)


def _listen(host: str, port: int | None) -> socket:
    """The port that was asked for, or the first free one: two developers' servers may run side by side."""
    if port is not None:
        return serve.listen(host, port)
    for candidate in range(FIRST_PORT, FIRST_PORT + PORTS_TRIED):
        try:
            return serve.listen(host, candidate)
        except CorevoError:
            continue
    raise CorevoError(f"no free port between {FIRST_PORT} and {FIRST_PORT + PORTS_TRIED - 1}; give one with --port")


# ── --reload: a parent that starts the same command again when a file changes ─────────────────────────


def _supervise(app: str | None, host: str | None, port: int | None) -> None:
    command = [sys.executable, "-m", "corevo", "dev"]
    command += [app] if app else []
    command += ["--host", host] if host else []
    command += ["--port", str(port)] if port is not None else []
    environment = {k: v for k, v in os.environ.items() if k != "COREVO_RELOAD"}
    watched = _folder_of(app)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    # a Postgres user of the parent's own: the server stays up between two children
    keeper = None
    if not os.environ.get("DATABASE_URL"):
        keeper = LocalPostgres(Path(os.environ.get("COREVO_DATA_DIR", ".corevo")), report=_say)
        keeper.start()
    try:
        while not ended.is_set():
            seen = _times(watched)
            child = subprocess.Popen(command, env=environment, start_new_session=True)
            while not ended.wait(RELOAD_POLL_SECONDS):
                if _times(watched) != seen:
                    _say(f"a file below {watched} changed; starting again")
                    break
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
            child.wait()
    finally:
        if keeper is not None:
            keeper.stop()


def _folder_of(app: str | None) -> Path:
    target = (app or DEMO).partition(":")[0]
    if target.endswith(".py") or "/" in target:
        return Path(target).resolve().parent
    here = Path.cwd() / Path(*target.split("."))
    return here.parent if here.parent.is_dir() else Path(__file__).parent


def _times(folder: Path) -> dict[Path, float]:
    times: dict[Path, float] = {}
    for path in folder.rglob("*.py"):
        if any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(folder).parts):
            continue
        try:
            times[path] = path.stat().st_mtime
        except FileNotFoundError:
            continue
    return times


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
