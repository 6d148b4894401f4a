"""A WebSocket client that keeps everything it received, in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

FRAME_SECONDS = 20.0


class Socket:
    """`frames`: all frames so far, but for the server's pings."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.frames: list[dict[str, Any]] = []
        self._refs = 0

    async def send(self, **frame: Any) -> None:
        await self.connection.send(json.dumps(frame))

    async def ask(self, op: str, **frame: Any) -> dict[str, Any]:
        """Sends with a ref of its own; returns the ack or error that answers it."""
        self._refs += 1
        ref = str(self._refs)
        await self.send(op=op, ref=ref, **frame)
        return await self.until(lambda f: f["ev"] in ("ack", "error") and f.get("ref") == ref)

    async def receive(self, seconds: float = FRAME_SECONDS) -> dict[str, Any]:
        while True:
            frame = json.loads(await asyncio.wait_for(self.connection.recv(), seconds))
            if frame["ev"] != "ping":
                self.frames.append(frame)
                return frame  # type: ignore[no-any-return]

    async def until(self, matches: Any, seconds: float = FRAME_SECONDS) -> dict[str, Any]:
        async with asyncio.timeout(seconds):
            while True:
                frame = await self.receive(seconds)
                if matches(frame):
                    return frame

    async def until_ended(self, job_id: str, seconds: float = 30.0) -> dict[str, Any]:
        """The terminal job frame, which may have come already: before the ack of what ended the job."""

        def ends(frame: dict[str, Any]) -> bool:
            return bool(frame["ev"] == "job" and frame["job"]["id"] == job_id and frame["job"]["finished_at"])

        return next(filter(ends, self.frames), None) or await self.until(ends, seconds)

    def events(self, job_id: str) -> list[dict[str, Any]]:
        """What this client holds of a job, with resets obeyed."""
        held: list[dict[str, Any]] = []
        for frame in self.frames:
            if frame.get("job_id") != job_id:
                continue
            if frame["ev"] == "reset":
                held = [e for e in held if e["execution_id"] != frame["execution_id"]]
            elif frame["ev"] == "event":
                held.append(frame)
        return held

    def text(self, job_id: str) -> str:
        """The text of the newest execution, placed by its offsets."""
        events = self.events(job_id)
        text = ""
        for event in [e for e in events if e["epoch"] == events[-1]["epoch"] and e["type"] == "text.delta"]:
            assert event["data"]["at"] == len(text), "a delta does not join the one before it"
            text += event["data"]["text"]
        return text


@contextlib.asynccontextmanager
async def socket(url: str) -> AsyncIterator[Socket]:
    """Connects to a gateway's http:// address."""
    async with connect(
        url.replace("http://", "ws://") + "/api/ws",
        subprotocols=[Subprotocol("corevo.v1")],
        compression=None,
        max_size=None,
        proxy=None,
    ) as connection:
        yield Socket(connection)
