"""Without sign-in only this machine may call."""

from __future__ import annotations

from typing import Any, cast

import pytest
from starlette.requests import HTTPConnection

from corevo.control.identity import ForbiddenHost, ForbiddenOrigin, Identity
from corevo.settings import Settings
from corevo.store.connections import Connections


def check(client: str | None, host: str = "localhost:8000", origin: str | None = None, **settings: Any) -> None:
    headers = [(b"host", host.encode())] + ([(b"origin", origin.encode())] if origin else [])
    scope = {"type": "http", "scheme": "http", "headers": headers, "client": None if client is None else (client, 5)}
    identity = Identity(Settings(auth="off", **settings), cast(Connections, None))
    identity.check(HTTPConnection(scope))


@pytest.mark.parametrize("client", ["127.0.0.1", "::1", "127.9.9.9", None])
def test_this_machine_may_call(client: str | None) -> None:
    check(client)


@pytest.mark.parametrize("client", ["192.0.2.7", "10.0.0.1", "2001:db8::1"])
def test_others_may_not_whatever_host_they_name(client: str) -> None:
    with pytest.raises(ForbiddenHost):
        check(client)
    check(client, auth_off_anywhere=True)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "192.0.2.7:8000", ""])
def test_a_name_that_is_not_loopback_is_refused(host: str) -> None:
    with pytest.raises(ForbiddenHost):
        check("127.0.0.1", host)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost.evil.example:8000", "http://localhost:8001"]
)
def test_a_page_of_another_origin_is_refused(origin: str) -> None:
    with pytest.raises(ForbiddenOrigin):
        check("127.0.0.1", origin=origin)


def test_our_own_page_may_call() -> None:
    check("127.0.0.1", origin="http://localhost:8000")
