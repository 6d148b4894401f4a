"""Several connections to one fresh database; after each test every invariant is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from uuid import UUID

import pytest

from tests.invariants import violations
from tests.protocol import Protocol


@pytest.fixture
async def connections(database: str) -> AsyncIterator[list[Protocol]]:
    """Four. Where nothing else is said, the first acts first and holds, the second meets it, the third looks on."""
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(4):
            protocol = await Protocol.connect(database, statement_timeout="20s")
            stack.push_async_callback(protocol.close)
            opened.append(protocol)
        yield opened
    assert await violations(database) == []


@pytest.fixture
async def account(connections: list[Protocol]) -> UUID:
    return await connections[0].account()


@pytest.fixture
async def worker(connections: list[Protocol]) -> UUID:
    return await connections[0].worker()
