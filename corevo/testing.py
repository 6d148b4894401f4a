"""For agent authors: runs an agent in memory, without a database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import uuid4

from corevo.contracts import AcceptedCommand, AccountId, CommandId, ExecutionId, JobId, Message, ThreadId
from corevo.errors import AgentFailed
from corevo.runtime.call import BadAgent, call_agent
from corevo.runtime.mailbox import Mailbox
from corevo.runtime.registry import AgentFunction
from corevo.runtime.run import Run
from corevo.runtime.sanitize import describe_error, describe_failure

__all__ = ["Result", "run"]


@dataclass
class Result:
    """What a run produced: its events as (type, data), its text, and how it ended."""

    outcome: Literal["completed", "failed", "timed_out"]
    events: list[tuple[str, Any]] = field(default_factory=list)
    text: str = ""
    error: str | None = None
    code: str | None = None  # of what went wrong: what the job's `error.code` would be


class _Memory:
    """Output in memory; answers each question with the next of `answers`, as a person would."""

    def __init__(self, result: Result, mailbox: Mailbox, answers: list[str]) -> None:
        self._result = result
        self._mailbox = mailbox
        self._answers = answers

    async def text(self, text: str) -> None:
        self._result.events.append(("text.delta", {"text": text, "at": len(self._result.text)}))
        self._result.text += text

    async def event(self, type: str, data: str) -> None:
        self._result.events.append((type, json.loads(data)))
        if type == "input.requested" and self._answers:
            payload = {"question_id": json.loads(data)["question_id"], "answer": self._answers.pop(0)}
            await self._mailbox.deliver(_command("answer", payload))


def _command(kind: Literal["input", "answer"], payload: Any) -> AcceptedCommand:
    return AcceptedCommand(CommandId(uuid4()), ExecutionId(uuid4()), kind, payload)


async def _settle(command_id: CommandId, state: str) -> str:
    return state


async def run(
    agent: AgentFunction,
    input: Any,
    *,
    history: Sequence[Message] = (),
    metadata: Mapping[str, Any] | None = None,
    inputs: Sequence[str] = (),
    answers: Sequence[str] = (),
    timeout_seconds: float = 30.0,
) -> Result:
    """Runs `agent` on a message (or any JSON input) and returns what came of it; never raises what the agent raised.

    `history`: earlier messages of the thread, oldest first. `inputs`: what `run.inputs()` gets; `answers`: what each
    `run.ask` gets, in order.
    """
    text = input if isinstance(input, str) else json.dumps(input, ensure_ascii=False)
    result = Result("completed")
    mailbox = Mailbox(_settle)
    for sentence in inputs:
        await mailbox.deliver(_command("input", {"text": sentence}))
    given = Run(
        job_id=JobId(uuid4()),
        execution_id=ExecutionId(uuid4()),
        thread_id=ThreadId(uuid4()),
        account_id=AccountId(uuid4()),
        agent=getattr(agent, "__name__", "agent"),
        messages=[*history, Message("user", text)],
        input=input,
        metadata=metadata,
        attempt=1,
        remaining_seconds=timeout_seconds,
        output=_Memory(result, mailbox, list(answers)),
        mailbox=mailbox,
    )
    try:
        async with asyncio.timeout(timeout_seconds):
            await call_agent(agent, given)
    except TimeoutError as error:
        if given.deadline == 0:
            result.outcome, result.code = "timed_out", "deadline"
        else:
            result.outcome, result.code, result.error = "failed", "agent_error", describe_error(error)
    except AgentFailed as error:
        result.outcome, (result.code, result.error) = "failed", describe_failure(error)
    except BadAgent as error:
        result.outcome, result.code, result.error = "failed", "bad_agent", str(error)
    except Exception as error:
        result.outcome, result.code, result.error = "failed", "agent_error", describe_error(error)
    return result
