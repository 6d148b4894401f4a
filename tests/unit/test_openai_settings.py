"""The settings and the tools of a model agent: what is wrong is one line when it is built, never a failing run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from corevo import Run
from corevo.errors import UsageError
from corevo.openai import build_agent, tool
from corevo.openai.settings import load_settings, variable_of
from corevo.runtime.registry import Registry
from tests.processes import ROOT

KEY = "sk-test-0123456789abcdef"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("COREVO_OPENAI_", "OPENAI_")):
            monkeypatch.delenv(name)


def test_the_key_and_the_server_may_have_the_names_that_every_client_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://models.example/v1")
    settings = load_settings(model="m")
    assert (settings.key, settings.base_url, settings.server) == (KEY, "http://models.example/v1", "models.example")
    monkeypatch.setenv("COREVO_OPENAI_API_KEY", "sk-ours\n")
    monkeypatch.setenv("COREVO_OPENAI_BASE_URL", "http://127.0.0.1:8080/v1")
    settings = load_settings(model="m")
    assert (settings.key, settings.server) == ("sk-ours", "127.0.0.1:8080")


def test_other_variables_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("API_KEY", "BASE_URL", "MODEL", "NAME", "SYSTEM_PROMPT"):
        monkeypatch.setenv(name, "http://wrong.example")
    monkeypatch.setenv("COREVO_OPENAI_MODEL", "m")
    monkeypatch.setenv("COREVO_OPENAI_API_KEY", KEY)
    monkeypatch.setenv("COREVO_OPENAI_TEMPERATURE", "")
    settings = load_settings()
    assert (settings.key, settings.model, settings.name, settings.temperature) == (KEY, "m", "assistant", None)
    assert settings.base_url == "https://api.openai.com/v1"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"MODEL": ""}, "COREVO_OPENAI_MODEL is not set"),
        ({"API_KEY": ""}, "COREVO_OPENAI_API_KEY is not set, nor OPENAI_API_KEY"),
        ({"API_KEY": "sk-\u00e9secret"}, "COREVO_OPENAI_API_KEY: has characters that no key has"),
        ({"BASE_URL": "models.example/v1"}, "COREVO_OPENAI_BASE_URL: must begin with http"),
        ({"CONTEXT_TOKENS": "many"}, "COREVO_OPENAI_CONTEXT_TOKENS=many: "),
        ({"TEMPERATURE": "3"}, "COREVO_OPENAI_TEMPERATURE=3: "),
        ({"TIMEOUT_SECONDS": "0"}, "COREVO_OPENAI_TIMEOUT_SECONDS=0: "),
        ({"PRICE_INPUT": "1"}, "COREVO_OPENAI_PRICE_INPUT and COREVO_OPENAI_PRICE_OUTPUT belong together"),
        ({"NAME": "No Name"}, "agent name 'No Name'"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, given: dict[str, str], words: str) -> None:
    for name, value in ({"MODEL": "m", "API_KEY": KEY} | given).items():
        monkeypatch.setenv("COREVO_OPENAI_" + name, value)
    with pytest.raises(UsageError) as raised:
        build_agent(registry=Registry())
    assert words in raised.value.detail and "\n" not in raised.value.detail
    assert "secret" not in raised.value.detail and KEY not in raised.value.detail


def test_the_command_line_says_it_in_one_line_too() -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("COREVO_", "OPENAI_"))}
    environment |= {"DATABASE_URL": "postgresql://nowhere.invalid/x", "COREVO_OPENAI_API_KEY": KEY}
    command = [sys.executable, "-m", "corevo", "worker", "corevo.agents.openai"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: COREVO_OPENAI_MODEL is not set: name the model that answers\n"


def test_a_missing_sdk_is_said_with_its_remedy() -> None:
    program = "import sys; sys.modules['openai'] = None; from corevo.runtime.registry import load; load(sys.argv[1])"
    command = [sys.executable, "-c", program, "corevo.agents.openai"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "UsageError: this agent needs the OpenAI SDK: pip install 'corevo[openai]'" in done.stderr


def test_a_local_server_needs_no_key() -> None:
    assert load_settings(model="m", base_url="http://localhost:11434/v1").key == "none"


def test_a_misspelt_override_is_refused() -> None:
    with pytest.raises(UsageError, match="no setting modle"):
        build_agent("poet", modle="m", registry=Registry())


def test_newer_and_other_servers_get_the_output_limit_under_their_name() -> None:
    def name(url: str) -> str:
        return load_settings(model="m", api_key=KEY, base_url=url).output_limit_parameter

    assert name("https://api.openai.com/v1") == name("https://x.openai.azure.com/openai/v1") == "max_completion_tokens"
    assert name("http://localhost:8080/v1") == "max_tokens"


def test_secrets_are_not_shown() -> None:
    assert KEY not in repr(load_settings(model="m", api_key=KEY))
    assert variable_of("api_key") == "COREVO_OPENAI_API_KEY"


# ── tools ─────────────────────────────────────────────────────────────────────────────────────────────


class Place(BaseModel):
    city: str
    country: str = "cn"


async def test_a_schema_says_what_the_hints_and_the_docstring_say() -> None:
    @tool
    async def find(
        run: Run,
        place: Place,
        copy: Annotated[int, Field(description="how many", ge=1)],
        unit: Literal["km", "mi"] = "km",
        tags: list[str] | None = None,
    ) -> str:
        """Find things.

        Near a place.
        """
        assert isinstance(place, Place)
        return f"{run} {place.city} {copy} {unit} {tags}"

    function = find.schema["function"]
    assert (function["name"], function["description"]) == ("find", "Find things.\n\nNear a place.")
    parameters = function["parameters"]
    assert list(parameters["properties"]) == ["place", "copy", "unit", "tags"]
    assert parameters["required"] == ["place", "copy"] and parameters["additionalProperties"] is False
    assert parameters["properties"]["copy"]["description"] == "how many"
    assert parameters["properties"]["unit"]["enum"] == ["km", "mi"]
    json.dumps(find.schema)
    run: Any = "RUN"
    assert await find.call(run, '{"place": {"city": "Chengdu"}, "copy": "2"}') == "RUN Chengdu 2 km None"
    assert await find(run, Place(city="A"), 1) == "RUN A 1 km None"


def plain() -> str:
    """Not async."""
    return ""


async def undocumented(x: int) -> int:
    return x


async def unannotated(x) -> int:  # type: ignore[no-untyped-def]
    """Has no hint."""
    return int(x)


async def variadic(*x: int) -> int:
    """Takes any number."""
    return len(x)


async def strange(x: Callable[[], Awaitable[None]], y: object = None, z: "Registry" = Registry()) -> None:  # noqa: B008, UP037
    """Takes what JSON cannot hold."""


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (plain, "must be an `async def`"),
        (undocumented, "needs a docstring"),
        (unannotated, "annotate its parameter 'x'"),
        (variadic, "cannot be given by name"),
        (strange, "tool 'strange': "),
    ],
)
def test_a_function_that_is_no_tool_is_refused_in_one_line(function: Any, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        tool(function)
    assert words in raised.value.detail and "\n" not in raised.value.detail


def test_names_of_tools_are_checked() -> None:
    async def one() -> None:
        """Does."""

    with pytest.raises(UsageError, match="tool name 'a b'"):
        tool(name="a b")(one)
    with pytest.raises(UsageError, match="two tools are called 'one'"):
        build_agent("x", model="m", api_key=KEY, tools=[one, tool(one)], registry=Registry())


def test_the_key_of_openai_is_not_sent_to_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("COREVO_OPENAI_MODEL", "m")
    assert load_settings(base_url="http://127.0.0.1:8080/v1").key == "none"
    monkeypatch.setenv("COREVO_OPENAI_BASE_URL", "http://127.0.0.1:8080/v1")
    assert load_settings().key == "none"
    monkeypatch.setenv("COREVO_OPENAI_API_KEY", "sk-ours")
    assert load_settings().key == "sk-ours"
    monkeypatch.delenv("COREVO_OPENAI_API_KEY")
    monkeypatch.delenv("COREVO_OPENAI_BASE_URL")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://models.example/v1")
    assert load_settings().key == KEY
