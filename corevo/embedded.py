"""A Postgres of one's own for development and tests: one folder, a Unix socket, no network.

    data/           the cluster; data.tmp-PID while it is made, so that a killed start leaves no half one
    start.lock      held while somebody starts or stops the server
    users.lock      shared by every process that uses it; the kernel releases it on any death
    postgres.log

The server ends with its last user, unless that one is killed: then the next start finds the server
running, or the files that a dead one left, and copes with both. Linux (not musl) and macOS.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import quote

from corevo.programs import EmbeddedPostgresError, demotion, environment, find_programs, run

SETTINGS: Mapping[str, object] = {
    "jit": "off",
    "listen_addresses": "",
    "log_timezone": "UTC",
    "max_connections": 200,
    "port": 5432,  # else PGPORT would decide
    "shared_buffers": "128MB",
    "timezone": "UTC",
    "unix_socket_permissions": "0700",
    "wal_compression": "on",
}
START_SECONDS = 60.0
STOP_SECONDS = 30.0
TURN_SECONDS = 120.0
ORPHAN_SECONDS = 10.0
LOG_LIMIT_BYTES = 16 * 1024 * 1024
SOCKET_DIRECTORY_LIMIT_BYTES = 90  # a socket's path has at most 107, and the file's name is 16 of them

CREATE_IF_MISSING = """
select format('create database %I', :'name')
where not exists (select from pg_database where datname = :'name') \\gexec
"""


class ServerFile(NamedTuple):
    """What a server says of itself in postmaster.pid."""

    pid: int
    socket_directory: str
    status: str


class LocalPostgres:
    """The server of one folder. Calls block; `report` gets a line about whatever takes time."""

    def __init__(
        self,
        root: Path,
        settings: Mapping[str, object] | None = None,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.root = Path(root).expanduser().absolute()
        self.data = self.root / "data"
        self.log = self.root / "postgres.log"
        self.settings = {**SETTINGS, **(settings or {})}
        self._report = report
        self._socket_directory = ""
        self._users: IO[bytes] | None = None

    def start(self) -> str:
        """Become a user of the server, starting it if it is not there; returns the DSN of `postgres`."""
        with self._turn() as turn:
            users = open(self.root / "users.lock", "ab")  # noqa: SIM115 (open until stop)
            try:
                fcntl.flock(users, fcntl.LOCK_SH)
                self._socket_directory = self._find_running() or self._start_server(turn)
            except BaseException:
                users.close()
                raise
            self._users = users
        return self.dsn("postgres")

    def create_database(self, name: str) -> str:
        """Create the database if it is missing; returns its DSN."""
        psql = [str(find_programs() / "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-v", f"name={name}"]
        with self._turn():
            run([*psql, "-d", self.dsn("postgres")], stdin=CREATE_IF_MISSING)
        return self.dsn(name)

    def stop(self) -> bool:
        """Cease to be a user; stops the server, and returns True, if no other process uses it."""
        if self._users is None:
            return False
        with self._turn(), self._users as users:
            self._users = None
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            self._stop_server()
            return True

    def dsn(self, database: str) -> str:
        """A URL for libpq and asyncpg; it names the port lest PGPORT should."""
        host = quote(self._socket_directory, safe="")
        return f"postgresql://postgres@/{quote(database, safe='')}?host={host}&port=5432"

    # With the turn held

    @contextlib.contextmanager
    def _turn(self) -> Iterator[IO[bytes]]:
        """Hold start.lock. initdb inherits it, so that the initdb of a killed start is waited for too."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(self.root / "start.lock", "ab") as lock:
                for waited in pauses(TURN_SECONDS):
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        if waited == 0:
                            self._report("another process starts or stops this Postgres; waiting for it")
                else:
                    raise EmbeddedPostgresError(
                        f"a process has held {lock.name} for {TURN_SECONDS:.0f} s: end it, then try again"
                    )
                yield lock
        except OSError as error:
            raise EmbeddedPostgresError(
                f"the local Postgres in {self.root} cannot be used: {error}; "
                "set COREVO_DATA_DIR to a folder of yours, or DATABASE_URL to a server"
            ) from error

    def _find_running(self) -> str | None:
        """The socket directory of a server that is ready; one that is starting or stopping is awaited."""
        for _ in pauses(START_SECONDS):
            server = self._read_server_file()
            if server is None or not is_postgres_of(server.pid, self.data):
                return None
            if server.status == "ready":
                return server.socket_directory
        raise EmbeddedPostgresError(f"Postgres neither gets ready nor ends; see {self.log}")

    def _start_server(self, turn: IO[bytes]) -> str:
        """Start the server and wait until it is ready; returns its socket directory.

        Two failures are not final. The children of a killed server take a moment to notice, and while
        they keep its memory Postgres refuses to start. And a killed start may have left a server that
        had not written its file yet, and now has.
        """
        for unfinished in self.root.glob("data.tmp-*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        programs = find_programs()
        if not (self.data / "PG_VERSION").exists():
            self._make_cluster(programs, turn)
        sockets = self._choose_socket_directory()
        self._write_settings(sockets)
        if self.log.exists() and self.log.stat().st_size > LOG_LIMIT_BYTES:
            self.log.rename(self.log.with_suffix(".log.1"))
        command = [*demotion(programs, self.data), str(programs / "postgres"), "-D", str(self.data)]
        self._report("starting Postgres")
        retry_until = time.monotonic() + ORPHAN_SECONDS
        while not self._launch(command, sockets):
            if running := self._find_running():
                return running
            log = self.log.read_text(encoding="utf-8", errors="replace")[-2000:]
            if "pre-existing shared memory" not in log or time.monotonic() > retry_until:
                raise EmbeddedPostgresError(f"Postgres did not start; the end of {self.log}:\n{log}")
        return str(sockets)

    def _launch(self, command: list[str], sockets: Path) -> bool:
        """Spawn the server, detached, and watch its file until it is ready. False: it ended."""
        for lock_file in (self.data / "postmaster.pid", sockets / ".s.PGSQL.5432.lock"):
            remove_if_stale(lock_file, self.data)
        appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        pid = os.posix_spawnp(
            command[0],
            command,
            environment(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log), appending, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,  # Ctrl-C in a terminal is not for it
        )
        report_at = 3.0
        for waited in pauses(START_SECONDS):
            server = self._read_server_file()
            if server and server.pid == pid and server.status == "ready":
                return True
            if has_ended(pid):
                return False
            if waited > report_at:
                self._report(f"Postgres is not ready yet after {waited:.0f} s")
                report_at += 5.0
        os.kill(pid, signal.SIGKILL)
        raise EmbeddedPostgresError(f"Postgres was not ready after {START_SECONDS:.0f} s; see {self.log}")

    def _make_cluster(self, programs: Path, turn: IO[bytes]) -> None:
        self._report(f"making a Postgres cluster in {self.root}")
        unfinished = self.root / f"data.tmp-{os.getpid()}"
        command = [*demotion(programs, unfinished), str(programs / "initdb"), "-D", str(unfinished)]
        command += ["-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"]
        if "--builtin-locale" in run([str(programs / "initdb"), "--help"]):  # Postgres 17 and later
            command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        run(command, pass_fds=[turn.fileno()])
        with open(unfinished / "postgresql.conf", "a", encoding="utf-8") as conf:
            conf.write("\ninclude_if_exists = 'corevo.conf'\n")
        unfinished.rename(self.data)

    def _write_settings(self, sockets: Path) -> None:
        listed = '"' + str(sockets).replace('"', '""') + '"'
        with open(self.data / "corevo.conf", "w", encoding="utf-8") as conf:
            for name, value in {**self.settings, "unix_socket_directories": listed}.items():
                quoted = str(value).replace("'", "''")
                conf.write(f"{name} = '{quoted}'\n")

    def _choose_socket_directory(self) -> Path:
        """The folder itself, or one in the temporary directory if a socket's path cannot hold it."""
        if len(os.fsencode(self.root)) <= SOCKET_DIRECTORY_LIMIT_BYTES and "," not in str(self.root):
            return self.root
        digest = hashlib.sha256(os.fsencode(self.root) + b"\0%d" % os.geteuid()).hexdigest()[:12]
        directory = Path(tempfile.gettempdir()) / f"corevo-pg-{digest}"
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise EmbeddedPostgresError(f"{directory} is not a private folder of yours: remove it")
        return directory

    def _stop_server(self) -> None:
        """Ask for a fast shutdown, which ends the sessions and writes a checkpoint; then insist."""
        server = self._read_server_file()
        if server is None:
            return
        for signum, seconds in ((signal.SIGINT, STOP_SECONDS), (signal.SIGQUIT, 5.0)):
            for waited in pauses(seconds):
                if not is_postgres_of(server.pid, self.data):
                    has_ended(server.pid)  # if it was our child, no zombie stays
                    return
                if waited == 0:
                    os.kill(server.pid, signum)
        raise EmbeddedPostgresError(f"Postgres (pid {server.pid}) does not stop; see {self.log}")

    def _read_server_file(self) -> ServerFile | None:
        """None if there is no file, or not yet all of it."""
        try:
            lines = (self.data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
            status = lines[7].strip() if len(lines) > 7 else "starting"
            return ServerFile(abs(int(lines[0])), lines[4], status)
        except (FileNotFoundError, ValueError, IndexError):
            return None


def pauses(seconds: float) -> Iterator[float]:
    """Yield the seconds waited so far, 0 first, sleeping a little between, until they are used up."""
    began, waited = time.monotonic(), 0.0
    while waited < seconds:
        yield waited
        time.sleep(0.005)
        waited = time.monotonic() - began


def has_ended(pid: int) -> bool:
    """Whether the process, perhaps a child of ours, has ended; takes a child's exit status."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def is_postgres_of(pid: int, data: Path) -> bool:
    """Whether the process is a live server of this cluster: a pid comes back, and there are others."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    process = Path(f"/proc/{pid}")
    if not Path("/proc/self/stat").exists():  # macOS: what Postgres itself checks has to do
        return True
    try:
        name, _, rest = (process / "stat").read_text(errors="replace").rpartition(")")
        if not name.endswith("(postgres") or rest.split()[0] == "Z":
            return False
        return (process / "cwd").samefile(data)  # where a server runs
    except PermissionError:
        return True
    except (FileNotFoundError, ProcessLookupError):
        return False


def remove_if_stale(lock_file: Path, data: Path) -> None:
    """Remove a lock file of a server that is gone: Postgres believes any process that has its pid."""
    with contextlib.suppress(FileNotFoundError, ValueError, IndexError):
        pid = abs(int(lock_file.read_text(encoding="utf-8").split()[0]))
        if not is_postgres_of(pid, data):
            lock_file.unlink()
