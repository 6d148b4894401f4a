"""JSON from outside, read strictly: what the database or a later reader could not hold is refused here, with words."""

from __future__ import annotations

import json
import math
import re
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from corevo.errors import Invalid, Refused

DEPTH_LIMIT = 64
DIGITS_LIMIT = 300
#: A string, or a bracket. The inner form is unrolled so that a long string is one step of the engine.
TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
NAME_LIMIT = 80


class BadJson(Refused):
    code = "bad_json"
    status = 400


class Body(BaseModel):
    """A request's fields: unknown ones are refused, types are not guessed."""

    model_config = ConfigDict(extra="forbid", strict=True)


Model = TypeVar("Model", bound=BaseModel)


def loads(raw: bytes) -> Any:
    """Parses one JSON value whose numbers mean what they say. Raises BadJson. Its strings are not checked yet."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise BadJson("the body is not UTF-8") from None
    _check_depth(raw)
    try:
        return json.loads(text, parse_constant=_constant, parse_float=_float, parse_int=_int)
    except BadJson:
        raise
    except (ValueError, RecursionError) as error:
        raise BadJson(f"the body is not JSON: {error}") from None


def check_storable(raw: bytes, value: Any) -> None:
    """Raises Invalid, with the place of a string that Postgres cannot hold. `value` is what `raw` was parsed to."""
    if b"\\u" in raw:  # only an escape can bring one in
        _check_strings(value, "")


def validate(model: type[Model], value: Any) -> Model:
    """Fits a parsed value to its model. Raises Invalid, with the fields that do not fit."""
    if not isinstance(value, dict):
        raise Invalid("the body must be a JSON object")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise Invalid("; ".join(_in_words(e) for e in error.errors()[:3])) from None


def storable(text: str) -> bool:
    return UNSTORABLE.search(text) is None


def check_text(name: str, text: str) -> None:
    if not storable(text):
        raise Invalid(f"{name}: contains a NUL or half a surrogate pair, which cannot be stored")


def _check_depth(raw: bytes) -> None:
    """Before parsing, because the parser's own limit is the interpreter's stack."""
    if raw.count(b"[") + raw.count(b"{") <= DEPTH_LIMIT:
        return
    depth = 0
    for token in TOKEN.finditer(raw):
        first = raw[token.start()]
        if first == 0x22:
            continue
        depth += 1 if first in b"[{" else -1
        if depth > DEPTH_LIMIT:
            raise BadJson(f"the body is nested more than {DEPTH_LIMIT} levels deep")


def _check_strings(value: Any, path: str) -> None:
    if isinstance(value, str):
        check_text(path or "the body", value)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_strings(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not storable(key):
                raise Invalid(f"{path or 'the body'}: a field's name contains a NUL or half a surrogate pair")
            _check_strings(item, f"{path}.{key[:NAME_LIMIT]}" if path else key[:NAME_LIMIT])


def _constant(text: str) -> float:
    raise BadJson(f"the body is not JSON: {text} is no JSON number")


def _float(text: str) -> float:
    # the length first: float() of a million digits is slow
    value = float(text) if len(text) <= 2 * DIGITS_LIMIT else math.inf
    if math.isinf(value):
        raise BadJson(f"a number in the body is too large: {text[:20]}")
    return value


def _int(text: str) -> int:
    if len(text) > DIGITS_LIMIT:
        raise BadJson(f"a number in the body has more than {DIGITS_LIMIT} digits")
    return int(text)


def _in_words(error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"])[:NAME_LIMIT]
    if error["type"] == "missing":
        return f"{name}: this field is missing"
    if error["type"] == "extra_forbidden":
        return f"{name}: there is no such field"
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{name}: {message}" if name else message
