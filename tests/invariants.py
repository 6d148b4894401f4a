"""Runs `ops/check_invariants.sql`, the file that operators run with psql, from the tests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

PATH = Path(__file__).resolve().parent.parent / "ops" / "check_invariants.sql"
HEADER = re.compile(r"^-- ([IS]\d+): (.+)$", re.MULTILINE)
DEFAULTS = {"ttl_seconds": 20.0, "stall_limit_seconds": 60.0, "period_seconds": 5.0}


@dataclass(frozen=True, slots=True)
class Invariant:
    name: str
    sentence: str
    sql: str


@dataclass(frozen=True, slots=True)
class Violation:
    invariant: str
    id: str
    detail: str


def invariants(**parameters: float) -> list[Invariant]:
    """The file's queries, with psql's variables replaced as psql would: `:'name'` by a quoted literal."""
    values = DEFAULTS | parameters
    text = PATH.read_text("utf-8")
    heads = list(HEADER.finditer(text))
    found = []
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        body = text[head.end() : following.start() if following else len(text)]
        sql = body[: body.index(";\n") + 1]
        sql = re.sub(r":'(\w+)'", lambda m: f"'{values[m[1]]}'", sql)
        found.append(Invariant(head[1], head[2], sql))
    return found


async def violations_seen_by(
    connection: asyncpg.Connection[Any], limit: int = 20, **parameters: float
) -> list[Violation]:
    """All invariants in one snapshot; at most `limit` rows of each."""
    found: list[Violation] = []
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        for invariant in invariants(**parameters):
            sql = f"select v.invariant, v.id, v.detail from ({invariant.sql.rstrip(';')}) v limit {limit}"
            found.extend(Violation(row["invariant"], row["id"], row["detail"]) for row in await connection.fetch(sql))
    return found


async def violations(dsn: str, limit: int = 20, **parameters: float) -> list[Violation]:
    connection = await asyncpg.connect(dsn)
    try:
        return await violations_seen_by(connection, limit, **parameters)
    finally:
        await connection.close()
