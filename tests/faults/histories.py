"""Seeded random histories: python -m tests.faults.histories --count 500

Each is a second or two in the life of a database with two gateways and two workers or more: clients submit, send again,
cancel, follow and come back, while faults from a list strike at random moments. Then everything is healed, and
everything must end, with every invariant and every client's history right. Histories of one slot share a Postgres, and
ten of them a database and its gateways; each has workers, a proxy and jobs of its own. A seed decides who does what and
when, not how it interleaves.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.faults.history import History
from tests.faults.proxy import Link, Proxy, a_proxy
from tests.faults.roles import Role, Zygote, zygote
from tests.faults.servers import Server, a_server, clock_at, notify_as
from tests.faults.worlds import APP, TTL_SECONDS, World, a_world

QUICKEST = {
    "COREVO_HEARTBEAT_SECONDS": "0.2",
    "COREVO_HEARTBEAT_TTL_SECONDS": "0.8",
    "COREVO_JANITOR_SECONDS": "0.2",
    "COREVO_POLL_SECONDS": "0.5",
}
TIMES = {"ttl_seconds": 0.8, "stall_limit_seconds": 60.0, "period_seconds": 0.2}
LIFE_SECONDS = 1.2
CONVERGE_SECONDS = 40.0
AGENTS = ("paced", "paced", "echo", "waits", "safe", "blocks-sleep")


@dataclass
class Report:
    seed: int
    faults: list[str] = field(default_factory=list)
    states: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    resets: int = 0
    seconds: float = 0.0
    failure: str = ""


@dataclass
class Life:
    """What faults may do something to."""

    world: World
    rng: random.Random
    proxy: Proxy
    workers: list[Role]
    report: Report

    async def start_worker(self) -> None:
        """Sometimes through the proxy, sometimes with a plan to harm itself."""
        dsn = self.proxy.dsn(self.world.dsn) if self.rng.random() < 0.7 else self.world.dsn
        plans: list[str] = []
        if self.rng.random() < 0.35:
            fault, when = self.rng.choice(("kill", "stop")), self.rng.choice(("before", "after"))
            plan = f"{fault}@{when}:*#{self.rng.randint(6, 40)}"
            plans.append(plan)
            self.report.faults.append(f"planned {plan}")
        notify = "off" if self.rng.random() < 0.2 else "on"
        options = ("--places", str(self.rng.randint(1, 4)))
        worker = await self.world.worker(
            database=dsn, plans=plans, ready=False, settings={"COREVO_NOTIFY": notify}, options=options
        )
        self.workers.append(worker)

    @property
    def living(self) -> list[Role]:
        return [worker for worker in self.workers if worker.returncode is None]


async def start_solo(life: Life, urls: list[str]) -> None:
    """A gateway with a worker of its own: what is sent there may be claimed in its admission."""
    dsn = life.proxy.dsn(life.world.dsn) if life.rng.random() < 0.7 else life.world.dsn
    solo = await life.world.forks.spawn(dsn, "solo", APP, "--port", "0", settings=QUICKEST)
    life.workers.append(solo)
    urls.append(solo.url)


async def kill(life: Life) -> None:
    if life.living:
        life.rng.choice(life.living).kill()


async def freeze(life: Life) -> None:
    if life.living:
        worker = life.rng.choice(life.living)
        worker.freeze()
        await asyncio.sleep(life.rng.choice((0.1, 0.5, 1.0, 2.0)) * TTL_SECONDS)
        worker.thaw()


async def more(life: Life) -> None:
    await life.start_worker()


async def drain(life: Life) -> None:
    if life.living:
        import signal

        life.rng.choice(life.living).signal(signal.SIGTERM)


def _harm(do: Callable[[Link], None]) -> Callable[[Life], Awaitable[None]]:
    async def fault(life: Life) -> None:
        life.proxy.harm(do, pulse=life.rng.choice((True, False, None)))

    return fault


async def lose_replies(life: Life) -> None:
    """The next few answers of one function do not come back."""
    point = life.rng.choice(("claim", "start", "append_events", "finish", "beat", "release"))

    async def reset(link: Link) -> None:
        link.reset()

    life.proxy.add(f"reset@after:{point}", reset)


async def slow(life: Life) -> None:
    life.proxy.delay_seconds = life.rng.uniform(0.01, 0.1)
    await asyncio.sleep(life.rng.uniform(0.1, 0.5))
    life.proxy.delay_seconds = 0.0


async def refuse(life: Life) -> None:
    life.proxy.refuse = True
    life.proxy.harm(lambda link: link.reset())
    await asyncio.sleep(life.rng.uniform(0.1, 1.5) * TTL_SECONDS)
    life.proxy.refuse = False


async def restart(life: Life) -> None:
    await life.world.server.restart(life.rng.choice(("fast", "immediate")), away_seconds=life.rng.choice((0, 0, 0.5)))


async def read_only(life: Life) -> None:
    await life.world.server.set(default_transaction_read_only="on")
    await asyncio.sleep(life.rng.uniform(0.1, 1.0))
    await life.world.server.set(default_transaction_read_only=None)


async def end_sessions(life: Life) -> None:
    await life.world.server.end_sessions(life.rng.choice(("corevo%", "corevo pulse", "corevo worker", "corevo web")))


async def silence(life: Life) -> None:
    await notify_as(life.world.dsn, life.rng.choice(("off", "doubled", "one lost")))


async def step_clock(life: Life) -> None:
    """As a time server does it."""
    await clock_at(life.world.dsn, life.rng.choice(("0.7 seconds", "-0.7 seconds", "0 seconds")))


async def hold_snapshot(life: Life) -> None:
    import asyncpg

    connection = await asyncpg.connect(life.world.dsn)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.fetchval("select count(*) from corevo.jobs")
            await asyncio.sleep(life.rng.uniform(0.2, 1.0))
    finally:
        await connection.close()


FAULTS: dict[str, tuple[float, Callable[[Life], Awaitable[None]]]] = {
    "kill": (4, kill),
    "freeze": (4, freeze),
    "start another": (3, more),
    "drain": (2, drain),
    "reset connections": (3, _harm(lambda link: link.reset())),
    "black-hole connections": (1, _harm(lambda link: link.blackhole())),
    "deafen connections": (1, _harm(lambda link: link.deafen())),
    "lose replies": (4, lose_replies),
    "slow network": (2, slow),
    "refuse connections": (2, refuse),
    "restart": (2, restart),
    "read-only": (1, read_only),
    "end sessions": (3, end_sessions),
    "notify": (1, silence),
    "old snapshot": (1, hold_snapshot),
    "clock": (1, step_clock),
}


async def one(world: World, urls: list[str], seed: int) -> Report:
    rng = random.Random(seed)
    report = Report(seed)
    began = time.monotonic()
    history = History(world.dsn, urls, seed, quiet=True)  # a solo may join the gateways
    async with a_proxy(world.server.socket_path) as proxy:
        life = Life(world, rng, proxy, [], report)
        try:
            await asyncio.gather(life.start_worker(), life.start_worker())
            if rng.random() < 0.3:
                await start_solo(life, urls)
            async with asyncio.TaskGroup() as group:
                for number in range(rng.randint(1, 3)):
                    group.create_task(_client(history, random.Random(f"{seed}-{number}")))
                group.create_task(_harm_it(life))
            await heal(life)
            states = await history.converge(CONVERGE_SECONDS)
            report.states.update(states.values())
            await history.check(TIMES, follow_seconds=CONVERGE_SECONDS)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                raise
            parts = error.exceptions if isinstance(error, BaseExceptionGroup) else (error,)
            words = "\n".join(f"{type(part).__name__}: {part}" for part in parts)
            logs = "\n".join(f"--- {worker.pid}\n{worker.output[-2500:]}" for worker in life.workers)
            report.failure = f"seed {seed}, faults {report.faults}\n{words}\n{logs}"
        finally:
            for worker in life.workers:
                worker.thaw()
                worker.kill()
            for worker in life.workers:
                await worker.wait()
            await history.close()
    report.calls.update(f"{call.kind} {call.outcome}" for call in history.calls)
    report.resets = sum(follower.resets for follower in history.followers)
    report.seconds = time.monotonic() - began
    return report


async def _client(history: History, rng: random.Random) -> None:
    """Submits, sends again, follows, cancels; some jobs in one thread."""
    until = time.monotonic() + LIFE_SECONDS
    threads: list[str] = []
    while time.monotonic() < until:
        agent = rng.choice(AGENTS)
        text = {"echo": "hello", "blocks-sleep": "0.3", "waits": "x"}.get(agent, str(rng.randint(1, 30)))
        line: dict[str, Any] = {}
        if threads and rng.random() < 0.4:
            on_busy = rng.choice(("join", "replace", "enqueue", "enqueue", "reject", "steer"))
            line = {"thread_id": rng.choice(threads[-2:]), "on_busy": on_busy}
        call = await history.submit(agent, text, again=rng.choice((0, 0, 1, 3)), **line)
        if call.outcome == "ok" and call.job_id:
            if call.thread_id not in threads:
                threads.append(str(call.thread_id))
            if rng.random() < 0.5:
                history.follow(call.job_id)
            if rng.random() < 0.15:  # the same thing again: the stored outcome
                again = await history.submit(agent, text, key=call.key, **line)
                assert again.outcome != "ok" or again.job_id == call.job_id
            if agent == "waits" or rng.random() < 0.15:
                await asyncio.sleep(rng.uniform(0, 0.3))
                await history.cancel(call.job_id)
        await asyncio.sleep(rng.uniform(0, 0.25))


async def _harm_it(life: Life) -> None:
    until = time.monotonic() + LIFE_SECONDS
    names = list(FAULTS)
    weights = [FAULTS[name][0] for name in names]
    while time.monotonic() < until:
        await asyncio.sleep(life.rng.uniform(0.0, 0.4))
        (name,) = life.rng.choices(names, weights)
        life.report.faults.append(name)
        await FAULTS[name][1](life)


async def heal(life: Life) -> None:
    """The network is whole, notifications arrive, frozen processes wake up, and one worker is whole. Runs that wait for
    ever are stopped as a person would do it."""
    proxy = life.proxy
    proxy.rules.clear()
    proxy.refuse, proxy.delay_seconds = False, 0.0
    proxy.harm(lambda link: link.reset() if not (link.up and link.down) else None)
    await notify_as(life.world.dsn, "on")
    for worker in life.workers:
        worker.thaw()
    life.workers.append(await life.world.worker(settings={"COREVO_NOTIFY": "on"}))
    rows = await life.world.sql(
        "select id, account_id from corevo.jobs where agent = 'waits' and state in ('queued', 'running')"
    )
    for row in rows:
        await life.world.sql("select command_id from corevo.request_cancel($1, $2)", row["account_id"], row["id"])


# ── many of them ──────────────────────────────────────────────────────────────────────────────────────────


async def run_many(
    count: int, seed: int, *, slots: int = 3, tell: Callable[[Report, int], None] | None = None
) -> list[Report]:
    waiting = list(range(count))
    reports: list[Report] = []

    async def slot() -> None:
        async with a_server() as server, zygote() as forks:
            while waiting:
                await _batch(server, forks, waiting, reports, seed, tell)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(slots, count)):
            group.create_task(slot())
    return reports


async def _batch(
    server: Server,
    forks: Zygote,
    waiting: list[int],
    reports: list[Report],
    seed: int,
    tell: Callable[[Report, int], None] | None,
    size: int = 10,
) -> None:
    """Some histories on one database; a gateway that failed does not fail them all."""
    async with (
        a_world(server, forks, settings=QUICKEST) as world,
        forks.role(world.dsn, "web", "--port", "0", settings={**QUICKEST, "COREVO_NOTIFY": "off"}) as polling,
    ):
        for _ in range(size):
            if not waiting:
                return
            number = waiting.pop(0)
            report = await one(world, [world.gateway.url, polling.url], seed + number)
            if world.gateway.returncode is not None or polling.returncode is not None:
                report.failure += f"\na gateway ended\n{world.gateway.output[-3000:]}\n{polling.output[-3000:]}"
            reports.append(report)
            if tell is not None:
                tell(report, len(reports))
            if report.failure:
                return  # what is left of it shall not fail the next


def describe(reports: list[Report]) -> str:
    faults = Counter(name.split(" ")[0] if name.startswith("planned") else name for r in reports for name in r.faults)
    states: Counter[str] = sum((r.states for r in reports), Counter())
    calls: Counter[str] = sum((r.calls for r in reports), Counter())
    lines = [
        f"{len(reports)} histories, {sum(bool(r.failure) for r in reports)} wrong",
        "faults: " + ", ".join(f"{n} {name}" for name, n in faults.most_common()),
        "calls: " + ", ".join(f"{n} {name}" for name, n in calls.most_common()),
        "states seen at the end: " + ", ".join(f"{n} {name}" for name, n in states.most_common()),
        f"resets seen by viewers: {sum(r.resets for r in reports)}",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.histories", description="Random histories.")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--slots", type=int, default=3, help="servers side by side")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the first; the next is one more")
    options = parser.parse_args()
    began = time.monotonic()
    wrong = 0

    def show(report: Report, done: int) -> None:
        nonlocal wrong
        wrong += bool(report.failure)
        terminal = sys.stderr.isatty()
        if report.failure:
            print(f"\nWRONG {report.failure}\n", file=sys.stderr, flush=True)
        bar = "#" * (20 * done // options.count)
        left = (time.monotonic() - began) / done * (options.count - done)
        line = f"[{bar:.<20}] {done:4d}/{options.count}  {wrong} wrong  seed {report.seed}  {left:4.0f} s left"
        if terminal or done % 10 == 0 or done == options.count:
            print("\r" + line if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)

    reports = asyncio.run(run_many(options.count, options.seed, slots=options.slots, tell=show))
    print(f"\n{describe(reports)}\n{time.monotonic() - began:.0f} s, first seed {options.seed}")
    return 1 if wrong or len(reports) < options.count else 0


if __name__ == "__main__":
    sys.exit(main())
