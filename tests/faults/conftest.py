from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.faults.roles import Zygote, zygote
from tests.faults.servers import Server, a_server
from tests.faults.worlds import World, a_world


@pytest_asyncio.fixture
async def forks() -> AsyncIterator[Zygote]:
    async with zygote() as found:
        yield found


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A Postgres of this test's own."""
    async with a_server() as found:
        yield found


@pytest.fixture
async def world(server: Server, forks: Zygote) -> AsyncIterator[World]:
    async with a_world(server, forks) as found:
        yield found
