"""Solo: gateway, worker and janitor in one process, for one small dyno. It weakens no invariant.

A job sent here takes the local direct path when a place is free and no older claimable job of its lane waits: admission
claims it for this worker in the same transaction. Start and endings are the same as everywhere.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette

from corevo.contracts import EVENT_CHANNEL, JOB_CHANNEL, WORK_CHANNEL
from corevo.gateway import Gateway
from corevo.janitor import Janitor
from corevo.process import Process
from corevo.settings import Settings, load_settings
from corevo.worker import Worker, load_agents

CHANNELS = (WORK_CHANNEL, JOB_CHANNEL, EVENT_CHANNEL)


def create_app(settings: Settings | None = None, app: str | None = None) -> Starlette:
    """All roles in one app. `app` (else COREVO_APP) names the module or file with the agents."""
    settings = settings or load_settings()
    process = Process(settings, "solo")
    worker = Worker(process, load_agents(settings, app, "solo"))
    janitor = Janitor(settings, process.db, process.notifier)
    gateway = Gateway(process, local=worker)

    def on_message(channel: str, payload: str) -> None:
        worker.on_message(channel, payload)
        gateway.on_message(channel, payload)

    def on_resync() -> None:
        worker.resync()
        gateway.resync()

    def on_stop() -> None:
        gateway.shutdown()
        worker.stop_claiming()

    process.add_pulse(CHANNELS, on_message, on_resync, worker.heart)

    @asynccontextmanager
    async def lifespan(starlette: Starlette) -> AsyncIterator[None]:
        await process.pass_gate()
        await worker.begin_surely()
        process.begin()
        worker.start(process.background)
        gateway.start(process.background)
        process.background.start(janitor.run(), "janitor")
        try:
            yield
        finally:
            on_stop()
            await worker.drain()
            await worker.retire()
            await process.end()

    starlette = gateway.application(process.routes(), lifespan)
    starlette.state.on_stop = on_stop
    return starlette


def __getattr__(name: str) -> Starlette:
    """`uvicorn corevo.solo:app` makes the app on first use; COREVO_APP names the agents."""
    if name == "app":
        return create_app()
    raise AttributeError(name)
