"""A hypothesis state machine: it chooses what clients do and which faults strike, and in which order.

Whatever it chose, with everything healed every job ends, every invariant holds, and every client's history is right.
COREVO_MACHINE_EXAMPLES and COREVO_MACHINE_STEPS make it longer.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.faults.histories import AGENTS, CONVERGE_SECONDS, FAULTS, QUICKEST, TIMES, Life, Report, heal
from tests.faults.history import Call, History
from tests.faults.proxy import a_proxy
from tests.faults.roles import zygote
from tests.faults.servers import a_server
from tests.faults.worlds import a_world

EXAMPLES = int(os.environ.get("COREVO_MACHINE_EXAMPLES", "2"))
STEPS = int(os.environ.get("COREVO_MACHINE_STEPS", "8"))

Work = Callable[[], Awaitable[Any]]


class Fleet(RuleBasedStateMachine):
    """Real processes and a Postgres of their own; one task holds them, and does what the rules say."""

    history: History
    life: Life

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.wanted: asyncio.Queue[tuple[Work, asyncio.Future[Any]] | None] = asyncio.Queue()
        self.holder: asyncio.Task[None] | None = None
        self.calls: list[Call] = []
        self.struck = 0

    @initialize(seed=st.integers(0, 10**6))
    def begin(self, seed: int) -> None:
        print("seed", seed)

        async def start() -> None:
            ready = asyncio.Event()
            self.holder = asyncio.create_task(self._hold(seed, ready))
            waiting = asyncio.create_task(ready.wait())
            await asyncio.wait([self.holder, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if self.holder.done():
                self.holder.result()

        self.loop.run_until_complete(start())
        self._do(lambda: asyncio.gather(self.life.start_worker(), self.life.start_worker()))

    @rule(
        agent=st.sampled_from(AGENTS),
        same_thread=st.booleans(),
        on_busy=st.sampled_from(["enqueue", "replace", "join"]),
    )
    def submit(self, agent: str, same_thread: bool, on_busy: str) -> None:
        text = {"echo": "hello", "blocks-sleep": "0.3", "waits": "x"}.get(agent, "12")
        threads = [call.thread_id for call in self.calls if call.thread_id]
        line: dict[str, Any] = {"thread_id": threads[-1], "on_busy": on_busy} if same_thread and threads else {}
        call = self._do(lambda: self.history.submit(agent, text, **line))
        if call.outcome == "ok" and call.job_id:
            self.calls.append(call)
            self._do(lambda: self._follow(call.job_id))

    @precondition(lambda self: self.calls)
    @rule(number=st.integers(0, 100))
    def cancel(self, number: int) -> None:
        job_id = self.calls[number % len(self.calls)].job_id
        self._do(lambda: self.history.cancel(str(job_id)))

    @rule(name=st.sampled_from(sorted(FAULTS)))
    def strike(self, name: str) -> None:
        self.life.report.faults.append(name)
        self._do(lambda: FAULTS[name][1](self.life))
        self.struck += 1

    @rule(seconds=st.floats(0.05, 0.4))
    def let_time_pass(self, seconds: float) -> None:
        self._do(lambda: asyncio.sleep(seconds))

    def teardown(self) -> None:
        try:
            if self.holder is not None and not self.holder.done():
                self._do(self._end)
        finally:
            if self.holder is not None and not self.holder.done():
                self.wanted.put_nowait(None)
                self.loop.run_until_complete(self.holder)
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    # ── in the one task that holds the world ──────────────────────────────────────────────────────────

    def _do(self, work: Work) -> Any:
        async def ask() -> Any:
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self.wanted.put_nowait((work, answer))
            return await answer

        return self.loop.run_until_complete(ask())

    async def _hold(self, seed: int, ready: asyncio.Event) -> None:
        async with (
            a_server() as server,
            zygote() as forks,
            a_world(server, forks, settings=QUICKEST) as world,
            a_proxy(server.socket_path) as proxy,
        ):
            self.history = History(world.dsn, [world.gateway.url], seed, quiet=True)
            self.life = Life(world, random.Random(seed), proxy, [], Report(seed))
            ready.set()
            try:
                while (item := await self.wanted.get()) is not None:
                    work, answer = item
                    try:
                        answer.set_result(await work())
                    except Exception as error:
                        answer.set_exception(error)
            finally:
                for worker in self.life.workers:
                    worker.thaw()
                    worker.kill()
                for worker in self.life.workers:
                    await worker.wait()
                await self.history.close()

    async def _follow(self, job_id: str) -> None:
        self.history.follow(job_id)

    async def _end(self) -> None:
        await heal(self.life)
        await self.history.converge(CONVERGE_SECONDS)
        await self.history.check(TIMES, follow_seconds=CONVERGE_SECONDS)


Fleet.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # a smaller example of a race is another race
    suppress_health_check=list(HealthCheck),
)
TestFleet = Fleet.TestCase
