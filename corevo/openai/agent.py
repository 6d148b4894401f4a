"""The agent: asks the model, runs the tools it calls, and asks again, until it has answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import httpx2
import openai

from corevo import Run, agent
from corevo.contracts import Lane
from corevo.openai.answer import Answer, Call, listen
from corevo.openai.conversation import FRAME_TOKENS, Conversation, WireMessage, estimate_tokens
from corevo.openai.failures import ModelFailed
from corevo.openai.settings import PREFIX, OpenAISettings, load_settings
from corevo.openai.tools import Tool, ToolFailed, by_name
from corevo.runtime.registry import REGISTRY, AgentFunction, Registry

CONNECT_SECONDS = 10.0
#: Requests for one answer, while nothing of it was said.
ATTEMPTS = 4
RETRY_SECONDS = (0.5, 8.0)
#: A cancelled run still tells what it used, if that is quick.
LAST_WORDS_SECONDS = 2.0


def build_agent(
    name: str | None = None,
    *,
    tools: Iterable[Tool | Callable[..., Awaitable[Any]]] = (),
    agent_timeout_seconds: float | None = None,
    lane: Lane = "normal",
    retry_safe: bool = False,
    max_attempts: int | None = None,
    registry: Registry = REGISTRY,
    **overrides: Any,
) -> AgentFunction:
    """Declares an agent on a model, with tools. Raises UsageError for a setting that is missing or wrong.

    `overrides` are settings that win over the environment: `build_agent("poet", model="…", system_prompt="…")`; among
    them `timeout_seconds`, the longest silence of the model. What bounds a run, `agent_timeout_seconds`, and what
    follows it are the options of `corevo.agent`.
    """
    settings = load_settings(name=name, **overrides)
    tools_by_name = by_name(tools)
    certificates = httpx2.create_ssl_context()  # read from files: here, never on the loop of a worker
    _client(settings, certificates).chat.completions.create  # noqa: B018 (the SDK imports its parts at first use)

    async def answer_with_model(run: Run) -> None:
        async with _client(settings, certificates) as client:
            await _Answering(run, client, settings, tools_by_name).run()

    return agent(
        settings.name,
        timeout_seconds=agent_timeout_seconds,
        lane=lane,
        retry_safe=retry_safe,
        max_attempts=max_attempts,
        registry=registry,
    )(answer_with_model)


def _client(settings: OpenAISettings, certificates: ssl.SSLContext) -> openai.AsyncOpenAI:
    """A client of one run: it dies with it, and so does every connection. Silence is measured in `listen`."""
    timeout = httpx2.Timeout(None, connect=min(CONNECT_SECONDS, settings.timeout_seconds))
    return openai.AsyncOpenAI(
        base_url=settings.base_url,
        api_key=settings.key,
        max_retries=0,
        timeout=timeout,
        http_client=openai.DefaultAsyncHttpxClient(verify=certificates, timeout=timeout),
    )


@dataclass(slots=True)
class _Usage:
    input_tokens: int = 0
    output_tokens: int = 0
    rounds: int = 0
    finish_reason: str | None = None
    estimated: bool = False

    def add(self, answer: Answer, request: list[WireMessage]) -> None:
        """Counts an answer, also one that broke off. What the server did not tell is estimated, and said to be."""
        if answer.usage is None and not answer.began:
            return
        self.rounds += 1
        self.finish_reason = answer.finish_reason
        if answer.usage is None:
            self.estimated = True
            said = answer.text + "".join(call.name + call.arguments for call in answer.calls.values())
            sent = json.dumps(request, ensure_ascii=False)
            answer.usage = estimate_tokens(sent) + FRAME_TOKENS, estimate_tokens(said)
        self.input_tokens += answer.usage[0]
        self.output_tokens += answer.usage[1]


class _Answering:
    """One run of the agent."""

    def __init__(self, run: Run, client: openai.AsyncOpenAI, settings: OpenAISettings, tools: dict[str, Tool]) -> None:
        self._run = run
        self._client = client
        self._settings = settings
        self._tools = tools
        self._schemas = [tool.schema for tool in tools.values()]
        self._conversation = Conversation(run.messages, settings, self._schemas)
        self._usage = _Usage()
        self._said = False  # anything
        self._spoke = False  # anything but spaces
        self._line_open = False
        self._ran_tools = False

    async def run(self) -> None:
        try:
            await self._rounds()
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_SECONDS):
                    await self._tell_usage()
            raise
        except Exception:
            await self._tell_usage()
            raise
        await self._tell_usage()

    async def _rounds(self) -> None:
        for _ in range(self._settings.max_tool_rounds):
            answer = await self._ask()
            if not answer.calls:
                return await self._judge(answer)
            await self._run_tools(answer)
        answer = await self._ask()
        if answer.calls:
            limit = self._settings.max_tool_rounds
            raise ModelFailed(
                "tool_rounds", f"the model still called tools after {limit} rounds ({PREFIX}MAX_TOOL_ROUNDS)"
            )
        return await self._judge(answer)

    async def _judge(self, answer: Answer) -> None:
        """Whether an answer without tool calls is one."""
        if answer.finish_reason == "length":
            if not self._spoke:
                raise ModelFailed(
                    "model_empty", f"the model used up its output limit ({PREFIX}MAX_OUTPUT_TOKENS) before it spoke"
                )
            await self._run.status("the answer is cut off: the model reached its output limit")
        elif answer.finish_reason == "content_filter":
            if not self._spoke:
                raise ModelFailed("model_filtered", "the model's content filter held the answer back")
            await self._run.status("the answer is cut off by the model's content filter")
        elif not self._spoke:
            raise ModelFailed("model_empty", "the model answered nothing")

    # ── asking ────────────────────────────────────────────────────────────────────────────────────────

    async def _ask(self) -> Answer:
        """One answer. Asks again only while nothing was said and no tool ran: what a person saw is never redone."""
        delay = RETRY_SECONDS[0]
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._ask_once()
            except ModelFailed as failure:
                wait = random.uniform(0.5, 1.0) * delay + (failure.wait_seconds or 0.0)
                final = attempt == ATTEMPTS or not failure.again or self._said or self._ran_tools
                if final or wait >= self._run.deadline:
                    raise
                self._run.log.info("asking the model again", code=failure.code, why=failure.detail, seconds=wait)
                if wait >= 1:
                    await self._run.status(f"the model is busy; trying again in {math.ceil(wait)} s")
                await asyncio.sleep(wait)
                delay = min(delay * 2, RETRY_SECONDS[1])
        raise AssertionError("unreachable")

    async def _ask_once(self) -> Answer:
        answer = Answer()
        spoke = False
        messages = self._conversation.request()
        pieces = listen(self._client, self._request(messages), answer, self._settings)
        try:
            async with contextlib.aclosing(pieces):
                async for text in pieces:
                    if text:
                        await self._say(text, new_paragraph=not spoke)
                        spoke = True
                    else:
                        await self._run.status("thinking")
        finally:
            self._usage.add(answer, messages)
        return answer

    def _request(self, messages: list[WireMessage]) -> dict[str, Any]:
        settings = self._settings
        request: dict[str, Any] = {
            "model": settings.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if settings.max_output_tokens is not None:
            request[settings.output_limit_parameter] = settings.max_output_tokens
        if settings.temperature is not None:
            request["temperature"] = settings.temperature
        if self._schemas:
            request["tools"] = self._schemas
        return request

    async def _say(self, text: str, *, new_paragraph: bool) -> None:
        if new_paragraph and self._line_open:
            text = "\n\n" + text  # what it said before a tool call is a paragraph of its own
        self._said = True
        self._spoke = self._spoke or not text.isspace()
        self._line_open = not text.endswith("\n")
        await self._run.say(text)

    async def _tell_usage(self) -> None:
        usage, settings = self._usage, self._settings
        if usage.rounds == 0:
            return
        await self._run.usage(
            settings.model,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cost_usd=settings.cost_usd(usage.input_tokens, usage.output_tokens),
            rounds=usage.rounds,
            finish_reason=usage.finish_reason,
            estimated=usage.estimated or None,
            turns_dropped=self._conversation.turns_dropped or None,
        )

    # ── tools ─────────────────────────────────────────────────────────────────────────────────────────

    async def _run_tools(self, answer: Answer) -> None:
        """Runs the calls of one answer side by side, and adds them and their results to the conversation."""
        self._ran_tools = True
        calls = [call for _, call in sorted(answer.calls.items())]
        for number, call in enumerate(calls, 1):
            if not call.id or any(call.id == other.id for other in calls[: number - 1]):
                call.id = f"call_{self._usage.rounds}_{number}"
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._run_tool(call)) for call in calls]
        asked: WireMessage = {
            "role": "assistant",
            "content": answer.text or None,
            "tool_calls": [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments if _parsed(call) else "{}"},
                }
                for call in calls
            ],
        }
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": task.result()}
            for call, task in zip(calls, tasks, strict=True)
        ]
        self._conversation.add(asked, *results)

    async def _run_tool(self, call: Call) -> str:
        """Returns what the model is told: the result, or what went wrong."""
        arguments = _parsed(call)
        await self._run.tool_started(call.name, call.id, call.arguments if arguments is None else arguments)
        try:
            found = self._tools.get(call.name)
            if found is None:
                raise ToolFailed(f"there is no tool {call.name!r}; there are: {', '.join(self._tools) or 'none'}")
            result = await found.call(self._run, call.arguments)
        except ToolFailed as failure:
            await self._run.tool_finished(call.name, call.id, error=str(failure))
            return f"error: {failure}"
        await self._run.tool_finished(call.name, call.id, result=result)
        return result


def _parsed(call: Call) -> dict[str, Any] | None:
    """The arguments, if they are an object: a server may refuse a history with others in it."""
    try:
        value = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
