from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from corevo.store import accounts
from corevo.store.connections import Connections
from tests.client import Client
from tests.invariants import violations


@pytest.fixture
async def client(database: str) -> AsyncIterator[Client]:
    """A client of the local account; at its end every invariant holds."""
    db = Connections(database, limit=1, name="test client")
    yield Client(db, await accounts.local_account(db))
    await db.close()
    assert await violations(database) == []
