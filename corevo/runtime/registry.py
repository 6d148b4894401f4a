"""Agents: the decorator that declares one, and the loader that finds them by module or file."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from corevo.contracts import LANES, AgentSpec, Lane
from corevo.errors import UsageError

if TYPE_CHECKING:
    from corevo.runtime.run import Run

AgentFunction = Callable[["Run"], Coroutine[Any, Any, str | None] | AsyncIterator[str]]
F = TypeVar("F", bound=Callable[..., Any])

NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True)
class Agent:
    """A registered agent. `timeout_seconds` None: the setting COREVO_AGENT_TIMEOUT_SECONDS decides."""

    name: str
    function: AgentFunction
    lane: Lane
    timeout_seconds: float | None
    retry_safe: bool
    max_attempts: int

    def spec(self, default_timeout_seconds: float) -> AgentSpec:
        return AgentSpec(
            name=self.name,
            lane=self.lane,
            timeout_seconds=self.timeout_seconds or default_timeout_seconds,
            retry_safe=self.retry_safe,
            max_attempts=self.max_attempts,
        )


class Registry:
    """Agents by name. A process has one; tests make their own."""

    def __init__(self) -> None:
        self.agents: dict[str, Agent] = {}

    def add(self, agent: Agent) -> None:
        before = self.agents.get(agent.name)
        if before is not None and before.function is not agent.function:
            raise UsageError(
                f"two agents are called {agent.name!r}: {_where(before.function)} and {_where(agent.function)}; "
                "rename one"
            )
        self.agents[agent.name] = agent


REGISTRY = Registry()


def agent(
    name: str,
    *,
    timeout_seconds: float | None = None,
    lane: Lane = "normal",
    retry_safe: bool = False,
    max_attempts: int | None = None,
    registry: Registry = REGISTRY,
) -> Callable[[F], F]:
    """Declares an async function or async generator as an agent.

    timeout_seconds: the longest a run may take; then it ends as `timed_out`.
    lane: `normal`, or `heavy` for the worker's few heavy places.
    retry_safe: a failed or lost run may be done again from its start, up to max_attempts runs in all (default 3).
        Without it nothing is ever run twice, because what the first run did outside cannot be taken back.
    """
    if not NAME.fullmatch(str(name)):
        raise UsageError(f"agent name {name!r}: use 1 to 63 of a-z, 0-9, - and _, beginning with a letter")
    if lane not in LANES:
        raise UsageError(f"agent {name!r}: lane must be one of {', '.join(LANES)}, not {lane!r}")
    if timeout_seconds is not None and not 0 < timeout_seconds <= 86_400:
        raise UsageError(f"agent {name!r}: timeout_seconds must lie between 0 and 86400")
    attempts = max_attempts if max_attempts is not None else (3 if retry_safe else 1)
    if not 1 <= attempts <= 100 or (attempts > 1 and not retry_safe):
        raise UsageError(f"agent {name!r}: max_attempts above 1 needs retry_safe=True, and is at most 100")

    def declare(function: F) -> F:
        if not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)):
            raise UsageError(f"agent {name!r} must be an `async def`: {_where(function)}")
        registry.add(Agent(name, function, lane, timeout_seconds, retry_safe, attempts))
        return function

    return declare


def load(app: str, registry: Registry = REGISTRY) -> dict[str, Agent]:
    """Imports APP (`package.module`, `path/to/file.py`, either with `:name`) and returns its agents by name."""
    target, _, only = app.partition(":")
    if not target:
        raise UsageError("APP is empty; give a module (package.module) or a file (path/to/file.py)")
    try:
        if target.endswith(".py") or "/" in target:
            _import_file(target)
        else:
            if "" not in sys.path and str(Path.cwd()) not in sys.path:
                sys.path.insert(0, str(Path.cwd()))
            importlib.import_module(target)
    except UsageError:
        raise
    except ModuleNotFoundError as error:
        hint = "" if error.name == target.partition(".")[0] or error.name == target else f" (imported by {target})"
        raise UsageError(f"no module named {error.name!r}{hint}; APP is package.module or path/to/file.py") from error
    except FileNotFoundError as error:
        raise UsageError(f"no such file: {target}") from error
    except Exception as error:
        raise UsageError(f"importing {target} failed: {type(error).__name__}: {error}") from error
    agents = dict(registry.agents)
    if not agents:
        raise UsageError(f'{target} registers no agent; decorate an async function with @agent("name")')
    if only:
        if only not in agents:
            raise UsageError(f"{target} has no agent {only!r}; it has: {', '.join(sorted(agents))}")
        agents = {only: agents[only]}
    return agents


def _import_file(target: str) -> None:
    path = Path(target).resolve()
    if not path.is_file():
        raise FileNotFoundError(path)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = path.stem
    present = sys.modules.get(name)
    if present is not None and getattr(present, "__file__", None) == str(path):
        return
    if present is not None:
        name = f"corevo_app_{path.stem}"  # the file's name is taken by another module
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{target} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _where(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)
