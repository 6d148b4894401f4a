"""Sending NOTIFY in a transaction of its own."""

from __future__ import annotations

from collections.abc import Sequence

from corevo.store.connections import Connections


async def send(db: Connections, messages: Sequence[tuple[str, str]]) -> None:
    """Sends (channel, payload) pairs. What is lost here is found by polling."""
    await db.fetch("select corevo.notify($1, $2)", [c for c, _ in messages], [p for _, p in messages])
