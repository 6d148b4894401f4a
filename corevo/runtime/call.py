"""Calls an agent, whatever its form: a coroutine, an async generator of strings, or a returned string."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

from corevo.runtime.registry import AgentFunction
from corevo.runtime.run import Run


class BadAgent(Exception):
    """The agent returned or yielded something that is no text."""


async def call_agent(function: AgentFunction, run: Run) -> None:
    """Runs the agent to its end. Raises what it raises, and BadAgent."""
    result: Any = function(run)
    if inspect.isasyncgen(result):
        async with contextlib.aclosing(result) as pieces:
            async for piece in pieces:
                if not isinstance(piece, str):
                    raise BadAgent(f"an agent yields strings; this one yielded {type(piece).__name__}")
                await run.say(piece)
        return
    value = await result
    if isinstance(value, str):
        await run.say(value)
    elif value is not None:
        raise BadAgent(f"an agent returns a string or nothing; this one returned {type(value).__name__}")
