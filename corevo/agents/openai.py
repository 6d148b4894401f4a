"""The model agent: answers with any model behind an OpenAI-compatible server. Settings: COREVO_OPENAI_…

`corevo dev corevo.agents.openai` serves it as it is. For tools, or several agents, build your own from corevo.openai.
"""

from __future__ import annotations

from corevo.openai import build_agent

assistant = build_agent()
