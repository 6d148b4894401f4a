"""What clients did and were told, and the checks that need to know it: I4, I9, I10 and I11 of the design.

A call is ok, failed (the server said no, so nothing happened) or unknown (no answer, or one that promises nothing).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import uuid4

import asyncpg
import httpx
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.invariants import violations
from tests.processes import eventually
from tests.sockets import socket

Outcome = Literal["ok", "failed", "unknown"]
ENDED = ("completed", "failed", "cancelled", "interrupted", "timed_out", "lost", "expired")
ASK_SECONDS = 15.0
#: What our own looks at the database may meet while it is being harmed.
AWAY = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)

#: (execution, seq, type, data as JSON text with sorted keys)
Row = tuple[str, int, str, str]


@dataclass
class Call:
    kind: str
    outcome: Outcome
    status: int | None
    seconds: float
    key: str = ""
    job_id: str | None = None
    thread_id: str | None = None


@dataclass
class Follower:
    """One viewer of one job over any number of sockets and gateways; obeys resets; goes on from its cursor."""

    job_id: str
    held: list[tuple[int, Row]] = field(default_factory=list)  # with the epoch
    connections: int = 0
    resets: int = 0
    ended: dict[str, Any] | None = None
    task: asyncio.Task[None] | None = None

    @property
    def cursor(self) -> str | None:
        return f"{self.held[-1][1][0]}:{self.held[-1][1][1]}" if self.held else None

    async def follow(self, urls: list[str]) -> None:
        while self.ended is None:
            url = urls[self.connections % len(urls)]
            self.connections += 1
            with contextlib.suppress(OSError, ConnectionClosed, InvalidHandshake, TimeoutError):
                async with socket(url) as connection:
                    after = {"after": self.cursor} if self.cursor else {}
                    await connection.send(op="attach", ref="a", job_id=self.job_id, **after)
                    while self.ended is None:
                        self._take(await connection.receive(60))
            await asyncio.sleep(0.05)

    def _take(self, frame: dict[str, Any]) -> None:
        if frame["ev"] == "error" and frame.get("code") in ("unavailable", "internal"):
            raise TimeoutError  # attach again
        assert frame["ev"] != "error", frame
        if frame["ev"] == "job" and frame["job"]["id"] == self.job_id and frame["job"]["finished_at"]:
            self.ended = frame["job"]
        if frame.get("job_id") != self.job_id:
            return
        if frame["ev"] == "reset":
            self.resets += 1
            self.held = [(epoch, row) for epoch, row in self.held if row[0] != frame["execution_id"]]
        elif frame["ev"] == "event":
            row = (frame["execution_id"], frame["seq"], frame["type"], json.dumps(frame["data"], sort_keys=True))
            self.held.append((frame["epoch"], row))

    def rows(self) -> list[Row]:
        return [row for _, row in self.held]


class History:
    """One client of one account, on all gateways in turn. `report()` says what it saw."""

    def __init__(self, dsn: str, urls: list[str], seed: int | str, *, quiet: bool = False) -> None:
        self.dsn = dsn
        self.urls = urls
        self.seed = seed
        self.calls: list[Call] = []
        self.followers: list[Follower] = []
        self.asked = 0
        if not quiet:
            print(f"seed {seed}")

    async def submit(self, agent: str, text: str, *, key: str | None = None, again: int = 0, **more: Any) -> Call:
        """One POST /api/jobs, and `again` more with the same key while its outcome is unknown."""
        key = key or str(uuid4())
        call = await self._ask("submit", "POST", "/api/jobs", {"text": text, "agent": agent, **more}, key)
        while call.outcome == "unknown" and again > 0:
            again -= 1
            await asyncio.sleep(0.1)
            call = await self._ask("submit", "POST", "/api/jobs", {"text": text, "agent": agent, **more}, key)
        return call

    async def cancel(self, job_id: str) -> Call:
        call = await self._ask("cancel", "POST", f"/api/jobs/{job_id}/cancel", {}, "")
        call.job_id = job_id
        return call

    def follow(self, job_id: str) -> Follower:
        follower = Follower(job_id)
        follower.task = asyncio.create_task(follower.follow(self.urls))
        self.followers.append(follower)
        return follower

    async def _ask(self, kind: str, method: str, path: str, body: dict[str, Any], key: str) -> Call:
        self.asked += 1
        url = self.urls[self.asked % len(self.urls)]
        began = time.monotonic()
        call = Call(kind, "unknown", None, 0.0, key)
        self.calls.append(call)
        try:
            async with httpx.AsyncClient(base_url=url, timeout=ASK_SECONDS) as http:
                headers = {"Idempotency-Key": key} if key else {}
                answer = await http.request(method, path, json=body, headers=headers)
        except httpx.HTTPError:
            return call
        finally:
            call.seconds = time.monotonic() - began
        call.status = answer.status_code
        if answer.is_success:
            call.outcome = "ok"
            job = answer.json().get("job", {})
            call.job_id, call.thread_id = job.get("id"), job.get("thread_id")
        elif answer.status_code < 500:
            call.outcome = "failed"
        else:
            assert answer.status_code == 503, answer.text
            assert "retry-after" in answer.headers, "503 without Retry-After"
        return call

    # ── checks ────────────────────────────────────────────────────────────────────────────────────────

    async def states(self) -> dict[str, str]:
        """State of each job there is."""
        rows = await self._fetch("select id::text, state from corevo.jobs")
        return {row["id"]: row["state"] for row in rows}

    async def until_ended(self, job_id: str | None, seconds: float = 30.0) -> str:
        assert job_id is not None

        async def look() -> str:
            with contextlib.suppress(*AWAY):
                state = (await self.states()).get(job_id, "")
                return state if state in ENDED else ""
            return ""

        return await eventually(look, seconds=seconds, what=f"the end of job {job_id}")

    async def converge(self, seconds: float = 40.0) -> dict[str, str]:
        """I11, for clients: with every fault healed everything ends."""

        async def look() -> dict[str, str] | None:
            with contextlib.suppress(*AWAY):
                states = await self.states()
                return states if all(state in ENDED for state in states.values()) else None
            return None

        if not await self.states():
            return {}
        found = await eventually(look, seconds=seconds, every=0.05, what="an end of every job")
        assert found is not None
        return found

    async def stored(self, job_id: str) -> list[Row]:
        rows = await self._fetch(
            "select x.id::text as execution, e.seq, e.type, e.data::text as data from corevo.executions x "
            "join corevo.events e on e.execution_id = x.id where x.job_id = $1::uuid order by x.epoch, e.seq",
            job_id,
        )
        return [(r["execution"], r["seq"], r["type"], json.dumps(json.loads(r["data"]), sort_keys=True)) for r in rows]

    async def check(self, timings: Mapping[str, float], *, follow_seconds: float = 20.0) -> None:
        """All invariants, and what only a client can know."""
        states = await self.states()
        for call in self.calls:
            if call.outcome == "ok" and call.job_id is not None:  # I4
                assert call.job_id in states, f"I4: {call.kind} answered {call.status} for a job that is not there"
            if call.outcome == "ok" and call.kind == "cancel":  # I10
                assert states[call.job_id or ""] in ENDED, f"I10: {call.job_id} was to be cancelled"
        by_key: dict[str, set[str]] = {}
        for call in self.calls:
            if call.kind == "submit" and call.outcome == "ok" and call.job_id:
                by_key.setdefault(call.key, set()).add(call.job_id)
        assert all(len(found) == 1 for found in by_key.values()), "I5: one key gave two jobs"
        keys = await self._fetch("select key, count(*) as n from corevo.idempotency group by key having count(*) > 1")
        assert not keys, "I5: two rows of one key"
        for follower in self.followers:  # I9

            async def look(follower: Follower = follower) -> bool:
                return follower.ended is not None

            await eventually(look, seconds=follow_seconds, what=f"a follower of {follower.job_id} that sees the end")
            assert follower.task is not None
            await follower.task
            stored = await self.stored(follower.job_id)
            assert follower.rows() == stored, (
                f"I9: received {[r[1:3] for r in follower.rows()]}, stored {[r[1:3] for r in stored]}"
            )
            epochs = [epoch for epoch, _ in follower.held]
            assert epochs == sorted(epochs), "I9: epochs out of order"
            assert follower.ended is not None and follower.ended["state"] == states[follower.job_id]
        found = await violations(self.dsn, **dict(timings))  # type: ignore[arg-type]
        assert found == [], found

    async def close(self) -> None:
        for follower in self.followers:
            if follower.task is not None:
                follower.task.cancel()
        await asyncio.gather(*(f.task for f in self.followers if f.task), return_exceptions=True)

    def report(self) -> str:
        counts: dict[tuple[str, str], int] = {}
        for call in self.calls:
            counts[call.kind, call.outcome] = counts.get((call.kind, call.outcome), 0) + 1
        return f"seed {self.seed}: " + ", ".join(f"{n} {kind} {outcome}" for (kind, outcome), n in counts.items())

    async def _fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.dsn, timeout=5)
        try:
            rows: list[asyncpg.Record] = await connection.fetch(sql, *args)
            return rows
        finally:
            await connection.close()
