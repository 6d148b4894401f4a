"""What the model is sent: the system prompt, as many turns as fit, and all of the newest."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from corevo import Message
from corevo.openai.settings import OpenAISettings

WireMessage = dict[str, Any]

#: Without the model's tokenizer: a token has about four bytes of English, three of Chinese and of code. Three is
#: on the safe side. Each message costs a few more for its frame.
BYTES_PER_TOKEN = 3
FRAME_TOKENS = 4


def estimate_tokens(text: str) -> int:
    return math.ceil(len(text.encode(errors="replace")) / BYTES_PER_TOKEN)


class Conversation:
    """`turns_dropped`: how many of the oldest the last request left out."""

    def __init__(self, messages: Iterable[Message], settings: OpenAISettings, tools: list[dict[str, Any]]) -> None:
        self.turns_dropped = 0
        self._tokens = settings.context_tokens
        self._characters = settings.context_characters
        self._system: list[WireMessage] = []
        if settings.system_prompt:
            self._system.append({"role": "system", "content": settings.system_prompt})
        self._tools_size = len(text := json.dumps(tools, ensure_ascii=False)), estimate_tokens(text) if tools else 0
        turns: list[list[WireMessage]] = []
        for message in messages:
            if message.role not in ("user", "assistant") or not (message.text or message.role == "user"):
                continue
            if message.role == "user" or not turns:
                turns.append([])
            turns[-1].append({"role": message.role, "content": message.text})
        self._newest = turns.pop() if turns else []  # grows by what this run adds
        self._older = [(turn, *_size(turn)) for turn in turns]

    def add(self, *messages: WireMessage) -> None:
        self._newest += messages

    def request(self) -> list[WireMessage]:
        """The messages of the next request. The newest turn is sent even if it alone is too long."""
        characters, tokens = _size([*self._system, *self._newest])
        if self._tools_size[1]:
            characters, tokens = characters + self._tools_size[0], tokens + self._tools_size[1]
        first = len(self._older)
        for _, more_characters, more_tokens in reversed(self._older):
            characters, tokens = characters + more_characters, tokens + more_tokens
            if tokens > self._tokens or (self._characters is not None and characters > self._characters):
                break
            first -= 1
        self.turns_dropped = first
        kept = [message for turn, _, _ in self._older[first:] for message in turn]
        return _alternating([*self._system, *kept, *self._newest])


def _size(messages: list[WireMessage]) -> tuple[int, int]:
    texts = [_text(message) for message in messages]
    return sum(map(len, texts)), sum(estimate_tokens(text) + FRAME_TOKENS for text in texts)


def _text(message: WireMessage) -> str:
    calls = json.dumps(message["tool_calls"], ensure_ascii=False) if "tool_calls" in message else ""
    return (message["content"] or "") + calls


def _alternating(messages: list[WireMessage]) -> list[WireMessage]:
    """Joins neighbours of one role: many servers refuse two user messages in a row, which a failed run leaves."""
    joined: list[WireMessage] = []
    for message in messages:
        last = joined[-1] if joined else None
        plain = message.keys() == {"role", "content"}
        if last is not None and plain and last.keys() == message.keys() and last["role"] == message["role"]:
            joined[-1] = {"role": last["role"], "content": f"{last['content']}\n\n{message['content']}"}
        else:
            joined.append(message)
    return joined
