"""Corevo runs LLM agents for real users on many processes, with Postgres as the only shared store.

Agent authors import from here alone: `from corevo import Run, agent`.
"""

from corevo.contracts import Message
from corevo.errors import AgentFailed
from corevo.runtime.registry import agent
from corevo.runtime.run import Run

__all__ = ["AgentFailed", "Message", "Run", "__version__", "agent"]
__version__ = "0.4.0"
