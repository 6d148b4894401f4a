"""The model agent against a server that speaks the OpenAI wire format, through the real SDK."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from corevo import Message, Run
from corevo.openai import build_agent, tool
from corevo.runtime.registry import AgentFunction, Registry
from corevo.testing import Result
from corevo.testing import run as run_agent
from tests.openai_server import Exchange, OpenAIServer, Reply, calls, drips, hangs, openai_server, refuses, says

KEY = "sk-test-0123456789abcdef"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("COREVO_OPENAI_", "OPENAI_")):
            monkeypatch.delenv(name)


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    async with openai_server() as serving:
        yield serving


def make(server: OpenAIServer, **options: Any) -> AgentFunction:
    given: dict[str, Any] = {"base_url": server.url, "api_key": KEY, "model": "small", "registry": Registry()}
    return build_agent(**(given | options))


async def ask(
    server: OpenAIServer, text: str = "hello", *, history: Any = (), deadline: float = 20, **options: Any
) -> Result:
    return await run_agent(make(server, **options), text, history=history, timeout_seconds=deadline)


def of_type(result: Result, type: str) -> list[dict[str, Any]]:
    return [data for name, data in result.events if name == type]


# ── answering ─────────────────────────────────────────────────────────────────────────────────────────


async def test_every_delta_is_said_as_it_comes(server: OpenAIServer) -> None:
    server.will(says("Hel", "lo ", "wörld 世界"))
    result = await ask(server)
    assert (result.outcome, result.text) == ("completed", "Hello wörld 世界")
    assert [d["text"] for d in of_type(result, "text.delta")] == ["Hel", "lo ", "wörld 世界"]


async def test_the_first_delta_is_said_before_the_second_was_sent(server: OpenAIServer) -> None:
    heard = asyncio.Event()

    async def reply(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.delta(content="first ")
        await asyncio.wait_for(heard.wait(), 10)
        await exchange.delta(content="second")
        await exchange.end()

    inner = make(server)

    async def agent(run: Run) -> None:
        said = run.say

        async def say(text: str) -> None:
            heard.set()
            await said(text)

        run.say = say  # type: ignore[method-assign]
        await inner(run)  # type: ignore[misc]

    server.will(reply)
    result = await run_agent(agent, "hello")
    assert (result.outcome, result.text) == ("completed", "first second")


async def test_the_request_has_the_system_prompt_the_thread_and_the_settings(server: OpenAIServer) -> None:
    server.will(says("ok"))
    history = [Message("user", "one"), Message("assistant", "two")]
    await ask(server, "three", history=history, system_prompt="Be brief.", temperature=0.5, max_output_tokens=77)
    (exchange,) = server.exchanges
    assert exchange.head == "POST /v1/chat/completions HTTP/1.1"
    assert exchange.headers["authorization"] == f"Bearer {KEY}"
    assert exchange.body == {
        "model": "small",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "two"},
            {"role": "user", "content": "three"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "max_tokens": 77,
    }


async def test_usage_and_its_cost_are_told(server: OpenAIServer) -> None:
    server.will(says("ok", usage=(1000, 200)))
    result = await ask(server, price_input=3.0, price_output=15.0)
    assert of_type(result, "usage") == [
        {
            "model": "small",
            "input_tokens": 1000,
            "output_tokens": 200,
            "cost_usd": 0.006,
            "rounds": 1,
            "finish_reason": "stop",
        }
    ]


async def test_usage_that_the_server_does_not_tell_is_estimated_and_says_so(server: OpenAIServer) -> None:
    server.will(says("x" * 300, usage=None))
    (usage,) = of_type(await ask(server), "usage")
    assert usage["estimated"] is True and usage["output_tokens"] == 100 and usage["input_tokens"] > 10
    assert "cost_usd" not in usage


@pytest.mark.parametrize(("reason", "words"), [("length", "output limit"), ("content_filter", "content filter")])
async def test_an_answer_that_was_cut_off_says_so(server: OpenAIServer, reason: str, words: str) -> None:
    server.will(says("half", finish_reason=reason))
    result = await ask(server)
    assert (result.outcome, result.text) == ("completed", "half")
    assert words in of_type(result, "status")[0]["text"]
    assert of_type(result, "usage")[0]["finish_reason"] == reason


@pytest.mark.parametrize(
    ("reason", "code"), [("stop", "model_empty"), ("length", "model_empty"), ("content_filter", "model_filtered")]
)
async def test_an_empty_answer_is_a_failure(server: OpenAIServer, reason: str, code: str) -> None:
    server.will(says(" ", "\n", finish_reason=reason))
    result = await ask(server)
    assert (result.outcome, result.code) == ("failed", code)
    assert len(server.exchanges) == 1


async def test_a_reasoning_model_is_said_to_think(server: OpenAIServer) -> None:
    async def reply(exchange: Exchange) -> None:
        await exchange.begin()
        for word in ("hm", "well"):
            await exchange.delta(reasoning_content=word)
        await exchange.delta(content="yes")
        await exchange.end()

    server.will(reply)
    result = await ask(server)
    assert result.text == "yes"
    assert of_type(result, "status") == [{"text": "thinking"}]


# ── the context ───────────────────────────────────────────────────────────────────────────────────────

LONG = [Message(role, f"{role} {n} " + "x" * 90) for n in range(50) for role in ("user", "assistant")]


@pytest.mark.parametrize("limit", [{"context_tokens": 400}, {"context_characters": 1000}])
async def test_the_oldest_turns_are_left_out_and_counted(server: OpenAIServer, limit: dict[str, int]) -> None:
    server.will(says("ok"))
    result = await ask(server, "the newest", history=LONG, system_prompt="The system prompt.", **limit)
    messages = server.bodies[0]["messages"]
    assert messages[0]["content"] == "The system prompt." and messages[-1]["content"] == "the newest"
    kept = messages[1:-1]
    assert 2 <= len(kept) <= 10 and kept[0]["role"] == "user"
    assert [m["content"] for m in kept] == [m.text for m in LONG[-len(kept) :]]
    assert of_type(result, "usage")[0]["turns_dropped"] == 50 - len(kept) // 2


async def test_the_newest_message_is_sent_even_if_it_alone_is_too_long(server: OpenAIServer) -> None:
    server.will(says("ok"))
    await ask(server, "y" * 5000, history=LONG, context_tokens=10, system_prompt="Still here.")
    assert [m["content"] for m in server.bodies[0]["messages"]] == ["Still here.", "y" * 5000]


async def test_neighbours_of_one_role_are_joined(server: OpenAIServer) -> None:
    """A failed run leaves a user message without an answer."""
    server.will(says("ok"))
    await ask(server, "again", history=[Message("user", "first"), Message("assistant", "")], system_prompt="S")
    assert [m["content"] for m in server.bodies[0]["messages"]] == ["S", "first\n\nagain"]


# ── tools ─────────────────────────────────────────────────────────────────────────────────────────────


@tool
async def weather(city: str, days: int = 1) -> dict[str, Any]:
    """The weather in a city."""
    return {"city": city, "days": days, "sky": "clear"}


@tool
async def broken(text: str) -> str:
    """Always fails."""
    raise RuntimeError(f"no {text}")


@tool(timeout_seconds=0.05)
async def slow() -> None:
    """Never ends by itself."""
    await asyncio.Event().wait()


@tool
async def whose(run: Run, note: str = "") -> str:
    """Tells about the run."""
    return f"{run.messages[-1].text} {note}"


async def test_a_tool_is_called_and_its_result_answered(server: OpenAIServer) -> None:
    server.will(calls(("weather", '{"city": "Chengdu"}'), text="Let me look."), says("It is clear."))
    result = await ask(server, tools=[weather])
    assert (result.outcome, result.text) == ("completed", "Let me look.\n\nIt is clear.")
    (started,), (finished,) = of_type(result, "tool.started"), of_type(result, "tool.finished")
    assert started == {"name": "weather", "call_id": "id-weather-0", "arguments": {"city": "Chengdu"}}
    answer = '{"city":"Chengdu","days":1,"sky":"clear"}'
    assert finished == {"name": "weather", "call_id": "id-weather-0", "ok": True, "result": answer}
    first, second = server.bodies
    (schema,) = first["tools"]
    assert schema["function"]["name"] == "weather" and schema["function"]["description"] == "The weather in a city."
    assert schema["function"]["parameters"]["required"] == ["city"]
    assert second["messages"][-2:] == [
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [
                {
                    "id": "id-weather-0",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Chengdu"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "id-weather-0", "content": answer},
    ]
    (usage,) = of_type(result, "usage")
    assert (usage["rounds"], usage["input_tokens"], usage["output_tokens"]) == (2, 20, 10)


async def test_calls_of_one_round_run_side_by_side(server: OpenAIServer) -> None:
    meeting = asyncio.Barrier(3)

    @tool
    async def meet(name: str) -> str:
        """Returns when all three are there."""
        await meeting.wait()
        return name

    server.will(calls(*(("meet", f'{{"name": "{n}"}}') for n in "abc")), says("met"))
    result = await ask(server, tools=[meet])
    assert (result.outcome, result.text) == ("completed", "met")
    assert [m["content"] for m in server.bodies[1]["messages"][-3:]] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("broken", '{"text": "luck"}', "RuntimeError: no luck"),
        ("slow", "{}", "no result within 0.05 s"),
        ("weather", '{"city": "X", "when": 1}', "when: Extra inputs are not permitted"),
        ("weather", '{"days": "many"}', "city: Field required; days: "),
        ("weather", '{"city": ', "Invalid JSON"),
        ("weather", "[1]", "bad arguments"),
        ("weather", "[" * 100_000, "bad arguments"),
        ("nothing", "{}", "there is no tool 'nothing'; there are: weather, broken, slow, whose"),
    ],
)
async def test_a_call_that_goes_wrong_is_told_to_the_model(
    server: OpenAIServer, name: str, arguments: str, words: str
) -> None:
    async def reply(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.call(0, id="x", name=name, arguments=arguments)
        await exchange.end("tool_calls")

    server.will(reply, says("sorry"))
    result = await ask(server, tools=[weather, broken, slow, whose])
    assert (result.outcome, result.text) == ("completed", "sorry")
    (finished,) = of_type(result, "tool.finished")
    assert finished["ok"] is False and words in finished["error"] and "result" not in finished
    asked, told = server.bodies[1]["messages"][-2:]
    assert told["content"].startswith("error: ") and words in told["content"]
    sent = asked["tool_calls"][0]["function"]["arguments"]
    assert sent in ("{}", arguments) and not sent.startswith("[")


async def test_one_failing_call_does_not_stop_its_neighbours(server: OpenAIServer) -> None:
    server.will(calls(("broken", '{"text": "x"}'), ("whose", '{"note": "n"}')), says("done"))
    result = await ask(server, "mine", tools=[broken, whose])
    assert result.text == "done"
    assert [m["content"] for m in server.bodies[1]["messages"][-2:]] == ["error: RuntimeError: no x", "mine n"]


async def test_calls_without_ids_and_numbers_are_told_apart(server: OpenAIServer) -> None:
    async def reply(exchange: Exchange) -> None:
        await exchange.begin()
        for note in "ab":
            piece = {"function": {"name": "whose", "arguments": f'{{"note": "{note}"}}'}}
            await exchange.delta(tool_calls=[piece])
        await exchange.end("stop")

    server.will(reply, says("done"))
    result = await ask(server, "q", tools=[whose])
    assert result.text == "done"
    assert [m["content"] for m in server.bodies[1]["messages"][-2:]] == ["q a", "q b"]
    ids = [data["call_id"] for data in of_type(result, "tool.started")]
    assert len(set(ids)) == 2 and all(ids)


async def test_rounds_are_bounded(server: OpenAIServer) -> None:
    server.will(calls(("whose", "{}")))
    result = await ask(server, tools=[whose], max_tool_rounds=3)
    assert (result.outcome, result.code) == ("failed", "tool_rounds")
    assert len(server.exchanges) == 4 and len(of_type(result, "tool.started")) == 3
    assert of_type(result, "usage")[0]["rounds"] == 4


async def test_long_arguments_and_results_are_cut_in_events_alone(server: OpenAIServer) -> None:
    @tool
    async def copy(text: str) -> str:
        """Says it thrice."""
        return text * 3

    server.will(calls(("copy", '{"text": "' + "z" * 30_000 + '"}')), says("done"))
    result = await ask(server, tools=[copy])
    (started,), (finished,) = of_type(result, "tool.started"), of_type(result, "tool.finished")
    assert len(started["arguments"]) < 5000 and len(finished["result"]) < 5000
    told = server.bodies[1]["messages"][-1]["content"]
    assert told.startswith("z" * 50_000) and told.endswith("(cut: the result has 90000 characters)")


async def test_turns_are_dropped_for_what_a_run_adds_but_never_that(server: OpenAIServer) -> None:
    @tool
    async def much() -> str:
        """Returns much."""
        return "m" * 900

    server.will(calls(("much", "{}")), calls(("much", "{}")), says("done"))
    await ask(server, "new", tools=[much], history=LONG, context_characters=3000)
    kept = [[m["role"] for m in body["messages"]] for body in server.bodies]
    assert len(kept[0]) > len([r for r in kept[2] if r != "tool"])
    assert kept[2].count("tool") == 2 and kept[2][0] == "system"
    assert any(m["content"] == "new" for m in server.bodies[2]["messages"])


# ── failures in words ─────────────────────────────────────────────────────────────────────────────────


def answers_text(status: int, body: str) -> Reply:
    async def reply(exchange: Exchange) -> None:
        await exchange.status(status, body, content_type="text/html")

    return reply


@pytest.mark.parametrize(
    ("reply", "code", "words"),
    [
        (refuses(401, f"Incorrect API key provided: {KEY}"), "model_key_refused", "check COREVO_OPENAI_API_KEY"),
        (refuses(403, f"{KEY} may not"), "model_key_refused", "does not let this key use the model: … may not"),
        (refuses(404, "no model small", "model_not_found"), "model_unknown", "does not know the model 'small'"),
        (refuses(402, "pay"), "model_quota", "no credit left: pay"),
        (refuses(429, "pay", "insufficient_quota"), "model_quota", "used up its quota"),
        (refuses(400, "x", "context_length_exceeded"), "model_context_too_long", "too long for the model"),
        (refuses(400, "request exceeds the available context size"), "model_context_too_long", "too long"),
        (refuses(413, "maximum context is 4096"), "model_context_too_long", "too long"),
        (refuses(400, f"bad sk-other-{KEY}"), "model_refused", "refused the request (400): bad"),
        (answers_text(405, "<html>no</html>"), "model_refused", "refused the request (405)"),
        (answers_text(200, "<html>a page</html>"), "model_bad_answer", "is COREVO_OPENAI_BASE_URL right?"),
    ],
)
async def test_a_refusal_is_told_in_words_and_not_repeated(
    server: OpenAIServer, reply: Reply, code: str, words: str
) -> None:
    server.will(reply)
    result = await ask(server)
    assert (result.outcome, result.code) == ("failed", code)
    assert result.error is not None and words in result.error
    assert KEY not in repr(result) and KEY[:12] not in repr(result)
    assert len(server.exchanges) == 1 and of_type(result, "usage") == []


async def test_a_server_that_is_not_there_is_told_in_words() -> None:
    async with openai_server() as server:
        agent = make(server)
    result = await run_agent(agent, "hello")
    assert (result.outcome, result.code) == ("failed", "model_unavailable")
    assert result.error is not None and "cannot be reached" in result.error


async def test_a_stream_that_breaks_after_text_is_never_asked_again(server: OpenAIServer) -> None:
    async def breaks(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.delta(content="half an ")
        exchange.break_off()

    server.will(breaks, says("never heard"))
    result = await ask(server)
    assert (result.outcome, result.code, result.text) == ("failed", "model_broke_off", "half an ")
    assert len(server.exchanges) == 1
    assert of_type(result, "usage")[0]["estimated"] is True


async def test_a_stream_that_just_stops_is_no_answer(server: OpenAIServer) -> None:
    async def stops(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.delta(content="half an ")
        await exchange.stop()

    server.will(stops)
    result = await ask(server)
    assert (result.outcome, result.code, result.text) == ("failed", "model_broke_off", "half an ")


async def test_a_stream_that_breaks_after_its_end_is_an_answer(server: OpenAIServer) -> None:
    async def breaks(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.delta(content="whole")
        await exchange.delta("stop")
        exchange.break_off()

    server.will(breaks)
    result = await ask(server)
    assert (result.outcome, result.text) == ("completed", "whole")


@pytest.mark.parametrize(
    "line",
    [
        "data: {not json",
        "data: 3",
        'data: {"choices": 3}',
        'data: {"choices": [3]}',
        'data: {"choices": [{"delta": {"tool_calls": 7}}]}',
        'data: {"choices": [{"delta": {"content": 7}}]}',
        "data: " + "[" * 200_000,
    ],
)
async def test_garbage_in_a_stream_is_a_failure_in_words(server: OpenAIServer, line: str) -> None:
    async def reply(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.delta(content="so far ")
        await exchange.line(line)
        await exchange.stop()

    server.will(reply)
    result = await ask(server)
    assert (result.outcome, result.text) == ("failed", "so far ")
    assert result.code in ("model_bad_answer", "model_broke_off")


async def test_an_error_inside_the_stream_is_told(server: OpenAIServer) -> None:
    async def reply(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.delta(content="so ")
        await exchange.line('data: {"error": {"message": "the GPU fell over", "code": 502}}')

    server.will(reply)
    result = await ask(server)
    assert (result.outcome, result.code) == ("failed", "model_unavailable")
    assert result.error is not None and "the GPU fell over" in result.error


async def test_a_first_token_that_does_not_come_times_out(server: OpenAIServer) -> None:
    server.will(hangs)
    result = await ask(server, timeout_seconds=0.2)
    assert (result.outcome, result.code) == ("failed", "model_timeout")
    assert result.error is not None and "did not begin to answer within 0.2 s" in result.error
    assert len(server.exchanges) == 1
    await asyncio.wait_for(server.exchanges[0].gone.wait(), 5)


async def test_silence_in_the_middle_times_out_and_closes_the_connection(server: OpenAIServer) -> None:
    async def reply(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.delta(content="and then ")
        while not exchange.gone.is_set():  # keeps the connection alive, and says nothing
            await exchange.line(": still here")
            await asyncio.sleep(0.02)

    server.will(reply)
    result = await ask(server, timeout_seconds=0.2)
    assert (result.code, result.text) == ("model_timeout", "and then ")
    assert result.error is not None and "fell silent for 0.2 s" in result.error
    await asyncio.wait_for(server.exchanges[0].gone.wait(), 5)


# ── asking again ──────────────────────────────────────────────────────────────────────────────────────


async def breaks_at_once(exchange: Exchange) -> None:
    exchange.break_off()


async def breaks_before_a_token(exchange: Exchange) -> None:
    await exchange.begin()
    await exchange.delta(role="assistant", content="")
    exchange.break_off()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corevo.openai.agent.RETRY_SECONDS", (0.01, 0.02))


@pytest.mark.parametrize(
    "trouble",
    [
        refuses(500),
        refuses(503),
        refuses(429),
        refuses(408),
        answers_text(502, "<html>bad gateway</html>"),
        breaks_at_once,
        breaks_before_a_token,
    ],
)
async def test_trouble_before_the_first_token_is_asked_again(server: OpenAIServer, quick: None, trouble: Reply) -> None:
    server.will(trouble, trouble, says("at last"))
    result = await ask(server)
    assert (result.outcome, result.text) == ("completed", "at last")
    assert len(server.exchanges) == 3 and server.bodies[0] == server.bodies[2]


async def test_it_is_asked_four_times_at_most(server: OpenAIServer, quick: None) -> None:
    server.will(refuses(500, "out of order"))
    result = await ask(server)
    assert (result.outcome, result.code) == ("failed", "model_unavailable")
    assert result.error is not None and "(500): out of order" in result.error
    assert len(server.exchanges) == 4


async def test_after_a_tool_ran_nothing_is_asked_again(server: OpenAIServer, quick: None) -> None:
    server.will(calls(("whose", "{}")), refuses(500), says("never"))
    result = await ask(server, tools=[whose])
    assert (result.outcome, result.code) == ("failed", "model_unavailable")
    assert len(server.exchanges) == 2
    assert of_type(result, "usage")[0]["rounds"] == 1


@pytest.mark.parametrize("header", [{"retry_after": "1"}, {"retry_after_ms": "1000"}])
@pytest.mark.parametrize("status", [429, 503])
async def test_the_wait_that_the_server_asks_for_is_kept(
    server: OpenAIServer, quick: None, status: int, header: dict[str, str]
) -> None:
    server.will(refuses(status, **header), says("now"))
    result = await ask(server)
    assert result.text == "now"
    first, second = server.exchanges
    assert second.arrived_at - first.arrived_at >= 1
    assert "trying again in 2 s" in of_type(result, "status")[0]["text"]


async def test_a_wait_beyond_the_deadline_fails_at_once_and_names_it(server: OpenAIServer, quick: None) -> None:
    when = format_datetime(datetime.now(UTC) + timedelta(seconds=600), usegmt=True)
    for wait in ("600", when):
        server.will(refuses(429, "slow down", retry_after=wait))
        began = time.monotonic()
        result = await ask(server, deadline=20)
        assert (result.outcome, result.code) == ("failed", "model_rate_limited")
        assert result.error is not None
        assert "it asks to wait 600 s: slow down" in result.error or "it asks to wait 59" in result.error
        assert time.monotonic() - began < 5
    assert len(server.exchanges) == 2


@pytest.mark.parametrize("nonsense", ["soon", "nan", "inf", "-5", "Mon, 99 Foo"])
async def test_a_wait_that_cannot_be_read_is_none(server: OpenAIServer, quick: None, nonsense: str) -> None:
    server.will(refuses(429, retry_after=nonsense), says("now"))
    assert (await ask(server)).text == "now"


# ── cancelling ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("reply", [drips, hangs])
async def test_a_cancelled_run_closes_the_connection(server: OpenAIServer, reply: Reply) -> None:
    server.will(reply)
    task = asyncio.create_task(ask(server))
    await asyncio.wait_for(server.asked.wait(), 10)
    exchange = server.exchanges[0]
    assert not exchange.gone.is_set()
    cancelled_at = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(exchange.gone.wait(), 5)
    gone_at = exchange.connection.gone_at
    assert gone_at is not None and gone_at - cancelled_at < 1


async def test_a_cancelled_run_cancels_its_tools(server: OpenAIServer) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def waits() -> None:
        """Waits."""
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    server.will(calls(("waits", "{}"), ("waits", "{}")))
    task = asyncio.create_task(ask(server, tools=[waits]))
    await asyncio.wait_for(began.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_a_tool_that_cancels_itself_is_a_result(server: OpenAIServer) -> None:
    @tool
    async def gives_up() -> None:
        """Gives up."""
        raise asyncio.CancelledError

    server.will(calls(("gives_up", "{}")), says("fine"))
    result = await ask(server, tools=[gives_up])
    assert result.text == "fine"
    assert of_type(result, "tool.finished")[0]["error"] == "the tool cancelled itself"
