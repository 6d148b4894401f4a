"""One browser for all tests of this folder; one set of processes for those that break none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest_asyncio
from playwright.async_api import Browser

from tests.browser.browser import Person, launched, person
from tests.conftest import fresh
from tests.processes import Process, role

AGENTS = "tests/browser/agents.py"


@dataclass
class Fleet:
    """Two gateways and a worker, which is a janitor too."""

    database: str
    one: Process
    two: Process


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with launched() as found:
        yield found


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def fleet(browser: Browser, maintenance: str, template: str) -> AsyncIterator[Fleet]:
    async with (
        fresh(maintenance, template) as database,
        role(database, "web", "--port", "0") as one,
        role(database, "web", "--port", "0") as two,
        role(database, "worker", AGENTS, settings={"COREVO_PLACES": "8"}),
    ):
        yield Fleet(database, one, two)


@pytest_asyncio.fixture(loop_scope="session")
async def someone(browser: Browser) -> AsyncIterator[Person]:
    async with person(browser) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="session")
async def own_database(maintenance: str, template: str) -> AsyncIterator[str]:
    """For the tests that bring their own processes."""
    async with fresh(maintenance, template) as database:
        yield database
