from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.faults.roles import Zygote, zygote
from tests.faults.servers import Server, served
from tests.faults.worlds import World, a_world


@pytest_asyncio.fixture
async def forks() -> AsyncIterator[Zygote]:
    async with zygote() as found:
        yield found


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One Postgres for these tests, beside the other tests' one: it is restarted, and its settings change."""
    with served() as found:
        asyncio.run(found.make_template())
        yield found


@pytest.fixture
async def world(server: Server, forks: Zygote) -> AsyncIterator[World]:
    async with a_world(server, forks) as found:
        yield found
