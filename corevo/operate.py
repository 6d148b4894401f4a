"""`corevo job`: looking at and acting on one job from a shell, with the operator's own connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from uuid import UUID

import click

from corevo.contracts import JOB_CHANNEL, UNENDED_STATES, JobId, JobView
from corevo.errors import NotFound
from corevo.settings import load_settings
from corevo.store import commands, jobs, notify
from corevo.store import events as stored
from corevo.store.connections import Connections

PAGE_EVENTS = 500
FOLLOW_SECONDS = 0.3


def show(job_id: UUID) -> None:
    async def act(db: Connections) -> None:
        job = await _read(db, job_id)
        click.echo(json.dumps(asdict(job), default=str, indent=2, ensure_ascii=False))

    _run(act)


def cancel(job_id: UUID) -> None:
    async def act(db: Connections) -> None:
        job = await _read(db, job_id)
        answer = await commands.request_cancel(db, job.account_id, job.id)
        await notify.send(db, [(JOB_CHANNEL, str(job.id))])
        command = await commands.read(db, job.account_id, job.id, answer.command_id)
        click.echo(json.dumps(asdict(command) if command else {}, default=str, indent=2))

    _run(act)


def events(job_id: UUID, *, follow: bool) -> None:
    async def act(db: Connections) -> None:
        epoch, seq = 0, 0
        while True:
            job = await _read(db, job_id)  # before the page: what ended before it was read is complete
            page = await stored.read(db, job.id, epoch=epoch, seq=seq, limit=PAGE_EVENTS)
            for event in page:
                epoch, seq = event.epoch, event.seq
                head = {"execution_id": str(event.execution_id), "epoch": epoch, "seq": seq, "type": event.type}
                click.echo(json.dumps(head, ensure_ascii=False)[:-1] + f', "data": {event.data}}}')
            if page:
                continue
            if not follow or job.state not in UNENDED_STATES:
                return
            await asyncio.sleep(FOLLOW_SECONDS)

    _run(act)


async def _read(db: Connections, job_id: UUID) -> JobView:
    found = await jobs.read_many(db, [JobId(job_id)])
    if not found:
        raise NotFound(f"no job {job_id}")
    return found[0]


def _run(act: Callable[[Connections], Awaitable[None]]) -> None:
    settings = load_settings()

    async def main() -> None:
        db = Connections(settings.database_url, limit=1, name="corevo job", pooled=settings.behind_pooler)
        try:
            await act(db)
        finally:
            await db.close()

    asyncio.run(main())
