"""A reader of server-sent events, as an EventSource would see them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Sent:
    event: str
    id: str | None
    data: dict[str, Any]


class Stream:
    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.seen: list[Sent] = []
        self.comments = 0
        self.ended = False
        self._lines = response.aiter_lines()

    async def next(self, seconds: float = 15.0) -> Sent | None:
        """The next event; None at the end of the stream."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(seconds):
            async for line in self._lines:
                if line.startswith(":"):
                    self.comments += 1
                elif line:
                    name, _, value = line.partition(": ")
                    fields[name] = value
                elif "data" in fields:
                    sent = Sent(fields.get("event", "message"), fields.get("id"), json.loads(fields["data"]))
                    self.seen.append(sent)
                    return sent
                else:
                    fields = {}
        self.ended = True
        return None

    async def until(self, count: int) -> list[Sent]:
        """Reads until so many events of the job were seen."""
        while len(self.events) < count:
            assert await self.next() is not None, "the stream ended early"
        return self.events

    async def rest(self) -> list[Sent]:
        while await self.next() is not None:
            pass
        return self.seen

    @property
    def events(self) -> list[Sent]:
        return [sent for sent in self.seen if sent.event == "message"]


@contextlib.asynccontextmanager
async def stream(
    http: httpx.AsyncClient, job_id: str, *, last: str | None = None, after: str | None = None
) -> AsyncIterator[Stream]:
    headers: Mapping[str, str] = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
    params = {"after": after} if after else None
    async with http.stream("GET", f"/api/jobs/{job_id}/events", headers=headers, params=params) as response:
        yield Stream(response)
