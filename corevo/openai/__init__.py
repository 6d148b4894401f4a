"""Agents on models that speak the OpenAI wire format, with tools that are plain async functions.

    from corevo.openai import build_agent, tool

    @tool
    async def weather(city: str) -> str:
        "The weather in a city, now."
        ...

    assistant = build_agent("assistant", tools=[weather])

Needs the extra `corevo[openai]`.
"""

from __future__ import annotations

from corevo.errors import UsageError

try:
    import openai as _sdk  # noqa: F401 (only whether it is there)
except ModuleNotFoundError as error:
    if error.name != "openai":
        raise
    raise UsageError("this agent needs the OpenAI SDK: pip install 'corevo[openai]'") from None

from corevo.openai.agent import build_agent
from corevo.openai.tools import Tool, tool

__all__ = ["Tool", "build_agent", "tool"]
