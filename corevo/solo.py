"""Solo: gateway, worker and janitor in one process, for one small dyno. It weakens no invariant.

A job sent here takes the local direct path when a place is free and no older claimable job of its lane waits: admission
claims it for this worker in the same transaction. Start and endings are the same as everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette

from corevo import health, metrics
from corevo.contracts import EVENT_CHANNEL, JOB_CHANNEL, WORK_CHANNEL
from corevo.errors import CorevoError, UsageError
from corevo.gate import pass_gate
from corevo.gateway import Gateway
from corevo.janitor import Janitor
from corevo.notifier import Notifier
from corevo.pulse import Pulse
from corevo.runtime.registry import load
from corevo.settings import Settings, load_settings
from corevo.store import server
from corevo.store.connections import Connections
from corevo.tasks import Background
from corevo.worker import Worker

CHANNELS = (WORK_CHANNEL, JOB_CHANNEL, EVENT_CHANNEL)


def create_app(settings: Settings | None = None, app: str | None = None) -> Starlette:
    """All roles in one app. `app` (else COREVO_APP) names the module or file with the agents."""
    settings = settings or load_settings()
    target = app or settings.app
    if not target:
        raise UsageError("name the agents to serve: `corevo solo APP`, or COREVO_APP")
    agents = load(target)
    db = Connections(
        settings.database_url, limit=settings.connections("solo"), name="corevo solo", pooled=settings.behind_pooler
    )
    notifier = Notifier(db, enabled=settings.notify == "on")
    worker = Worker(settings, db, notifier, agents)
    janitor = Janitor(settings, db, notifier)
    gateway = Gateway(settings, db, notifier, local=worker)

    def on_message(channel: str, payload: str) -> None:
        worker.on_message(channel, payload)
        gateway.on_message(channel, payload)

    def on_resync() -> None:
        worker.resync()
        gateway.resync()

    pulse = Pulse(settings, channels=CHANNELS, on_message=on_message, on_resync=on_resync, heart=worker.heart)
    worker.listening = lambda: pulse.listening
    gateway.listening = lambda: pulse.listening
    background = Background()

    async def reasons() -> list[str]:
        why = list(background.failures)
        if not pulse.alive:
            why.append("the pulse has ended")
        if not worker.may_start():
            why.append("draining" if worker.draining else "suspended: no heartbeat was taken lately")
        try:
            await asyncio.wait_for(server.answers(db), 5)
        except (CorevoError, TimeoutError):
            why.append("the database does not answer")
        return why

    def facts() -> dict[str, Any]:
        return {"listen": "healthy" if pulse.listening else "polling", "running": len(worker.executor.jobs)}

    def sample() -> None:
        metrics.sample_process(pulse.lag_ms, pulse.listening, db.statements)
        worker.sample()
        gateway.sample()

    def on_stop() -> None:
        gateway.shutdown()
        worker.stop_claiming()

    @asynccontextmanager
    async def lifespan(starlette: Starlette) -> AsyncIterator[None]:
        await pass_gate(settings, db)
        await worker.begin()
        pulse.start()
        background.start(notifier.run(), "notifier")
        background.start(worker.writer.run(), "event writer")
        background.start(gateway.run(), "projector")
        background.start(janitor.run(), "janitor")
        background.start(worker.run(), "claim loop")
        try:
            yield
        finally:
            on_stop()
            await worker.drain()
            await worker.retire()
            await background.stop()
            await notifier.flush()
            await pulse.stop()
            await db.close()

    starlette = gateway.application(health.routes(settings, reasons, facts, sample), lifespan)
    starlette.state.on_stop = on_stop
    return starlette


def __getattr__(name: str) -> Starlette:
    """`uvicorn corevo.solo:app` makes the app on first use; COREVO_APP names the agents."""
    if name == "app":
        return create_app()
    raise AttributeError(name)
