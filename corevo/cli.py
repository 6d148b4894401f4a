"""The command line. Every option has an environment variable (corevo/settings.py); exit status 0 ok, 1 failed,
2 usage, 3 refused by the start gate. Roles are imported only by their command, so that `--help` is quick."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from uuid import UUID

import click

from corevo.errors import CorevoError, GateRefused, UsageError

HOST = click.option("--host", help="Address to listen on: 127.0.0.1, or 0.0.0.0 when $PORT is set. [COREVO_HOST]")
PORT = click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on. [PORT, COREVO_PORT]")
NAME = click.option("--name", help="Name for display and metrics; else $DYNO, else the host's name. [COREVO_NAME]")
PLACES = click.option("--places", type=click.IntRange(0, 1000), help="Jobs at once, lane normal: 4. [COREVO_PLACES]")
HEAVY = click.option(
    "--heavy-places", type=click.IntRange(0, 1000), help="Jobs at once, lane heavy: 1. [COREVO_HEAVY_PLACES]"
)
APP = click.argument("app", required=False, envvar="COREVO_APP")


class _Group(click.Group):
    """Turns Corevo's errors into lines and exit statuses."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except GateRefused as error:
            for problem in error.problems:
                click.echo(f"refused: {problem}", err=True)
            sys.exit(3)
        except UsageError as error:
            click.echo(f"error: {error.detail}", err=True)
            sys.exit(2)
        except CorevoError as error:
            click.echo(f"error: {error.detail or error.code}", err=True)
            sys.exit(1)


@click.group(cls=_Group)
@click.version_option(package_name="corevo", message="corevo %(version)s")
def main() -> None:
    """Corevo runs LLM agents for real users on many processes, with Postgres as the only shared store."""


@main.command()
@HOST
@PORT
@NAME
def web(**options: Any) -> None:
    """Serve HTTP, WebSocket and pages; runs no agent code."""
    from corevo import gateway

    _serve("web", lambda settings: gateway.create_app(settings), options)


@main.command()
@APP
@HOST
@PORT
@NAME
@PLACES
@HEAVY
def worker(app: str | None, **options: Any) -> None:
    """Run jobs of the agents in APP (package.module or path/to/file.py). Serves health only with --port."""
    from corevo import worker

    _serve("worker", lambda settings: worker.create_app(settings, app), options)


@main.command()
@HOST
@PORT
@NAME
def janitor(**options: Any) -> None:
    """Converge what nobody owns. Every worker does it too. Serves health only with --port."""
    from corevo import janitor

    _serve("janitor", lambda settings: janitor.create_app(settings), options)


@main.command()
@APP
@HOST
@PORT
@NAME
@PLACES
@HEAVY
def solo(app: str | None, **options: Any) -> None:
    """All roles in one process, for one small machine, with the agents in APP."""
    from corevo import solo

    _serve("solo", lambda settings: solo.create_app(settings, app), options)


@main.command()
@click.argument("app", required=False, envvar="COREVO_APP")
@HOST
@PORT
@click.option(
    "--reload",
    is_flag=True,
    help="Start again when a Python file beside APP changes. [COREVO_RELOAD]",
    envvar="COREVO_RELOAD",
)
def dev(app: str | None, host: str | None, port: int | None, reload: bool) -> None:
    """Everything on this machine: an embedded Postgres, the schema, all roles; a demo agent unless APP is named."""
    from corevo import dev

    dev.run(app, host=host, port=port, reload=reload)


@main.command()
@click.option("--check", is_flag=True, help="Change nothing; exit 1 when something is missing.")
def migrate(check: bool) -> None:
    """Bring the database's schema to this release, under a lock. Roles never do."""
    import asyncio

    from corevo.settings import load_settings
    from corevo.store import migrations

    settings = load_settings()
    if not check:
        asyncio.run(migrations.migrate(settings.direct_url, click.echo))
        return
    problem = asyncio.run(migrations.check(settings.direct_url))
    if problem is not None:
        click.echo(problem, err=True)
        sys.exit(1)
    click.echo("the schema fits this release")


@main.command()
@click.option("--web", type=click.IntRange(0), default=1, show_default=True, help="Processes of the formation.")
@click.option("--worker", type=click.IntRange(0), default=1, show_default=True, help="The same.")
@click.option("--janitor", type=click.IntRange(0), default=0, show_default=True, help="The same.")
@click.option("--solo", type=click.IntRange(0), default=0, show_default=True, help="The same.")
def doctor(web: int, worker: int, janitor: int, solo: int) -> None:
    """Check what the roles need, and whether a formation's connections fit, twice over for a rolling deploy."""
    from corevo import doctor

    sys.exit(0 if doctor.run({"web": web, "worker": worker, "janitor": janitor, "solo": solo}) else 1)


@main.group()
def job() -> None:
    """Look at and act on one job."""


@job.command("show")
@click.argument("job_id", type=click.UUID)
def job_show(job_id: UUID) -> None:
    """Show a job as JSON."""
    from corevo import operate

    operate.show(job_id)


@job.command("cancel")
@click.argument("job_id", type=click.UUID)
def job_cancel(job_id: UUID) -> None:
    """Ask for a job to be cancelled."""
    from corevo import operate

    operate.cancel(job_id)


@job.command("events")
@click.argument("job_id", type=click.UUID)
@click.option("--follow", is_flag=True, help="Go on until the job has ended.")
def job_events(job_id: UUID, follow: bool) -> None:
    """Print a job's stored events, one JSON object a line."""
    from corevo import operate

    operate.events(job_id, follow=follow)


def _serve(role: str, make: Callable[[Any], Any], options: dict[str, Any]) -> None:
    from corevo import gate, logs, metrics, serve
    from corevo.settings import load_settings

    logs.configure()
    metrics.prepare()
    settings = load_settings(**options)
    port = settings.port
    if port is None and role in ("web", "solo"):
        port = 8000
    host = settings.host or ("0.0.0.0" if settings.port_from_platform else "127.0.0.1")
    if role in ("web", "solo"):
        gate.check_identity(settings, host)
    app = make(settings)
    listener = None if port is None else serve.listen(host, port)

    def ready() -> None:
        where = "" if listener is None else f" on http://{_shown(host)}:{listener.getsockname()[1]}"
        click.echo(f"corevo {role} is ready{where}", err=True)

    serve.run(app, listener, ready)
    serve.leave()


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
