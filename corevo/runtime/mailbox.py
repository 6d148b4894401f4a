"""Commands on their way into one run: accepted before they get here, settled when the run takes them."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from typing import Protocol
from uuid import uuid4

from corevo.contracts import AcceptedCommand, CommandId
from corevo.errors import Unavailable

RETRY_SECONDS = (0.1, 2.0)


class Settle(Protocol):
    """Settles a command as done or returned; returns the state it has then. Raises Stale, Unavailable."""

    async def __call__(self, command_id: CommandId, state: str) -> str: ...


class Question:
    """One open question of a run."""

    def __init__(self, choices: Sequence[str] | None) -> None:
        self.choices = None if choices is None else tuple(choices)
        self.answer: asyncio.Future[tuple[CommandId, str]] = asyncio.get_running_loop().create_future()


class Mailbox:
    """Inputs in order, and answers by question. Everything in it is accepted; nothing is taken until it is settled."""

    def __init__(self, settle: Settle) -> None:
        self._settle = settle
        self._seen: set[CommandId] = set()
        self._inputs: deque[tuple[CommandId, str]] = deque()
        self._taken: deque[tuple[CommandId, str]] = deque()  # settled, but whoever took it was cancelled
        self._taking = asyncio.Lock()
        self._arrived = asyncio.Event()
        self._questions: dict[str, Question] = {}

    async def deliver(self, command: AcceptedCommand) -> None:
        """Takes a command once, however often it is read. What cannot be taken is returned to its sender."""
        if command.command_id in self._seen:
            return
        self._seen.add(command.command_id)
        payload = command.payload if isinstance(command.payload, dict) else {}
        if command.kind == "input":
            self._inputs.append((command.command_id, str(payload.get("text", ""))))
            self._arrived.set()
            return
        question = self._questions.get(str(payload.get("question_id")))
        answer = payload.get("answer")
        fits = question is not None and isinstance(answer, str) and (not question.choices or answer in question.choices)
        if question is None or question.answer.done() or not fits:
            await self._surely(command.command_id, "returned")
        else:
            question.answer.set_result((command.command_id, str(answer)))

    async def next_input(self) -> tuple[CommandId, str]:
        """Waits for the next input and takes it: from here on it is done, and nobody gets it again."""
        async with self._taking:  # two consumers of one run share what comes, each input once
            while True:
                if self._taken:
                    return self._taken.popleft()
                while not self._inputs:
                    self._arrived.clear()
                    await self._arrived.wait()
                command_id, text = self._inputs[0]  # stays there should we be cancelled: settling is asked again then
                state = await self._surely(command_id, "done")
                self._inputs.popleft()
                if state == "done":
                    return command_id, text

    def put_back(self, command_id: CommandId, text: str) -> None:
        """For a consumer that was cancelled before it had it: the next one gets it."""
        self._taken.append((command_id, text))
        self._arrived.set()

    def open_question(self, choices: Sequence[str] | None) -> tuple[str, Question]:
        question_id = uuid4().hex
        question = self._questions[question_id] = Question(choices)
        return question_id, question

    async def take_answer(self, question: Question) -> tuple[CommandId, str]:
        """Waits for the answer and takes it."""
        command_id, answer = await asyncio.shield(question.answer)
        await self._surely(command_id, "done")
        return command_id, answer

    def close_question(self, question_id: str) -> None:
        question = self._questions.pop(question_id, None)
        if question is not None:
            question.answer.cancel()

    async def _surely(self, command_id: CommandId, state: str) -> str:
        """Settling can be repeated: asked again it answers the same."""
        delay = RETRY_SECONDS[0]
        while True:
            try:
                return await self._settle(command_id, state)
            except Unavailable:
                await asyncio.sleep(random.uniform(0.5, 1.0) * delay)
                delay = min(delay * 2, RETRY_SECONDS[1])
