"""One streamed answer of a model: its text as it comes, its tool calls put together, its end and what it used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import openai

from corevo.openai.failures import ModelFailed, explain
from corevo.openai.settings import PREFIX, OpenAISettings
from corevo.runtime.sanitize import clean_text

CALLS_LIMIT = 64
ARGUMENTS_LIMIT_CHARACTERS = 200_000


@dataclass(slots=True)
class Call:
    """A tool call, which arrives in pieces."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Answer:
    """What has arrived so far. `usage`: input and output tokens, when the server told."""

    text: str = ""
    calls: dict[int, Call] = field(default_factory=dict)
    finish_reason: str | None = None
    usage: tuple[int, int] | None = None
    chunks: int = 0
    thought: bool = False  # a reasoning model thinks aloud before it speaks

    @property
    def began(self) -> bool:
        return bool(self.text or self.calls or self.thought)

    def take(self, chunk: Any) -> tuple[str, bool]:
        """Adds a ChatCompletionChunk; returns its new text and whether there was anything in it at all.

        The SDK does not check what a server sends, so any other shape shows here, as a TypeError and the like.
        """
        self.chunks += 1
        alive = False
        if used := getattr(chunk, "usage", None):
            self.usage = int(used.prompt_tokens or 0), int(used.completion_tokens or 0)
            alive = True
        if not getattr(chunk, "choices", None):
            return "", alive
        choice = chunk.choices[0]
        if choice.finish_reason:
            self.finish_reason, alive = str(choice.finish_reason), True
        delta = choice.delta
        if delta is None:  # of some servers' last chunk
            return "", alive
        if getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None):
            self.thought = alive = True
        for piece in delta.tool_calls or ():
            self._take_call(piece)
            alive = True
        text = clean_text((delta.content or "") + (delta.refusal or ""))
        self.text += text
        return text, alive or bool(text)

    def _take_call(self, piece: Any) -> None:
        index = piece.index
        if index is None:  # some servers send whole calls, without a number
            index = len(self.calls)
        call = self.calls.setdefault(int(index), Call())
        call.id = call.id or str(piece.id or "")
        if piece.function is not None:
            call.name += piece.function.name or ""
            call.arguments += clean_text(piece.function.arguments or "")
        if len(self.calls) > CALLS_LIMIT or len(call.arguments) > ARGUMENTS_LIMIT_CHARACTERS:
            raise ModelFailed("model_bad_answer", "the model's tool calls are too many or too long")


async def listen(
    client: openai.AsyncOpenAI, request: dict[str, Any], answer: Answer, settings: OpenAISettings
) -> AsyncGenerator[str, None]:
    """Sends the request, fills `answer` and yields its text as it comes; "" is one sign of life before the first.

    Raises ModelFailed. The response is closed, and with it the connection, however this ends. The time-out counts the
    server's silence alone: neither what the caller does with the text, nor comments that keep a connection alive.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + settings.timeout_seconds
    try:
        async with asyncio.timeout_at(until):
            stream = await client.chat.completions.create(**request)
        async with stream:
            chunks = aiter(stream)
            while True:
                async with asyncio.timeout_at(until):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    break
                new = not answer.began
                text, alive = answer.take(chunk)
                if text or (new and answer.thought):
                    yield text
                if alive:
                    until = clock() + settings.timeout_seconds
    except TimeoutError:
        if answer.finish_reason is None:
            raise _silence(answer, settings) from None
    except (openai.OpenAIError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        if answer.finish_reason is None:
            raise explain(error, settings, began=answer.began) from None
    if answer.finish_reason is None:  # a stream that just stops is no answer
        raise _stop(answer, settings)


def _silence(answer: Answer, settings: OpenAISettings) -> ModelFailed:
    server, seconds = f"the model server {settings.server}", f"{settings.timeout_seconds:g} s"
    if answer.began:
        return ModelFailed("model_timeout", f"{server} fell silent for {seconds} in the middle of its answer")
    return ModelFailed("model_timeout", f"{server} did not begin to answer within {seconds}")


def _stop(answer: Answer, settings: OpenAISettings) -> ModelFailed:
    server = f"the model server {settings.server}"
    if answer.chunks == 0:
        return ModelFailed("model_bad_answer", f"{server} sent no stream of events; is {PREFIX}BASE_URL right?")
    return ModelFailed("model_broke_off", f"{server} broke off in the middle of its answer", again=True)
