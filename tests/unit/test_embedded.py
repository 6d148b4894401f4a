"""The launcher of the local Postgres, seen from other processes, as an ordinary user and as root."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from corevo.embedded import LocalPostgres
from corevo.programs import EmbeddedPostgresError, find_programs

AS_ROOT = os.geteuid() == 0
NOBODY = 65534
PATIENCE_SECONDS = 30.0


class User:
    """One process that uses the server in a folder."""

    def __init__(self, folder: Path, programs: Path, uid: int) -> None:
        script = Path(__file__).resolve().parent.parent / "embedded_user.py"
        demotion = [str(uid)] if uid != os.geteuid() else []
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(folder), *demotion],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env={**os.environ, "COREVO_PG_BIN": str(programs), "PGPORT": "1"},
        )
        self.reports: list[str] = []

    def answer(self) -> str:
        """Its next line that is not a report."""
        assert self.process.stdout
        for line in self.process.stdout:
            kind, _, text = line.strip().partition(" ")
            if kind != "report":
                return f"{kind} {text}"
            self.reports.append(text)
        return "ended"

    def dsn(self) -> str:
        kind, _, text = self.answer().partition(" ")
        assert kind == "ready", text
        return text

    def stop(self) -> bool:
        assert self.process.stdin
        self.process.stdin.close()
        return self.answer() == "stopped True"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Let it stop, if it did not, and take all that it still says."""
        with self.process:
            assert self.process.stdin
            assert self.process.stdout
            self.process.stdin.close()
            self.process.stdout.read()


Start = Callable[[Path, int], User]


@pytest.fixture(
    params=["ordinary user", pytest.param("root", marks=pytest.mark.skipif(not AS_ROOT, reason="not root"))]
)
def uid(request: pytest.FixtureRequest) -> int:
    if request.param == "root":
        return 0
    return NOBODY if AS_ROOT else os.geteuid()


@pytest.fixture
def folder(uid: int) -> Iterator[Path]:
    """A directory that the user owns; pytest's own lets nobody else pass."""
    path = Path(tempfile.mkdtemp(prefix="corevo embedded '"))
    os.chown(path, uid, -1)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """Postgres's programs where every user may run them, copied if they lie in a private place."""
    found = find_programs()
    if all(parent.stat().st_mode & 0o001 for parent in found.parents):
        yield found
        return
    with tempfile.TemporaryDirectory() as copy:
        os.chmod(copy, 0o755)
        yield Path(shutil.copytree(found.parent, Path(copy) / "postgres", symlinks=True)) / "bin"


@pytest.fixture
def start(programs: Path) -> Iterator[Start]:
    users: list[User] = []

    def start(folder: Path, uid: int) -> User:
        users.append(User(folder, programs, uid))
        return users[-1]

    yield start
    for user in users:
        user.close()


def ask(dsn: str, query: str) -> str:
    command = [str(find_programs() / "psql"), "-XAtqc", query, dsn]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def server_pid(folder: Path) -> int:
    return int((folder / "data" / "postmaster.pid").read_text().split()[0])


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_running(pid: int) -> bool:
    """A zombie does not count: whose child it was does not matter here."""
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_fresh_start_makes_a_cluster_and_a_second_start_finds_it(start: Start, folder: Path, uid: int) -> None:
    root = folder / "made by start"
    first = start(root, uid)
    dsn = first.dsn()
    assert any("making" in line for line in first.reports)
    assert ask(dsn, "show server_encoding") == "UTF8"
    assert ask(dsn, "show fsync") == "off"
    assert ask(dsn, "select upper('é') from pg_database where datname = 'corevo'") == "É"
    ask(dsn, "create table kept ()")
    assert (root.stat().st_mode & 0o777, root.stat().st_uid) == (0o700, uid)
    pid = server_pid(root)
    assert first.stop()
    assert not is_running(pid)

    second = start(root, uid)
    assert second.dsn() == dsn
    assert not any("making" in line for line in second.reports)
    assert ask(dsn, "select count(*) from pg_class where relname = 'kept'") == "1"
    assert second.stop()


def test_a_long_path_gets_a_short_private_socket_directory(start: Start, folder: Path, uid: int) -> None:
    user = start(folder / ("long" * 30), uid)
    dsn = user.dsn()
    sockets = Path(ask(dsn, "show unix_socket_directories").strip('"'))
    assert len(str(sockets)) < 90
    assert sockets.stat().st_mode & 0o777 == 0o700
    assert ask(dsn, "select 1") == "1"
    assert user.stop()
    shutil.rmtree(sockets)


def test_two_processes_share_one_server_and_the_last_one_out_stops_it(start: Start, folder: Path, uid: int) -> None:
    users = [start(folder, uid), start(folder, uid)]
    dsns = {user.dsn() for user in users}
    assert len(dsns) == 1
    pid = server_pid(folder)
    assert not users[0].stop()
    assert ask(dsns.pop(), "select 1") == "1"
    assert users[1].stop()
    assert not is_running(pid)


def test_a_server_whose_user_was_killed_serves_the_next_user_and_ends_with_it(
    start: Start, folder: Path, uid: int
) -> None:
    killed = start(folder, uid)
    killed.dsn()
    pid = server_pid(folder)
    killed.kill()
    assert is_running(pid)

    user = start(folder, uid)
    assert ask(user.dsn(), "select 1") == "1"
    assert server_pid(folder) == pid
    assert user.stop()
    assert not is_running(pid)


def test_a_killed_server_is_replaced_even_while_its_children_live(start: Start, folder: Path, uid: int) -> None:
    killed = start(folder, uid)
    dsn = killed.dsn()
    pid = server_pid(folder)
    child = int(ask(dsn, "select pid from pg_stat_activity where backend_type = 'checkpointer'"))
    killed.kill()
    os.kill(child, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid))

    user = start(folder, uid)
    wait_until(lambda: "pre-existing shared memory" in (folder / "postgres.log").read_text())
    os.kill(child, signal.SIGCONT)
    assert ask(user.dsn(), "select 1") == "1"
    assert server_pid(folder) != pid
    assert user.stop()


def test_lock_files_with_the_pid_of_something_else_do_not_stop_a_start(start: Start, folder: Path, uid: int) -> None:
    first = start(folder / "one", uid)
    first.dsn()
    written_by_first = (folder / "one" / "data" / "postmaster.pid").read_text()
    other = start(folder / "other", uid)
    other.dsn()
    assert first.stop()

    zombie = subprocess.Popen(["true"])
    wait_until(lambda: not is_running(zombie.pid))
    for stranger in (os.getpid(), zombie.pid, server_pid(folder / "other")):
        text = written_by_first.replace(written_by_first.split()[0], str(stranger), 1)
        (folder / "one" / "data" / "postmaster.pid").write_text(text)
        (folder / "one" / ".s.PGSQL.5432.lock").write_text(text)
        user = start(folder / "one", uid)
        assert ask(user.dsn(), "select 1") == "1"
        assert user.stop()
    zombie.wait()
    assert is_running(server_pid(folder / "other"))
    assert other.stop()


def test_a_start_killed_while_it_makes_the_cluster_leaves_nothing_in_the_way(
    start: Start, folder: Path, uid: int
) -> None:
    killed = start(folder, uid)
    wait_until(lambda: list(folder.glob("data.tmp-*/PG_VERSION")))
    killed.kill()
    assert not (folder / "data").exists()

    user = start(folder, uid)
    assert ask(user.dsn(), "select 1") == "1"
    assert not list(folder.glob("data.tmp-*"))
    assert user.stop()


def test_a_folder_that_is_not_ours_is_one_clear_error(start: Start, folder: Path, uid: int) -> None:
    place = folder / "file"
    place.write_text("")
    answer = start(place / "below", uid).answer()
    assert answer.startswith("error ")
    assert "set COREVO_DATA_DIR" in answer


def test_a_wrong_directory_of_programs_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COREVO_PG_BIN", str(tmp_path))
    with pytest.raises(EmbeddedPostgresError, match="correct COREVO_PG_BIN"):
        LocalPostgres(tmp_path / "postgres").start()


@pytest.mark.skipif(not AS_ROOT, reason="needs root")
def test_root_serves_another_users_cluster_and_leaves_it_to_its_owner(start: Start) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chown(folder, NOBODY, NOBODY)
        for uid in (NOBODY, 0, NOBODY):
            user = start(folder, uid)
            assert ask(user.dsn(), "select 1") == "1"
            assert user.stop()
            assert {path.lstat().st_uid for path in (folder / "data").rglob("*")} == {NOBODY}


@pytest.mark.skipif(not AS_ROOT, reason="needs root")
def test_root_starts_where_user_namespaces_are_forbidden(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = tmp_path / "bin" / "unshare"
    refusing.parent.mkdir()
    refusing.write_text("#!/bin/sh\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", str(refusing.parent), prepend=os.pathsep)
    user = start(tmp_path / "postgres", 0)
    assert ask(user.dsn(), "select 1") == "1"
    assert (tmp_path / "postgres").stat().st_uid == 0
    assert (tmp_path / "postgres" / "data").stat().st_uid == NOBODY
    assert user.stop()
