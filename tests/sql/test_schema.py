"""sql/schema.sql is what the migrations make."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.schema import dump

COMMITTED = Path(__file__).resolve().parents[2] / "sql" / "schema.sql"


@pytest.mark.skipif("COREVO_PG_BIN" in os.environ, reason="another version's pg_dump words it differently")
def test_the_committed_schema_is_what_the_migrations_make() -> None:
    assert dump() == COMMITTED.read_text("utf-8"), "run: .venv/bin/python -m tests.schema > sql/schema.sql"
