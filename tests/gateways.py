"""A gateway served on a port of loopback by this process: as `corevo web` serves it, without a process to start."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from corevo import gateway, serve
from corevo.settings import load_settings
from tests.processes import eventually


@contextlib.asynccontextmanager
async def gateway_on(database: str, *, listens: bool = True, **settings: Any) -> AsyncIterator[str]:
    """Yields its http:// address, once its channel is proved (unless `listens` is false)."""
    loaded = load_settings(database_url=database, auth="off", **settings)
    app = gateway.create_app(loaded)
    listener = serve.listen("127.0.0.1", 0)
    stop = asyncio.Event()
    ready = asyncio.Event()
    async with app.router.lifespan_context(app):
        serving = asyncio.create_task(serve._serve(app, listener, stop, ready.set))
        try:
            await ready.wait()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            if listens and loaded.notify == "on":
                await _listening(url)
            yield url
        finally:
            stop.set()
            await serving


async def _listening(url: str) -> None:
    import httpx

    async with httpx.AsyncClient(base_url=url) as http:

        async def look() -> bool:
            return bool((await http.get("/readyz")).json()["listen"] == "healthy")

        await eventually(look, what="a proved channel")
