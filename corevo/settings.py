"""Every setting, its variable and its default. Read once at the start; a wrong value is one line."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import AliasChoices, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from corevo.errors import UsageError

RoleName = Literal["web", "worker", "janitor", "solo"]

#: Connections beside the dedicated one. One web and one worker, twice over in a rolling deploy: 2 × (4 + 3) = 14 of 20.
DEFAULT_CONNECTIONS: dict[RoleName, int] = {"web": 3, "worker": 2, "janitor": 1, "solo": 4}


class Settings(BaseSettings):
    """Fields are read from `COREVO_<NAME>`, but for DATABASE_URL, PORT and DYNO, which platforms set."""

    model_config = SettingsConfigDict(env_prefix="COREVO_", extra="ignore", frozen=True)

    # where the database is
    database_url: str = Field("", validation_alias=AliasChoices("DATABASE_URL", "database_url"))
    database_direct_url: str = ""
    db_connections: int | None = Field(None, ge=1, le=100)

    # who may come in
    auth: Literal["on", "off"] = "on"
    auth_off_anywhere: bool = False
    metrics_token: str = ""

    # how a process listens
    host: str | None = None
    port: int | None = Field(None, ge=0, le=65535, validation_alias=AliasChoices("PORT", "COREVO_PORT", "port"))

    # waking and polling
    notify: Literal["on", "off"] = "on"
    notify_payload: Literal["on", "off"] = "on"
    poll_seconds: float = Field(10.0, gt=0, le=3600)

    # liveness
    heartbeat_seconds: float = Field(5.0, gt=0, le=3600)
    heartbeat_ttl_seconds: float = Field(20.0, gt=0, le=36000)
    loop_stall_limit_seconds: float = Field(60.0, gt=0, le=36000)
    janitor_seconds: float = Field(5.0, gt=0, le=3600)
    stop_grace_seconds: float = Field(25.0, ge=0, le=36000)

    # a worker
    places: int = Field(4, ge=0, le=1000)
    heavy_places: int = Field(1, ge=0, le=1000)
    name: str = ""
    app: str = ""
    agent_timeout_seconds: float = Field(300.0, gt=0)

    # limits
    queue_start_seconds: float = Field(60.0, gt=0)
    next_limit: int = Field(5, ge=0, le=1000)
    event_retention_days: int = Field(30, ge=1, le=3650)

    # embedded Postgres
    data_dir: Path = Path(".corevo")
    pg_bin: str = ""

    @field_validator("database_url", "database_direct_url")
    @classmethod
    def _is_postgres(cls, value: str) -> str:
        if value and urlsplit(value).scheme not in ("postgres", "postgresql"):
            raise ValueError("must begin with postgresql://")
        try:
            _ = urlsplit(value).port
        except ValueError as error:
            raise ValueError(f"the port is none ({error})") from None
        return value

    @property
    def port_from_platform(self) -> bool:
        return bool(os.environ.get("PORT"))

    @property
    def direct_url(self) -> str:
        """For the dedicated connection and for migrations: LISTEN does not work through a transaction-mode pooler."""
        return self.database_direct_url or self.database_url

    @property
    def behind_pooler(self) -> bool:
        """Whether DATABASE_URL may lead through a transaction-mode pooler: a direct URL beside it says so; and who only
        polls needs no session of his own, so the pooler may be all there is.
        """
        if self.database_direct_url:
            return self.database_direct_url != self.database_url
        return self.notify == "off"

    @property
    def process_name(self) -> str:
        """For display and metric labels; may repeat."""
        return self.name or os.environ.get("DYNO") or socket.gethostname()

    def connections(self, role: RoleName) -> int:
        return self.db_connections or DEFAULT_CONNECTIONS[role]


def load_settings(**overrides: Any) -> Settings:
    """Reads the environment; `overrides` (from the command line) win where they are not None."""
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        settings = Settings(**given)
    except ValidationError as error:
        raise UsageError("\n".join(_one_line(e) for e in error.errors())) from None
    if not settings.database_url:
        raise UsageError("DATABASE_URL is not set. Set it, or run `corevo dev`, which brings a Postgres of its own.")
    if settings.heartbeat_ttl_seconds < 3 * settings.heartbeat_seconds:
        raise UsageError(
            f"COREVO_HEARTBEAT_TTL_SECONDS={settings.heartbeat_ttl_seconds:g} must be at least three times "
            f"COREVO_HEARTBEAT_SECONDS={settings.heartbeat_seconds:g}: a live worker would be declared dead."
        )
    if settings.heartbeat_ttl_seconds < 4 * settings.janitor_seconds:
        raise UsageError(
            f"COREVO_HEARTBEAT_TTL_SECONDS={settings.heartbeat_ttl_seconds:g} must be at least four times "
            f"COREVO_JANITOR_SECONDS={settings.janitor_seconds:g}: sweeps that far apart watch nobody."
        )
    return settings


def variable_of(field: str) -> str:
    """The environment variable of a field."""
    return {"database_url": "DATABASE_URL", "port": "PORT"}.get(field, f"COREVO_{field.upper()}")


def _one_line(error: Any) -> str:
    field = str(error["loc"][0]) if error["loc"] else "settings"
    name = field if field.isupper() else variable_of(field)
    message = str(error["msg"]).removeprefix("Value error, ")
    shown = "" if "url" in field.lower() or "token" in field.lower() else f"={error['input']}"
    return f"{name}{shown}: {message}"
