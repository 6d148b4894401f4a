"""corevo.testing.run: an agent in memory."""

from __future__ import annotations

from corevo import Run, testing


async def echo(run: Run) -> str:
    return run.messages[-1].text


async def converses(run: Run) -> None:
    color = await run.ask("Color?", ["red"])
    await run.say(color)
    async for text in run.inputs():
        await run.say(" " + text)
        if text == "end":
            return


async def fails(run: Run) -> None:
    await run.say("half")
    raise RuntimeError("no")


async def test_it_returns_text_and_events() -> None:
    result = await testing.run(echo, "hello")
    assert (result.outcome, result.text) == ("completed", "hello")
    assert result.events == [("text.delta", {"text": "hello", "at": 0})]


async def test_it_plays_the_person_who_answers_and_adds() -> None:
    result = await testing.run(converses, "x", answers=["red"], inputs=["and", "end"])
    assert result.text == "red and end"
    assert [kind for kind, _ in result.events if kind.startswith("input.")] == [
        "input.requested", "input.accepted", "input.accepted", "input.accepted",
    ]  # fmt: skip


async def test_it_tells_what_went_wrong() -> None:
    result = await testing.run(fails, "x")
    assert (result.outcome, result.code, result.text) == ("failed", "agent_error", "half")
    assert result.error == "RuntimeError: no"


async def test_it_stops_at_its_time_out() -> None:
    result = await testing.run(converses, "x", timeout_seconds=0.1)
    assert (result.outcome, result.code) == ("timed_out", "deadline")
