"""Tools: plain async functions that a model may call. Type hints and docstring are what the model is told of them."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic_core import to_json

from corevo import Run
from corevo.errors import UsageError
from corevo.runtime.sanitize import clean_text, describe_error

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
PREFIX = "p_"
TIMEOUT_SECONDS = 60.0
#: What the model is told of one result.
RESULT_LIMIT_CHARACTERS = 50_000


class ToolFailed(Exception):
    """What the model is told instead of a result."""


@dataclass(frozen=True, eq=False)
class Tool:
    """One tool; still callable as the function it was made from. `run_parameter` gets the Run, not the model's word."""

    name: str
    description: str
    function: Callable[..., Awaitable[Any]]
    timeout_seconds: float
    arguments: type[BaseModel]
    run_parameter: str | None

    def __call__(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        return self.function(*args, **kwargs)

    @property
    def schema(self) -> dict[str, Any]:
        """As the wire format wants it."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.arguments.model_json_schema(),
        }
        return {"type": "function", "function": function}

    async def call(self, run: Run, arguments: str) -> str:
        """Calls it with the model's JSON. Whatever goes wrong is ToolFailed, but for a cancellation of the run."""
        try:
            given = self.arguments.model_validate_json(arguments or "{}")
        except ValidationError as error:
            raise ToolFailed("bad arguments: " + "; ".join(_complaint(e) for e in error.errors()[:10])) from None
        values = {field.removeprefix(PREFIX): getattr(given, field) for field in given.model_fields_set}
        if self.run_parameter is not None:
            values[self.run_parameter] = run
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        try:
            async with asyncio.timeout(self.timeout_seconds) as limit:
                result = await self.function(**values)
            text = result if isinstance(result, str) else to_json(result, fallback=str).decode()
        except TimeoutError as error:
            if limit.expired():
                raise ToolFailed(f"no result within {self.timeout_seconds:g} s") from None
            raise ToolFailed(describe_error(error)) from error
        except asyncio.CancelledError:
            if task.cancelling() > before:
                raise
            raise ToolFailed("the tool cancelled itself") from None
        except Exception as error:
            run.log.warning("a tool failed", tool=self.name, exc_info=error)
            raise ToolFailed(describe_error(error)) from error
        text = clean_text(text)
        if len(text) > RESULT_LIMIT_CHARACTERS:
            return text[:RESULT_LIMIT_CHARACTERS] + f"\n(cut: the result has {len(text)} characters)"
        return text


@overload
def tool(function: Callable[..., Awaitable[Any]], /) -> Tool: ...
@overload
def tool(
    *, name: str | None = None, timeout_seconds: float = TIMEOUT_SECONDS
) -> Callable[[Callable[..., Awaitable[Any]]], Tool]: ...
def tool(
    function: Callable[..., Awaitable[Any]] | None = None,
    /,
    *,
    name: str | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Tool | Callable[[Callable[..., Awaitable[Any]]], Tool]:
    """Makes a tool of an async function, as `@tool` or `@tool(name=…, timeout_seconds=…)`.

    Its docstring is its description, its parameters' annotations their types (`Annotated[str, Field(description=…)]`
    tells more). A parameter of type Run gets the run. What it returns goes to the model, as text or JSON; what it
    raises goes there too.
    """
    if function is None:
        return lambda given: _make(given, name, timeout_seconds)
    return _make(function, name, timeout_seconds)


def by_name(tools: Iterable[Tool | Callable[..., Awaitable[Any]]]) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    for given in tools:
        made = given if isinstance(given, Tool) else tool(given)
        if made.name in found:
            raise UsageError(f"two tools are called {made.name!r}; rename one")
        found[made.name] = made
    return found


def _make(function: Callable[..., Awaitable[Any]], given_name: str | None, timeout_seconds: float) -> Tool:
    name = str(given_name or getattr(function, "__name__", ""))
    if not TOOL_NAME.fullmatch(name):
        raise UsageError(f"tool name {name!r}: use 1 to 64 of a-z, A-Z, 0-9, - and _")
    if not inspect.iscoroutinefunction(function):
        raise UsageError(f"tool {name!r} must be an `async def`")
    description = inspect.getdoc(function)
    if not description:
        raise UsageError(f"tool {name!r} needs a docstring: it is what the model knows of it")
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:
        raise UsageError(f"tool {name!r}: its annotations cannot be read: {error}") from error
    run_parameter = None
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UsageError(f"tool {name!r}: {parameter} cannot be given by name")
        if parameter.name not in hints:
            raise UsageError(f"tool {name!r}: annotate its parameter {parameter.name!r}")
        if hints[parameter.name] is Run:
            run_parameter = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[_field(parameter.name)] = (hints[parameter.name], Field(default, alias=parameter.name))
    try:
        arguments = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
        made = Tool(name, description, function, timeout_seconds, arguments, run_parameter)
        made.schema  # noqa: B018 (a type that has no JSON schema shows here, not in a run)
    except (PydanticUserError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"tool {name!r}: {reason}") from error
    return made


def _field(parameter: str) -> str:
    """A name that clashes with nothing that a pydantic model has."""
    return PREFIX + parameter


def _complaint(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    return f"{where}: {error['msg']}" if where else str(error["msg"])
