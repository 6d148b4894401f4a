"""One server and one migrated template for a test run, a database of its own for each test."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from corevo.store.migrations import migrate
from tests.server import create_database, drop_database, serve

numbers = itertools.count(1)


@pytest.fixture(scope="session")
def maintenance() -> Iterator[str]:
    """The DSN of a database of the test server from which others are created."""
    with serve() as dsn:
        yield dsn


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def template(maintenance: str) -> AsyncIterator[str]:
    """The name of a migrated database that nobody connects to."""
    name = f"corevo_template_{os.getpid()}"
    await drop_database(maintenance, name)
    try:
        await migrate(await create_database(maintenance, name))
        yield name
    finally:
        await drop_database(maintenance, name)


@pytest.fixture
async def database(maintenance: str, template: str) -> AsyncIterator[str]:
    """The DSN of a fresh, migrated database."""
    async with fresh(maintenance, template) as dsn:
        yield dsn


@pytest.fixture
async def empty_database(maintenance: str) -> AsyncIterator[str]:
    """The DSN of a fresh database without anything of ours."""
    async with fresh(maintenance, "template0") as dsn:
        yield dsn


@asynccontextmanager
async def fresh(maintenance: str, template: str) -> AsyncIterator[str]:
    name = f"corevo_test_{os.getpid()}_{next(numbers)}"
    await drop_database(maintenance, name)
    try:
        yield await create_database(maintenance, name, template)
    finally:
        await drop_database(maintenance, name)
