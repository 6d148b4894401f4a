"""The settings of a model agent, read from COREVO_OPENAI_… when it is built; a wrong value is one line."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

from pydantic import AliasChoices, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from corevo.errors import UsageError

PREFIX = "COREVO_OPENAI_"
OPENAI = "https://api.openai.com/v1"


class OpenAISettings(BaseSettings):
    """The key and the server are also read from OPENAI_API_KEY and OPENAI_BASE_URL, as every OpenAI client does; the
    key of those alone is not sent to a server that is named otherwise.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="ignore", frozen=True, env_ignore_empty=True, populate_by_name=True
    )

    # the model
    base_url: str = Field(OPENAI, validation_alias=AliasChoices(f"{PREFIX}BASE_URL", "OPENAI_BASE_URL"))
    api_key: SecretStr = Field(SecretStr(""), validation_alias=AliasChoices(f"{PREFIX}API_KEY", "OPENAI_API_KEY"))
    model: str = ""
    name: str = "assistant"
    system_prompt: str = "You are a helpful assistant."

    # what goes in and what comes out
    context_tokens: int = Field(32_000, ge=1)
    context_characters: int | None = Field(None, ge=1)
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    max_tool_rounds: int = Field(8, ge=1, le=100)
    timeout_seconds: float = Field(60.0, gt=0, le=3600)

    # USD for a million tokens
    price_input: float | None = Field(None, ge=0)
    price_output: float | None = Field(None, ge=0)

    @field_validator("base_url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        url = urlsplit(value)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("must begin with http:// or https://, and mostly ends with /v1")
        return value

    @field_validator("api_key")
    @classmethod
    def _fits_a_header(cls, value: SecretStr) -> SecretStr:
        key = value.get_secret_value().strip()
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ValueError("has characters that no key has; was it copied whole?")
        return SecretStr(key)

    @property
    def key(self) -> str:
        """Local servers mostly take any key, but the wire format has one."""
        return self.api_key.get_secret_value() or "none"

    @property
    def server(self) -> str:
        """For messages; the URL itself could hold a password."""
        url = urlsplit(self.base_url)
        return f"{url.hostname}:{url.port}" if url.port else str(url.hostname)

    @property
    def output_limit_parameter(self) -> str:
        """Newer models of OpenAI refuse the old name; other servers mostly know that one alone."""
        host = urlsplit(self.base_url).hostname or ""
        return "max_completion_tokens" if host == "api.openai.com" or host.endswith(".azure.com") else "max_tokens"

    def cost_usd(self, input_tokens: int, output_tokens: int) -> float | None:
        if self.price_input is None or self.price_output is None:
            return None
        return round((input_tokens * self.price_input + output_tokens * self.price_output) / 1_000_000, 8)


def load_settings(**overrides: Any) -> OpenAISettings:
    """Reads the environment; `overrides` win where they are not None. Raises UsageError, one line a mistake."""
    unknown = sorted(overrides.keys() - OpenAISettings.model_fields.keys())
    if unknown:
        raise UsageError(f"a model agent has no setting {', '.join(unknown)}")
    given = {name: value for name, value in overrides.items() if value is not None}
    # OPENAI_API_KEY goes with OPENAI_BASE_URL: it must not be sent to a server that only Corevo was told of
    elsewhere = "base_url" in given or os.environ.get(f"{PREFIX}BASE_URL")
    if elsewhere and "api_key" not in given and not os.environ.get(f"{PREFIX}API_KEY"):
        given["api_key"] = ""
    try:
        settings = OpenAISettings(**given)
    except ValidationError as error:
        raise UsageError("\n".join(_one_line(e) for e in error.errors())) from None
    missing = []
    if not settings.model:
        missing.append(f"{PREFIX}MODEL is not set: name the model that answers")
    if settings.base_url == OPENAI and settings.key == "none":
        missing.append(
            f"{PREFIX}API_KEY is not set, nor OPENAI_API_KEY: give the key, or another server as {PREFIX}BASE_URL"
        )
    if (settings.price_input is None) != (settings.price_output is None):
        missing.append(f"{PREFIX}PRICE_INPUT and {PREFIX}PRICE_OUTPUT belong together: set both or none")
    if missing:
        raise UsageError("\n".join(missing))
    return settings


def variable_of(field: str) -> str:
    """The environment variable of a field."""
    return PREFIX + field.upper()


def _one_line(error: Any) -> str:
    where = str(error["loc"][0]) if error["loc"] else "settings"
    name = where if where.isupper() else variable_of(where)
    shown = "" if "KEY" in name or "URL" in name else f"={error['input']}"
    return f"{name}{shown}: " + str(error["msg"]).removeprefix("Value error, ")
