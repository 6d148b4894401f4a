"""Agents that block the loop they run on, each in its own way."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time

from corevo import Run, agent

#: PyDLL keeps the GIL during the call: no other thread runs, the pulse's neither.
HOLDING = ctypes.PyDLL(None)


@agent("paced")
async def paced(run: Run) -> None:
    """Says the numbers from 0 up to the message's number, 20 ms apart."""
    for number in range(int(run.messages[-1].text)):
        await run.say(f"{number} ")
        await asyncio.sleep(0.02)


@agent("echo")
async def echo(run: Run) -> None:
    await run.say(run.messages[-1].text)


@agent("waits")
async def waits(run: Run) -> None:
    await run.say("waiting ")
    await asyncio.sleep(3600)


@agent("safe", retry_safe=True, max_attempts=3)
async def safe(run: Run) -> None:
    for number in range(int(run.messages[-1].text)):
        await run.say(f"{number} ")
        await asyncio.sleep(0.02)


@agent("blocks-sleep")
async def blocks_sleep(run: Run) -> None:
    await run.say("before ")
    await asyncio.sleep(0.2)
    time.sleep(float(run.messages[-1].text))  # noqa: ASYNC251
    await run.say("after")


@agent("blocks-cpu")
async def blocks_cpu(run: Run) -> None:
    await run.say("before ")
    await asyncio.sleep(0.2)
    until = time.monotonic() + float(run.messages[-1].text)
    while time.monotonic() < until:
        pass
    await run.say("after")


@agent("holds-gil")
async def holds_gil(run: Run) -> None:
    await run.say("before ")
    await asyncio.sleep(0.2)
    HOLDING.usleep(int(float(run.messages[-1].text) * 1e6))
    await run.say("after")


@agent("until-file")
async def until_file(run: Run) -> None:
    """Ends when the file that the message names is there."""
    await run.say("waiting ")
    while not os.path.exists(run.messages[-1].text):  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.02)
    await run.say("found")


@agent("listens")
async def listens(run: Run) -> None:
    """Takes one input, and ends."""
    await run.say("listening ")
    async for text in run.inputs():
        await run.say(f"[{text}]")
        return


@agent("asks")
async def asks(run: Run) -> None:
    await run.say(await run.ask("Red or blue?"))


@agent("fails-then-listens", retry_safe=True, max_attempts=2)
async def fails_then_listens(run: Run) -> None:
    if run.attempt == 1:
        raise RuntimeError("the first attempt fails")
    await listens(run)


@agent("bursts")
async def bursts(run: Run) -> None:
    """Says several things at once, again and again: an append carries more than one event."""
    for number in range(int(run.messages[-1].text)):
        for _ in range(3):
            await run.say(f"{number} ")
            await run.status("going on")
        await asyncio.sleep(0.02)
