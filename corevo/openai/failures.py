"""What went wrong with a model server, in words, with a code that stays."""

from __future__ import annotations

import json
import math
import re
import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal

import httpx2
import openai

from corevo import AgentFailed
from corevo.openai.settings import PREFIX, OpenAISettings

Code = Literal[
    "model_key_refused",
    "model_unknown",
    "model_rate_limited",
    "model_quota",
    "model_context_too_long",
    "model_refused",
    "model_unavailable",
    "model_timeout",
    "model_broke_off",
    "model_bad_answer",
    "model_empty",
    "model_filtered",
    "tool_rounds",
]

WORDS_LIMIT_CHARACTERS = 300
KEY_LIKE = re.compile(r"\b(sk|key|gsk|xai|pk|Bearer)[-_ ][A-Za-z0-9*._-]{6,}")
TOO_LONG = re.compile(
    r"context.{0,10}(length|window|size)|maximum context|too many tokens|prompt is too long|exceeds? .{0,40}context",
    re.IGNORECASE,
)


class ModelFailed(AgentFailed):
    """`again`: the same request may work later, after `wait_seconds` if the server named them."""

    def __init__(self, code: Code, message: str, *, again: bool = False, wait_seconds: float | None = None) -> None:
        super().__init__(code, message)
        self.again = again
        self.wait_seconds = wait_seconds


def explain(error: Exception, settings: OpenAISettings, *, began: bool) -> ModelFailed:
    """Words for what the SDK raised. `began`: some of the answer had arrived."""
    server = f"the model server {settings.server}"
    match error:
        case openai.APIStatusError():
            return _of_status(error.status_code, error, settings, _wait_seconds(error.response))
        case openai.APITimeoutError():
            return ModelFailed("model_timeout", f"{server} accepted no connection in time", again=True)
        case openai.APIConnectionError() if began:
            return ModelFailed("model_broke_off", f"{server} broke off in the middle of its answer", again=True)
        case openai.APIConnectionError() if isinstance(error.__cause__, httpx2.ConnectError | ssl.SSLError):
            why = f"{server} cannot be reached: {error.__cause__}"[:WORDS_LIMIT_CHARACTERS]
            return ModelFailed("model_unavailable", why, again=True)
        case openai.APIConnectionError():
            return ModelFailed("model_broke_off", f"{server} broke off before it answered", again=True)
        case openai.APIError():  # told inside the stream
            status = int(error.code) if error.code and error.code.isdigit() and len(error.code) == 3 else 500
            return _of_status(status, error, settings, None)
        case json.JSONDecodeError() | UnicodeDecodeError():
            return ModelFailed("model_bad_answer", f"{server} sent what is no JSON")
        case _:
            return ModelFailed("model_bad_answer", f"{server} sent an answer of another shape: {type(error).__name__}")


def _of_status(status: int, error: openai.APIError, settings: OpenAISettings, wait: float | None) -> ModelFailed:
    server = f"the model server {settings.server}"
    said = _words(error, settings)
    rest = f"; it asks to wait {math.ceil(wait)} s" if wait is not None else ""
    code = str(error.code or "")
    if code == "context_length_exceeded" or (status in (400, 413, 422, 500) and TOO_LONG.search(said)):
        return ModelFailed("model_context_too_long", f"the conversation is too long for the model{said}")
    match status:
        case 401:  # its words may hold the key
            return ModelFailed("model_key_refused", f"{server} refused the key; check {PREFIX}API_KEY")
        case 403:
            return ModelFailed("model_key_refused", f"{server} does not let this key use the model{said}")
        case 404:
            return ModelFailed("model_unknown", f"{server} does not know the model {settings.model!r}{said}")
        case 402:
            return ModelFailed("model_quota", f"the account at {server} has no credit left{said}")
        case 429 if code in ("insufficient_quota", "billing_hard_limit_reached"):
            return ModelFailed("model_quota", f"the account at {server} has used up its quota{said}")
        case 429:
            why = f"{server} limits how often it is asked{rest}{said}"
            return ModelFailed("model_rate_limited", why, again=True, wait_seconds=wait)
        case 408:
            return ModelFailed("model_timeout", f"{server} took too long{said}", again=True, wait_seconds=wait)
        case _ if status >= 500 or status in (409, 425):
            why = f"{server} has a failure of its own ({status}){rest}{said}"
            return ModelFailed("model_unavailable", why, again=True, wait_seconds=wait)
        case _:
            return ModelFailed("model_refused", f"{server} refused the request ({status}){said}")


def _words(error: openai.APIError, settings: OpenAISettings) -> str:
    """What the server said, bounded, without the key; empty when it said nothing for people."""
    body: Any = error.body
    if isinstance(body, dict):
        body = body.get("message") or body.get("detail") or body.get("error") or ""
    text = " ".join(str(body or "").split())
    if not text or text.startswith("<"):
        return ""
    if settings.key != "none":
        text = text.replace(settings.key, "…")
    return ": " + KEY_LIKE.sub("…", text)[:WORDS_LIMIT_CHARACTERS]


def _wait_seconds(response: Any) -> float | None:
    """Retry-After, as seconds or as a date; never negative."""
    said = response.headers.get("retry-after-ms"), response.headers.get("retry-after")
    seconds: float
    try:
        if said[0]:
            seconds = float(said[0]) / 1000
        elif said[1]:
            seconds = float(said[1])
        else:
            return None
    except ValueError:
        try:
            when = parsedate_to_datetime(said[1] or "")
            seconds = (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
