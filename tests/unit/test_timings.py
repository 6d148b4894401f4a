"""Timings that do not fit together are refused at the start, in one line that names both."""

from __future__ import annotations

import pytest

from corevo.errors import UsageError
from corevo.settings import load_settings

DSN = "postgresql://nobody@127.0.0.1/none"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"heartbeat_seconds": 5, "heartbeat_ttl_seconds": 14.9}, "COREVO_HEARTBEAT_SECONDS"),
        ({"janitor_seconds": 5.1, "heartbeat_ttl_seconds": 20}, "COREVO_JANITOR_SECONDS"),
    ],
    ids=str,
)
def test_timings_that_do_not_fit_are_refused(wrong: dict[str, float], named: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_settings(database_url=DSN, **wrong)
    assert named in refused.value.detail and "COREVO_HEARTBEAT_TTL_SECONDS" in refused.value.detail
    assert "\n" not in refused.value.detail


def test_the_defaults_fit_with_nothing_to_spare() -> None:
    settings = load_settings(database_url=DSN)
    assert settings.heartbeat_ttl_seconds >= 4 * settings.janitor_seconds
