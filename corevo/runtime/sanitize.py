"""Makes anything an agent produces storable: values, texts and the words of its errors.

Postgres refuses NUL in text and lone surrogates in JSON; JSON has no NaN. What cannot be stored is replaced, never
a reason to lose the rest; what is too large is refused with an error to the agent.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from corevo.errors import AgentFailed

EVENT_LIMIT_BYTES = 65_536
ERROR_LIMIT_CHARACTERS = 2_000
BRIEF_LIMIT_CHARACTERS = 4_000
DEPTH_LIMIT = 32
INTEGER_LIMIT = 10**300

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
REPLACEMENT = "\ufffd"


def clean_text(text: str) -> str:
    """The same text with NUL and lone surrogates replaced by U+FFFD."""
    return UNSTORABLE.sub(REPLACEMENT, text)


def clean_value(value: Any, depth: int = 0) -> Any:
    """A value that JSON and Postgres can hold: unknown objects become their repr, NaN and infinities null."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean_text(str(value))
    if isinstance(value, int):
        number = int(value)
        return number if abs(number) < INTEGER_LIMIT else REPLACEMENT
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth >= DEPTH_LIMIT:
        return "…"
    if isinstance(value, dict):
        return {
            clean_text(key if isinstance(key, str) else describe(key)): clean_value(v, depth + 1)
            for key, v in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [clean_value(item, depth + 1) for item in value]
    return clean_text(describe(value))[:ERROR_LIMIT_CHARACTERS]


def encode(value: Any) -> str:
    """JSON on one line, of a cleaned value. Raises ValueError when it is too large for an event."""
    text = json.dumps(clean_value(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if len(text) > EVENT_LIMIT_BYTES or len(text.encode()) > EVENT_LIMIT_BYTES:
        raise ValueError(f"an event's data may take {EVENT_LIMIT_BYTES} bytes, this takes {len(text.encode())}")
    return text


def brief(value: Any) -> Any:
    """The value when it is short as JSON; else the beginning of its text, so that it fits an event."""
    cleaned = clean_value(value)
    text = cleaned if isinstance(cleaned, str) else json.dumps(cleaned, ensure_ascii=False)
    return cleaned if len(text) <= BRIEF_LIMIT_CHARACTERS else text[:BRIEF_LIMIT_CHARACTERS] + "…"


def encode_text(text: str, at: int) -> str:
    """The data of a text.delta: already clean text and its offset in characters."""
    return '{"text":' + json.dumps(text, ensure_ascii=False) + f',"at":{at}}}'


def encode_answer(text: str) -> str:
    """The data of text.done: the whole, already clean answer. The one event that may be larger than the others."""
    return '{"text":' + json.dumps(text, ensure_ascii=False) + "}"


def describe(value: object) -> str:
    """repr, of objects whose repr fails too."""
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def describe_error(error: BaseException) -> str:
    """One storable sentence about an exception, bounded."""
    try:
        words = str(error)
    except Exception:
        words = "(its text cannot be read)"
    name = type(error).__name__
    return clean_text(f"{name}: {words}" if words else name)[:ERROR_LIMIT_CHARACTERS]


def describe_failure(error: AgentFailed) -> tuple[str, str]:
    """The code and the storable words of a failure that an agent declared."""
    return error.code, clean_text(str(error.detail) or error.code)[:ERROR_LIMIT_CHARACTERS]
