"""Agents for tests: each does one thing that agents do, or should not do."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Any

from corevo import Run, agent


@agent("echo")
async def echo(run: Run) -> None:
    for word in run.messages[-1].text.split(" "):
        await run.say(word + " ")


@agent("paced")
async def paced(run: Run) -> None:
    """Says the numbers from 0 up to the message's number, 20 ms apart."""
    for number in range(int(run.messages[-1].text)):
        await run.say(f"{number} ")
        await asyncio.sleep(0.02)


@agent("returns")
async def returns(run: Run) -> str:
    return "returned " + run.messages[-1].text


@agent("yields")
async def yields(run: Run) -> AsyncIterator[str]:
    for letter in run.messages[-1].text:
        yield letter


@agent("history")
async def history(run: Run) -> str:
    return " | ".join(f"{message.role}:{message.text}" for message in run.messages)


@agent("raw")
async def raw(run: Run) -> str:
    return f"{run.input!r} {dict(run.metadata)!r}"


@agent("raises")
async def raises(run: Run) -> None:
    await run.say("before the fall ")
    raise RuntimeError("this agent raises")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@agent("unstorable")
async def unstorable(run: Run) -> None:
    match run.messages[-1].text:
        case "nul":
            raise RuntimeError("a\x00b")
        case "surrogate":
            raise RuntimeError("a\ud800b")
        case "long":
            raise RuntimeError("x" * 1_000_000)
        case "unprintable":
            raise Unprintable
        case "say":
            await run.say("nul \x00, surrogate \ud800, fine.")
        case unknown:
            raise ValueError(unknown)


@agent("number")
async def number(run: Run) -> Any:
    return 42


@agent("yields-number")
async def yields_number(run: Run) -> AsyncIterator[Any]:
    yield "one "
    yield 2


@agent("garbage")
async def garbage(run: Run) -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    everything: dict[Any, Any] = {
        "nan": float("nan"),
        "infinite": float("inf"),
        "nul": "\x00",
        "surrogate": "\udfff",
        "object": object,
        "bytes": b"\xff",
        "big": 10**400,
        "deep": deep,
        "set": {1},
        3: "number as key",
    }
    await run.emit("garbage.all", everything)
    await run.status("\x00\ud800")
    await run.say("still here")


@agent("misuses")
async def misuses(run: Run) -> None:
    """Tries what is refused, and says what each attempt raised."""
    calls: list[Any] = [
        lambda: run.say(3),  # type: ignore[arg-type]
        lambda: run.emit("run.completed", {}),
        lambda: run.emit("nodot", {}),
        lambda: run.emit("a.b c", {}),
        lambda: run.emit("big.one", {"x": "y" * 100_000}),
    ]
    for call in calls:
        try:
            await call()
        except (TypeError, ValueError) as error:
            await run.say(type(error).__name__ + " ")


@agent("exits")
async def exits(run: Run) -> None:
    await run.say("last words ")
    await asyncio.sleep(0.2)
    os._exit(7)


@agent("sleeps", timeout_seconds=60)
async def sleeps(run: Run) -> None:
    await run.say("sleeping ")
    await asyncio.sleep(3600)


@agent("short-deadline", timeout_seconds=0.5)
async def short_deadline(run: Run) -> None:
    await run.say("sleeping ")
    await asyncio.sleep(3600)


@agent("cleans-up")
async def cleans_up(run: Run) -> None:
    try:
        await run.say("working ")
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        await run.say("cleaned up" if run.cancelled else "not asked")
        raise


@agent("stubborn")
async def stubborn(run: Run) -> None:
    """Swallows its cancellation; ends when it has done so for 12 seconds."""
    await run.say("never ")
    for _ in range(120):
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            continue


@agent("flaky", retry_safe=True, max_attempts=3)
async def flaky(run: Run) -> None:
    await run.say(f"attempt {run.attempt}")
    if run.attempt < 2:
        raise RuntimeError("not yet")


@agent("heavy", lane="heavy")
async def heavy(run: Run) -> str:
    return "heavy"


@agent("listens")
async def listens(run: Run) -> None:
    """Says back each input; ends at "stop"."""
    await run.say("listening ")
    async for text in run.inputs():
        await run.say(f"[{text}]")
        if text == "stop":
            return


@agent("asks")
async def asks(run: Run) -> None:
    try:
        answer = await run.ask("Red or blue?", ["red", "blue"], timeout_seconds=float(run.messages[-1].text))
    except TimeoutError:
        answer = "nothing"
    await run.say(f"You said {answer}.")


@agent("never-ends")
async def never_ends(run: Run) -> None:
    """Swallows every cancellation, and goes on talking."""
    await run.say("never ")
    while True:
        try:
            await asyncio.sleep(0.1)
            await run.say("x")
        except asyncio.CancelledError:
            continue


@agent("blocks-a-thread")
async def blocks_a_thread(run: Run) -> None:
    await run.say("in a thread ")
    await asyncio.to_thread(time.sleep, 120)


@agent("slow-clean-up")
async def slow_clean_up(run: Run) -> None:
    await run.say("working ")
    try:
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(7)


@agent("heavy-sleeps", lane="heavy")
async def heavy_sleeps(run: Run) -> None:
    await run.say("sleeping ")
    await asyncio.sleep(3600)
