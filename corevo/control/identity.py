"""Who calls: the one place that answers this, for HTTP and WebSocket alike.

With COREVO_AUTH=off everyone is one local account, a real row. What protects it then is where a request comes from:
its Host must be a loopback name, so that no foreign page reaches us by a name that it points at this machine, and an
Origin, which browsers send, must be our own. With COREVO_AUTH=on a caller has to prove an account; no way to do so
exists in this release, so everyone is refused.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from corevo.contracts import AccountId
from corevo.errors import Refused
from corevo.settings import Settings
from corevo.store import accounts
from corevo.store.connections import Connections

DEFAULT_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}


class SignInRequired(Refused):
    code = "sign_in_required"
    status = 401


class ForbiddenHost(Refused):
    code = "forbidden_host"
    status = 403


class ForbiddenOrigin(Refused):
    code = "forbidden_origin"
    status = 403


class Identity:
    def __init__(self, settings: Settings, db: Connections) -> None:
        self._settings = settings
        self._db = db
        self._local: AccountId | None = None

    async def account(self, connection: HTTPConnection) -> AccountId:
        """The account that this request or socket acts for. Raises SignInRequired, ForbiddenHost, ForbiddenOrigin."""
        self.check(connection)
        if self._settings.auth == "on":
            raise SignInRequired("sign in first")
        if self._local is None:
            self._local = await accounts.local_account(self._db)
        return self._local

    def check(self, connection: HTTPConnection) -> None:
        """Where the request comes from, without asking anybody."""
        hosts = connection.headers.getlist("host")
        host = _authority(hosts[0], str(connection.scope.get("scheme", "http"))) if len(hosts) == 1 else None
        anywhere = self._settings.auth == "on" or self._settings.auth_off_anywhere
        client = connection.client
        near = client is None or _is_loopback(client.host)  # None: a Unix socket
        if not anywhere and (host is None or not _is_loopback(host[0]) or not near):
            raise ForbiddenHost("without sign-in only this machine may call, by a loopback name")
        for origin in connection.headers.getlist("origin"):
            try:
                scheme = urlsplit(origin).scheme
                ours = host is not None and _authority(urlsplit(origin).netloc, scheme) == _at(host, scheme)
            except ValueError:
                ours = False
            if not ours:
                raise ForbiddenOrigin("this page may not call here: its origin is another host")


def _authority(text: str, scheme: str) -> tuple[str, int | None] | None:
    """Host and port; a port that the scheme implies is None, so that both spellings are one."""
    try:
        parts = urlsplit(f"//{text}")
        name, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not name or parts.username is not None or parts.path or parts.query:
        return None
    return name.rstrip("."), None if port == DEFAULT_PORTS.get(scheme) else port


def _at(host: tuple[str, int | None], scheme: str) -> tuple[str, int | None]:
    """The host as the origin's scheme would write it: TLS may end before us, and then the schemes differ."""
    return host[0], None if host[1] == DEFAULT_PORTS.get(scheme) else host[1]


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.split("%")[0]).is_loopback
    except ValueError:
        return False
