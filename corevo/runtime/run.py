"""The run: what an agent is given."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

import structlog

from corevo import clock
from corevo.contracts import AccountId, ExecutionId, JobId, Message, ThreadId
from corevo.runtime.mailbox import Mailbox
from corevo.runtime.sanitize import brief, clean_text, encode

#: Custom event names: at least one dot, and none of the names that Corevo gives.
CUSTOM_EVENT = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+")
RESERVED_PREFIXES = ("run.", "text.", "tool.", "input.", "child.")


class Output(Protocol):
    """Where a run's events go. `event` data is one line of JSON. Both wait while too much is unsent."""

    async def text(self, text: str) -> None: ...

    async def event(self, type: str, data: str) -> None: ...


class Run:
    """One execution of an agent.

    messages: the thread so far, oldest first, ending with the new one.
    input: what was submitted, a text or any JSON value; metadata: what the client added to it.
    log: a structlog logger that names the job.
    """

    def __init__(
        self,
        *,
        job_id: JobId,
        execution_id: ExecutionId,
        thread_id: ThreadId,
        account_id: AccountId,
        agent: str,
        messages: list[Message],
        input: Any,
        metadata: Mapping[str, Any] | None,
        attempt: int,
        remaining_seconds: float,
        output: Output,
        mailbox: Mailbox,
    ) -> None:
        self.job_id = job_id
        self.execution_id = execution_id
        self.thread_id = thread_id
        self.account_id = account_id
        self.agent = agent
        self.messages = messages
        self.input = input
        self.metadata: Mapping[str, Any] = metadata or {}
        self.attempt = attempt
        self.log = structlog.get_logger("corevo.agent").bind(job_id=str(job_id), agent=agent)
        self._ends_at = clock.seconds() + remaining_seconds
        self._output = output
        self._mailbox = mailbox
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether this run was told to stop. The agent's task is cancelled at the same moment."""
        return self._cancelled

    @property
    def deadline(self) -> float:
        """Seconds left until this run is ended as `timed_out`; never below 0."""
        return max(0.0, self._ends_at - clock.seconds())

    async def say(self, text: str) -> None:
        """Adds text to the answer: event `text.delta`. Waits while the database is slower than the agent."""
        if not isinstance(text, str):
            raise TypeError(f"run.say takes a str, not {type(text).__name__}")
        if text:
            await self._output.text(clean_text(text))

    async def status(self, text: str) -> None:
        """Says what the run is doing, beside the answer: event `status`."""
        if not isinstance(text, str):
            raise TypeError(f"run.status takes a str, not {type(text).__name__}")
        await self._output.event("status", encode({"text": text}))

    async def emit(self, type: str, data: Mapping[str, Any] | None = None) -> None:
        """Emits an event of a name of your own, with a dot in it (`search.hit`), and up to 64 KiB of JSON data.

        Raises ValueError for a name that is not allowed, and for data that is too large.
        """
        if not CUSTOM_EVENT.fullmatch(str(type)) or len(type) > 100:
            raise ValueError(f"event name {type!r}: lower-case words joined by dots, such as search.hit")
        if type.startswith(RESERVED_PREFIXES):
            raise ValueError(f"event name {type!r}: {type.partition('.')[0]}.* is Corevo's own")
        await self._output.event(type, encode(dict(data or {})))

    async def inputs(self) -> AsyncIterator[str]:
        """Sentences that people add while the run goes on, each exactly once; waits for the next one without end.

        What the run has not taken when it ends is returned to whoever sent it.
        """
        while True:
            command_id, text = await self._mailbox.next_input()
            try:
                await self._output.event("input.accepted", encode({"command_id": str(command_id), "text": brief(text)}))
            except BaseException:
                self._mailbox.put_back(command_id, text)
                raise
            yield text

    async def ask(
        self, question: str, choices: Sequence[str] | None = None, *, timeout_seconds: float | None = None
    ) -> str:
        """Asks a person, and waits for the answer: event `input.requested {question_id, question, choices?}`.

        With `choices` only one of them is taken. Raises TimeoutError after `timeout_seconds`, or when nobody answered
        before the run's deadline.
        """
        if not str(question).strip():
            raise ValueError("run.ask takes a question")
        given = None if choices is None else [clean_text(str(choice)) for choice in choices]
        question_id, asked = self._mailbox.open_question(given)
        data: dict[str, Any] = {"question_id": question_id, "question": question}
        if given is not None:
            data["choices"] = given
        try:
            await self._output.event("input.requested", encode(data))
            async with asyncio.timeout(timeout_seconds):
                command_id, answer = await self._mailbox.take_answer(asked)
        finally:
            self._mailbox.close_question(question_id)
        accepted = {"command_id": str(command_id), "question_id": question_id, "answer": brief(answer)}
        await self._output.event("input.accepted", encode(accepted))
        return answer

    async def tool_started(self, name: str, call_id: str, arguments: Any) -> None:
        """Tells that a tool was called: event `tool.started`. Long arguments are cut."""
        await self._output.event("tool.started", encode(_tool(name, call_id) | {"arguments": brief(arguments)}))

    async def tool_finished(self, name: str, call_id: str, *, result: Any = None, error: str | None = None) -> None:
        """Tells what came of it: event `tool.finished`, `ok` unless there is an error. A long result is cut."""
        outcome = {"ok": True, "result": brief(result)} if error is None else {"ok": False, "error": brief(error)}
        await self._output.event("tool.finished", encode(_tool(name, call_id) | outcome))

    async def usage(
        self, model: str, *, input_tokens: int, output_tokens: int, cost_usd: float | None = None, **details: Any
    ) -> None:
        """Tells what a model used: event `usage`. `details` are further small fields of it."""
        data = {"model": model, "input_tokens": input_tokens, "output_tokens": output_tokens, "cost_usd": cost_usd}
        await self._output.event("usage", encode({k: v for k, v in (data | details).items() if v is not None}))

    def _cancel(self) -> None:
        self._cancelled = True


def _tool(name: str, call_id: str) -> dict[str, Any]:
    return {"name": str(name)[:100], "call_id": str(call_id)[:100]}
