"""The SQL functions as the tests call them: one short method a function, raw rows back, nothing hidden.

Not the store of the product on purpose: these tests judge the SQL alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID, uuid4

import asyncpg
import pytest

Row = asyncpg.Record

TABLES = [
    "accounts",
    "agents",
    "audit",
    "commands",
    "duties",
    "events",
    "executions",
    "idempotency",
    "jobs",
    "messages",
    "settings",
    "threads",
    "workers",
]

STALE, BAD_CALL, WORKER_FENCED, INCARNATION_USED = "RV001", "RV003", "RV004", "RV005"
NOT_FOUND, AGENT_UNKNOWN, AGENT_UNAVAILABLE, MISMATCH = "RV101", "RV102", "RV103", "RV104"
THREAD_BUSY, LINE_FULL, AGENT_REQUIRED, TOO_MANY_COMMANDS = "RV105", "RV106", "RV107", "RV108"


def refused(sqlstate: str) -> pytest.RaisesExc[asyncpg.PostgresError]:
    """Expects the refusal with this SQLSTATE: `with refused(STALE): …`."""
    return pytest.RaisesExc(asyncpg.PostgresError, check=lambda error: error.sqlstate == sqlstate)


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that a worker holds, with what it needs to prove it."""

    worker: UUID
    job: UUID
    epoch: int
    token: UUID


@dataclass(frozen=True, slots=True)
class Running:
    """A started claim."""

    claim: Claim
    execution: UUID

    @property
    def job(self) -> UUID:
        return self.claim.job

    @property
    def token(self) -> UUID:
        return self.claim.token


@dataclass(frozen=True, slots=True)
class Piece:
    """Events of one run, as one append or finish carries them."""

    execution: UUID
    token: UUID
    first: int
    texts: tuple[str, ...]

    @property
    def seqs(self) -> range:
        return range(self.first, self.first + len(self.texts))


def delta(text: str) -> str:
    return json.dumps({"text": text})


def columns(pieces: Sequence[Piece]) -> tuple[list[UUID], list[int], list[str], list[str]]:
    """The four arrays of events: execution, seq, type, data."""
    flat = [(p.execution, seq, text) for p in pieces for seq, text in zip(p.seqs, p.texts, strict=True)]
    return (
        [x for x, _, _ in flat],
        [s for _, s, _ in flat],
        ["text.delta"] * len(flat),
        [delta(t) for _, _, t in flat],
    )


class Protocol:
    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self.connection = connection

    @classmethod
    async def connect(cls, dsn: str, **settings: str) -> Self:
        return cls(await asyncpg.connect(dsn, server_settings=settings))

    async def close(self) -> None:
        await self.connection.close()

    async def all(self, sql: str, *arguments: Any) -> list[Row]:
        return list(await self.connection.fetch(sql, *arguments))

    async def row(self, sql: str, *arguments: Any) -> Row:
        row: Row | None = await self.connection.fetchrow(sql, *arguments)
        assert row is not None, f"no row: {sql}"
        return row

    async def value(self, sql: str, *arguments: Any) -> Any:
        return await self.connection.fetchval(sql, *arguments)

    # ── people ────────────────────────────────────────────────────────────────────────────────────────

    async def account(self, name: str = "somebody") -> UUID:
        account = uuid4()
        await self.value(
            "insert into corevo.accounts (id, name, created_at) values ($1, $2, corevo.now())", account, name
        )
        return account

    async def admit(
        self,
        account: UUID,
        text: str = "hello",
        *,
        agent: str | None = "demo",
        thread: UUID | None = None,
        on_busy: str | None = None,
        key: str | None = None,
        body_hash: str | None = "h",
        next_limit: int = 5,
        worker: UUID | None = None,
    ) -> Row:
        return await self.row(
            "select * from corevo.admit($1, $2, $3, null, $4, $5, $6, $7, $8, $9, $10)",
            account, text, json.dumps(text), agent, thread, on_busy, key, body_hash, next_limit, worker,
        )  # fmt: skip

    async def cancel(self, account: UUID, job: UUID) -> Row:
        return await self.row("select * from corevo.request_cancel($1, $2)", account, job)

    # ── workers ───────────────────────────────────────────────────────────────────────────────────────

    async def worker(
        self,
        *agents: str,
        lane: str = "normal",
        timeout_seconds: float = 300.0,
        max_attempts: int = 1,
        worker: UUID | None = None,
    ) -> UUID:
        """Registers a worker; more than one attempt makes its agents retry_safe."""
        worker = worker or uuid4()
        names = list(agents or ("demo",))
        n = len(names)
        await self.value(
            "select corevo.register_worker($1, 'w', 'test', $2, $3, $4, $5, $6)",
            worker, names, [lane] * n, [timeout_seconds] * n, [max_attempts > 1] * n, [max_attempts] * n,
        )  # fmt: skip
        return worker

    async def beat(self, worker: UUID) -> list[Row]:
        return await self.all("select * from corevo.beat($1, 1.0)", worker)

    async def fence(self, worker: UUID) -> None:
        """Fences without a janitor's duty: the end state alone."""
        await self.value("update corevo.workers set fenced_at = corevo.now() where id = $1", worker)

    async def claim(
        self,
        worker: UUID,
        limit: int = 1,
        *,
        request: UUID | None = None,
        agents: Sequence[str] = ("demo",),
        lane: str = "normal",
    ) -> list[Claim]:
        rows = await self.all(
            "select * from corevo.claim($1, $2, $3, $4, $5)",
            worker,
            request or uuid4(),
            list(agents),
            lane,
            limit,
        )
        return [Claim(worker, row["job_id"], row["epoch"], row["token"]) for row in rows]

    async def release(self, claim: Claim) -> None:
        await self.value("select corevo.release($1, $2, $3)", claim.job, claim.epoch, claim.token)

    async def start(self, *claims: Claim, worker: UUID | None = None) -> list[Row]:
        return await self.all(
            "select * from corevo.start($1, $2, $3, $4)",
            worker or claims[0].worker,
            [c.job for c in claims],
            [c.epoch for c in claims],
            [c.token for c in claims],
        )

    async def append(self, *pieces: Piece) -> list[Row]:
        return await self.all(
            "select * from corevo.append_events($1, $2, $3, $4, $5, $6, $7)",
            [p.execution for p in pieces],
            [p.token for p in pieces],
            [p.first for p in pieces],
            *columns(pieces),
        )

    async def finish(
        self,
        *pieces: Piece,
        outcomes: Sequence[str] = (),
        reason: str | None = None,
        message: str | None = None,
    ) -> list[Row]:
        """Each piece is a run with its tail (often empty); outcomes default to completed."""
        outcomes = outcomes or ["completed"] * len(pieces)
        n = len(pieces)
        return await self.all(
            "select * from corevo.finish($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            [p.execution for p in pieces],
            [p.token for p in pieces],
            list(outcomes),
            [reason] * n,
            [message] * n,
            *columns(pieces),
        )

    async def accept(self, *runs: Running) -> list[Row]:
        return await self.all(
            "select * from corevo.accept_commands($1, $2)",
            [r.execution for r in runs],
            [r.token for r in runs],
        )

    # ── janitor ───────────────────────────────────────────────────────────────────────────────────────

    async def sweep(self, job: UUID, late_seconds: float = 20.0) -> Row:
        return await self.row("select * from corevo.sweep_job($1, $2)", job, late_seconds)

    async def expire(self, job: UUID, limit_seconds: float = 60.0) -> Row:
        return await self.row("select * from corevo.expire_job($1, $2)", job, limit_seconds)

    async def duty(self, holder: UUID, token: UUID, *, lease_seconds: float = 15.0, ttl_seconds: float = 20.0) -> Row:
        return await self.row(
            "select * from corevo.hold_duty('janitor', $1, $2, $3, $4)",
            holder,
            token,
            lease_seconds,
            ttl_seconds,
        )

    # ── what the tests look at ────────────────────────────────────────────────────────────────────────

    async def running(self, worker: UUID, *, agents: Sequence[str] = ("demo",)) -> Running:
        """Claims the oldest job and starts it."""
        (claim,) = await self.claim(worker, agents=agents)
        (row,) = await self.start(claim)
        assert row["result"] == "started"
        return Running(claim, row["execution_id"])

    async def job(self, job: UUID) -> Row:
        return await self.row("select * from corevo.jobs where id = $1", job)

    async def thread(self, thread: UUID) -> Row:
        return await self.row("select * from corevo.threads where id = $1", thread)

    async def execution(self, execution: UUID) -> Row:
        return await self.row("select * from corevo.executions where id = $1", execution)

    async def answer(self, job: UUID) -> Row:
        return await self.row("select text, status from corevo.messages where job_id = $1 and part = 1000", job)

    async def types(self, execution: UUID) -> list[str]:
        rows = await self.all("select type from corevo.events where execution_id = $1 order by seq", execution)
        return [row["type"] for row in rows]

    async def command(self, command: UUID) -> str:
        return str(await self.value("select state from corevo.commands where id = $1", command))

    async def move_clock(self, interval: str) -> None:
        """Replaces corevo.now(), from here on ahead of the server's clock by this much."""
        await self.value(
            "create or replace function corevo.now() returns timestamptz language sql volatile as "
            f"$$ select clock_timestamp() + interval '{interval}' $$"
        )

    async def contents(self) -> dict[str, tuple[int, str]]:
        """Row count and checksum of every table: equal before and after means that nothing changed."""
        found = {}
        for table in TABLES:
            row = await self.row(
                "select count(*) as n, md5(string_agg(md5(t::text), '' order by md5(t::text))) as sum "
                f"from corevo.{table} t"
            )
            found[table] = (row["n"], row["sum"])
        return found


def piece(run: Running, first: int = 2, *texts: str) -> Piece:
    return Piece(run.execution, run.token, first, texts)
