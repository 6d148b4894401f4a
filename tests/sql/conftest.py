"""One connection to a fresh database; after each test every invariant is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from tests.invariants import violations_seen_by
from tests.protocol import Protocol


@pytest.fixture
async def raw(database: str) -> AsyncIterator[Protocol]:
    """For tests that break the database on purpose."""
    protocol = await Protocol.connect(database)
    yield protocol
    await protocol.close()


@pytest.fixture
async def protocol(raw: Protocol) -> AsyncIterator[Protocol]:
    yield raw
    assert await violations_seen_by(raw.connection) == []


@pytest.fixture
async def account(raw: Protocol) -> UUID:
    return await raw.account()


@pytest.fixture
async def worker(raw: Protocol) -> UUID:
    return await raw.worker()
