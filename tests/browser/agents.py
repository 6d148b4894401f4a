"""Agents for the browser's tests: each shows the page one thing."""

from __future__ import annotations

import asyncio

from corevo import Run, agent
from corevo.agents import demo as demo  # the demo agent, and its banner

#: Characters of one, two and four bytes in UTF-8, one and two units in UTF-16.
WORDS = ("plain ", "größer ", "漢字 ", "🙂👩‍👩‍👧 ", "𝔘𝔫𝔦 ")


def paced_text(number: int) -> str:
    return "".join(f"{n} {WORDS[n % len(WORDS)]}" for n in range(number))


@agent("paced")
async def paced(run: Run) -> None:
    """As many words as the message's number, 40 ms apart."""
    for n in range(int(run.messages[-1].text.split()[0])):
        await run.say(f"{n} {WORDS[n % len(WORDS)]}")
        await asyncio.sleep(0.04)


@agent("says")
async def says(run: Run) -> str:
    """What the message says."""
    return run.messages[-1].text


@agent("big")
async def big(run: Run) -> None:
    """As many characters of prose with markdown as the message's number; in one paragraph if it says so."""
    wish = run.messages[-1].text
    left = int(wish.split()[0])
    line = 0
    while left > 0:
        line += 1
        piece = f"Line {line} has **bold words**, `code` and a [link](https://www.example.org/{line}) in it, like any. "
        piece += "\n\n" if line % 6 == 0 and "paragraph" not in wish else ""
        piece = piece[:left]
        left -= len(piece)
        await run.say(piece)
        if line % 5 == 0:
            await asyncio.sleep(0.005)


@agent("tools")
async def tools(run: Run) -> None:
    await run.status("looking things up")
    await run.tool_started("search_flights", "1", {"from": "Vienna", "to": "Lisbon"})
    await asyncio.sleep(0.5)
    await run.tool_finished("search_flights", "1", result="3 flights")
    await run.tool_started("book", "2", {"flight": "OS 631"})
    await run.tool_finished("book", "2", error="no seat left")
    await asyncio.sleep(0.3)
    await run.usage("small-model", input_tokens=1234, output_tokens=56, cost_usd=0.0021)
    await run.say("The three flights are full.")
    await asyncio.sleep(float(run.messages[-1].text.split()[-1]) if run.messages[-1].text[-1].isdigit() else 0.3)


@agent("waits")
async def waits(run: Run) -> None:
    await run.say("waiting ")
    await asyncio.sleep(3600)


@agent("raises")
async def raises(run: Run) -> None:
    await run.say("before the fall")
    raise RuntimeError("this agent raises")


@agent("late", timeout_seconds=0.5)
async def late(run: Run) -> None:
    await run.say("not done ")
    await asyncio.sleep(3600)


@agent("listens")
async def listens(run: Run) -> None:
    """Says each sentence that is added, until one is "enough"."""
    await run.say("listening ")
    async for sentence in run.inputs():
        await run.say(f"[{sentence}] ")
        if sentence == "enough":
            return


@agent("asks")
async def asks(run: Run) -> None:
    """Asks with choices, then without."""
    await run.say("asking ")
    await run.say(await run.ask("Which seat?", ["Window", "Aisle"]))
    await run.say(" for " + await run.ask("In whose name?"))


@agent("gives_up")
async def gives_up(run: Run) -> None:
    """Waits for an answer no longer than half a second, and goes on without."""
    try:
        await run.ask("Now or never?", timeout_seconds=0.5)
    except TimeoutError:
        await run.say("never ")
        await asyncio.sleep(3600)
