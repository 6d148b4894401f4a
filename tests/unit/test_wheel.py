"""The wheel: what it carries, and that it runs where there is no checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
MIGRATE = "import asyncio, sys; from corevo.store.migrations import migrate; asyncio.run(migrate(sys.argv[1], print))"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what an installation of the wheel would put among the packages."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(REPOSITORY)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("corevo-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-P", *arguments]
    return subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, check=False)


def files(folder: Path) -> set[str]:
    paths = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)) for path in paths}


def test_it_carries_the_protocol_and_the_operators_scripts(installed: Path) -> None:
    assert files(REPOSITORY / "sql") == files(installed / "corevo" / "_sql")
    assert files(REPOSITORY / "ops") == files(installed / "corevo" / "_ops")


def test_it_carries_every_file_of_the_package_and_nothing_else(installed: Path) -> None:
    carried = {name for name in files(installed / "corevo") if not name.startswith(("_sql/", "_ops/"))}
    assert carried == files(REPOSITORY / "corevo")
    assert {path.name for path in installed.iterdir() if path.suffix != ".dist-info"} == {"corevo"}


def test_its_code_is_the_installed_one_and_migrates_a_database(installed: Path, empty_database: str) -> None:
    done = run(installed, "-c", "import corevo; print(corevo.__file__)")
    assert Path(done.stdout.strip()).is_relative_to(installed), done.stderr
    done = run(installed, "-c", MIGRATE, empty_database)
    assert done.returncode == 0, done.stderr
    assert "schema is at version" in done.stdout


def test_its_command_line_answers(installed: Path) -> None:
    done = run(installed, "-m", "corevo", "--help")
    assert done.returncode == 0, done.stderr
    assert "migrate" in done.stdout
