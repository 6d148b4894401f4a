"""./dev: the lock it installs from, the Pythons it refuses, and when it makes .venv.

The real script runs in a checkout of a few lines whose lock lists nothing, so that making .venv takes a second.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LOCKS = [REPOSITORY / "requirements.txt", REPOSITORY / "requirements-dev.txt"]
STAND_IN = "import os, sys; print(sys.argv[1:], os.getcwd(), os.environ['COREVO_DATA_DIR'], sep='|')"

MAKING = "making .venv (this once"
PATIENCE_SECONDS = 30.0


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "a checkout"
    (root / "corevo").mkdir(parents=True)
    (root / "corevo" / "__init__.py").touch()
    (root / "corevo" / "__main__.py").write_text(STAND_IN)
    (root / "requirements-dev.txt").write_text("# nothing\n")
    shutil.copy(REPOSITORY / "dev", root)
    return root


def start(checkout: Path, *arguments: str, cwd: Path | None = None) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "COREVO_DATA_DIR"}
    return subprocess.Popen(
        [sys.executable, str(checkout / "dev"), *arguments],
        cwd=cwd or checkout,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(checkout: Path, *arguments: str, cwd: Path | None = None) -> tuple[int, str, str]:
    process = start(checkout, *arguments, cwd=cwd)
    out, err = process.communicate()
    return process.returncode, out, err


def pins(lock: Path) -> dict[str, str]:
    """The requirements by name; each one's line ends before its hashes."""
    lines = [line.split(" ;")[0].rstrip(" \\") for line in lock.read_text().splitlines()]
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith((" ", "#")))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_names_no_registry_and_hashes_every_package(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    options = [line for line in text.splitlines() if line.startswith("-")]
    assert options == []
    for entry in text.replace("\\\n", "").splitlines():
        assert entry.startswith((" ", "#")) or "--hash=sha256:" in entry


def test_what_runs_in_production_is_what_was_tested() -> None:
    production, development = (pins(lock) for lock in LOCKS)
    assert production
    assert production.items() <= development.items()


def test_an_old_python_is_refused_in_one_line() -> None:
    pretend = "import runpy, sys; sys.version_info = (3, 10, 2); runpy.run_path('dev', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", pretend], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "corevo needs Python 3.11 or newer and this is 3.10; try: python3.13 dev\n"


def test_old_pythons_can_read_as_far_as_the_refusal() -> None:
    ast.parse((REPOSITORY / "dev").read_text(), feature_version=(3, 6))


def test_the_command_runs_where_the_caller_stands_with_the_data_of_the_checkout(checkout: Path, tmp_path: Path) -> None:
    other = tmp_path / "corevo"  # another checkout's package, where the caller stands
    other.mkdir()
    (other / "__init__.py").touch()
    (other / "__main__.py").write_text("raise SystemExit('the wrong one')")
    status, out, err = run(checkout, "worker", "my agent.py", cwd=tmp_path)
    assert status == 0, err
    assert out.strip().split("|") == ["['worker', 'my agent.py']", str(tmp_path), str(checkout / ".corevo")]
    assert MAKING in err
    assert run(checkout) == (0, f"['dev']|{checkout}|{checkout / '.corevo'}\n", "")


def test_it_makes_the_environment_anew_when_the_lock_has_changed_and_not_otherwise(checkout: Path) -> None:
    assert MAKING in run(checkout)[2]
    assert MAKING not in run(checkout)[2]
    (checkout / "requirements-dev.txt").write_text("# still nothing\n")
    assert MAKING in run(checkout)[2]
    (checkout / ".venv" / "bin" / "python").unlink()
    assert MAKING in run(checkout)[2]


def test_started_twice_at_once_it_makes_one_environment(checkout: Path) -> None:
    processes = [start(checkout, str(number)) for number in range(3)]
    results = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], results
    assert sum(MAKING in err for _, err in results) == 1


def test_killed_in_the_middle_it_starts_over(checkout: Path) -> None:
    killed = start(checkout)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (checkout / ".venv" / "bin" / "python").exists():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    killed.kill()
    killed.communicate()
    assert (checkout / ".venv" / ".corevo-stamp").read_text() == ""

    status, _, err = run(checkout)
    assert status == 0, err
    assert MAKING in err


def test_it_does_not_touch_an_environment_that_it_did_not_make(checkout: Path) -> None:
    precious = checkout / ".venv" / "precious"
    precious.parent.mkdir()
    precious.write_text("")
    status, _, err = run(checkout)
    assert status == 1
    assert err.strip().endswith("was not made by ./dev: move it away, then run ./dev again")
    assert precious.exists()


def test_a_failed_installation_shows_why_and_is_tried_again(checkout: Path) -> None:
    lock = checkout / "requirements-dev.txt"
    lock.write_text("corevo-absent==1\n")
    status, _, err = run(checkout)
    assert status == 1
    assert "hash" in err.lower()
    assert "making .venv failed in: " in err
    lock.write_text("# nothing\n")
    assert run(checkout)[0] == 0
