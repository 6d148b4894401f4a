"""Bodies from outside: what is refused, how, and that nothing else is."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corevo.control import cursor, strict
from corevo.control.jobs import Submission
from corevo.control.strict import BadJson
from corevo.errors import BadCursor, Invalid


def read(raw: bytes) -> Submission:
    value = strict.loads(raw)
    strict.check_storable(raw, value)
    return strict.validate(Submission, value)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"text": "a"} x',
        b'{"text": "a",}',
        b"{'text': 'a'}",
        b'{"text": "a\nb"}',
        b'{"text": "a\x00b"}',
        b'{"text": "\xff"}',
        b'\xef\xbb\xbf{"text": "a"}',
        b'{"text": "\xed\xa0\x80"}',
        b'{"input": NaN}',
        b'{"input": Infinity}',
        b'{"input": -Infinity}',
        b'{"input": 1e999}',
        b'{"input": -1e131071}',
        b'{"input": 1e131071}',
        b'{"input": ' + b"9" * 301 + b"}",
        b'{"input": ' + b"9" * 100_000 + b"}",
        b'{"input": 0.' + b"9" * 100_000 + b"e9999999}",
        b'{"input": ' + b"[" * 65 + b"]" * 65 + b"}",
        b"[" * 500_000,
        b'{"a":' * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
    ],
)
def test_text_that_is_not_json_as_we_take_it(raw: bytes) -> None:
    with pytest.raises(BadJson):
        read(raw)


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b"[]", "object"),
        (b"null", "object"),
        (b'"text"', "object"),
        (b"{}", "text or input"),
        (b'{"text": "a", "input": 1}', "text or input"),
        (b'{"text": null}', "text or input"),
        (b'{"text": ""}', "text"),
        (b'{"text": 1}', "text"),
        (b'{"text": ["a"]}', "text"),
        (b'{"text": "' + b"x" * 200_001 + b'"}', "text"),
        (b'{"text": "a\\u0000b"}', "text"),
        (b'{"text": "a\\ud800b"}', "text"),
        (b'{"text": "a\\udc00\\ud800b"}', "text"),
        (b'{"input": {"deep": [0, {"x": "\\u0000"}]}}', "input.deep[1].x"),
        (b'{"input": {"\\u0000": 1}}', "input"),
        (b'{"text": "a", "\\ud800": 1}', "the body"),
        (b'{"text": "a", "unknown": 1}', "unknown"),
        (b'{"text": "a", "agent": 1}', "agent"),
        (b'{"text": "a", "agent": ""}', "agent"),
        (b'{"text": "a", "on_busy": "explode"}', "on_busy"),
        (b'{"text": "a", "metadata": []}', "metadata"),
        (b'{"text": "a", "metadata": {"a": "' + b"x" * 16_384 + b'"}}', "metadata"),
        (b'{"text": "a", "thread_id": 1}', "thread_id"),
    ],
)
def test_a_field_that_does_not_fit_is_named(raw: bytes, named: str) -> None:
    with pytest.raises(Invalid) as refused:
        read(raw)
    assert named in refused.value.detail
    refused.value.detail.encode()  # what a client sent can be said back


@pytest.mark.parametrize(
    "raw",
    [
        b'{"text": "\\ud83d\\ude00 pair"}',
        b'{"text": "\\\\u0000 is only a backslash"}',
        b'{"input": 1e300}',
        b'{"input": 1e-400}',
        b'{"input": ' + b"9" * 300 + b"}",
        b'{"input": ' + b"[" * 60 + b"]" * 60 + b"}",
        b'{"input": "' + b"[" * 1000 + b'"}',
        b'{"input": "\\"[' + b"{" * 1000 + b'"}',
        b'{"text": "' + b"x" * 200_000 + b'"}',
        b'{"text": "a", "agent": null, "on_busy": "enqueue", "metadata": {"k": [1]}}',
    ],
)
def test_what_is_fine_comes_through(raw: bytes) -> None:
    body = read(raw)
    assert body.shown
    json.dumps(body.input).encode()


@pytest.mark.parametrize(
    "raw",
    [b'{"input": "' + b'\\"' * 500_000 + b'"}', b'{"input": [' + b"[]," * 340_000 + b"0]}", b'"' * 1_000_000],
)
def test_a_megabyte_of_anything_is_quick(raw: bytes) -> None:
    began = time.perf_counter()
    with contextlib.suppress(BadJson):
        strict.loads(raw)
    assert time.perf_counter() - began < 2


def test_equal_bodies_have_equal_hashes() -> None:
    one = read(b'{"text": "a", "agent": "b", "metadata": {"x": 1, "y": 2}}')
    two = read(b'{"metadata": {"y": 2, "x": 1}, "agent":"b", "thread_id": null, "text":"\\u0061"}')
    assert one.hash == two.hash
    assert one.hash != read(b'{"text": "a", "agent": "b"}').hash


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values)
def test_any_json_is_taken_whole_or_refused(value: Any) -> None:
    with contextlib.suppress(BadJson, Invalid):
        body = read(json.dumps({"input": value}).encode())
        assert json.loads(json.dumps(body.input)) == value


@given(st.binary(max_size=300))
def test_any_bytes_are_taken_or_refused(raw: bytes) -> None:
    with contextlib.suppress(BadJson, Invalid):
        read(raw)


ID = "01a22e1a-82fa-7300-a039-4743c28196fd"


@pytest.mark.parametrize("text", [f"{ID}:0", f"{ID}:12", f"{ID}:12:end", f"{ID}:end", f"{ID.upper()}:1"])
def test_cursors_of_the_grammar(text: str) -> None:
    found = cursor.parse_stream(text)
    assert str(found.id) == ID
    assert found.end == text.endswith(":end")
    assert (found.seq is None) == text.endswith(f"{ID}:end")


@pytest.mark.parametrize(
    "text",
    [
        "",
        ID,
        f"{ID}:",
        f"{ID}:-1",
        f"{ID}:1:",
        f"{ID}:1:END2",
        f" {ID}:1",
        f"{ID}:1\n",
        f"{ID}:\u0661",
        f"{ID}:" + "9" * 19,
    ],
)
def test_other_text_is_no_cursor(text: str) -> None:
    with pytest.raises(BadCursor):
        cursor.parse_stream(text)


@given(st.text(max_size=300))
def test_any_text_is_a_list_cursor_or_none(text: str) -> None:
    for parse in (cursor.parse_page_by_time, cursor.parse_page_by_place, cursor.parse_stream):
        with contextlib.suppress(BadCursor):
            parse(text)
