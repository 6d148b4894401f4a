"""The Postgres that the tests run on, and databases on it.

It is an embedded one in a temporary directory; `COREVO_TEST_DATABASE_URL` names another, by a database from which
others can be created.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import asyncpg

from corevo.embedded import LocalPostgres

#: No test reads after a crash of the machine. synchronous_commit stays on: the protocol depends on its meaning.
FAST = {"fsync": "off", "full_page_writes": "off", "autovacuum_naptime": "5s"}


@contextmanager
def serve() -> Iterator[str]:
    """Yields the DSN of a database to create others from; an embedded server ends with the block."""
    if given := os.environ.get("COREVO_TEST_DATABASE_URL"):
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="corevo-tests-") as folder:
        server = LocalPostgres(Path(folder), FAST)
        try:
            yield server.start()
        finally:
            server.stop()


def beside(dsn: str, database: str) -> str:
    """The DSN of another database of the same server."""
    return urlsplit(dsn)._replace(path="/" + quote(database, safe="")).geturl()


async def create_database(maintenance: str, name: str, template: str = "template0") -> str:
    """Creates the database as a copy, file by file, which takes a third of copying through the log."""
    connection = await asyncpg.connect(maintenance)
    try:
        strategy = "strategy file_copy" if connection.get_server_version().major >= 15 else ""
        await connection.execute(f'create database "{name}" template "{template}" encoding \'UTF8\' {strategy}')
    finally:
        await connection.close()
    return beside(maintenance, name)


async def drop_database(maintenance: str, name: str) -> None:
    """Drops it under whoever is still connected."""
    connection = await asyncpg.connect(maintenance)
    try:
        await connection.execute(f'drop database if exists "{name}" with (force)')
    finally:
        await connection.close()
