"""Every fault at every point: python -m tests.faults.matrix [--slots 3] [--only WORDS] [--seed N]

A cell: a client sends a job and follows it over a gateway, a worker meets the fault at its point, and with the fault
healed (the process killed for good, or thawed after three TTLs, the network whole, the server back) what people see is
compared with what must be. Then the same process, if it lives, has to run one more job. The table stands in README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.faults.history import History
from tests.faults.proxy import Link, Proxy, blackhole, reset
from tests.faults.roles import Role, zygote
from tests.faults.servers import a_server
from tests.faults.worlds import TIMINGS, TTL_SECONDS, World, a_world

README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- matrix -->\n", "<!-- end of matrix -->\n"
WORDS = 25
SECONDS = 60.0

#: name → where the plan's trigger sits. A beat counts once the job has said something.
POINTS = {
    "register": "register_worker#1",
    "claim": "claim#1/claim",
    "read": "read_claims#1",
    "start": "start#1",
    "first append": "append_events#1",
    "append": "append_events#5",
    "finish": "finish#1",
    "beat": "beat#1/append_events",
}
FAULTS = (
    "SIGKILL",
    "SIGSTOP",
    "SIGKILL, NOTIFY off",
    "black hole",
    "reset",
    "delay",
    "fast restart",
    "immediate restart",
    "read-only",
)
REASONS = {
    ("delay", "after"): "a late answer is the same as a late request: the cell `before` waits for both",
}


@dataclass(frozen=True)
class Cell:
    fault: str
    when: str
    point: str

    def __str__(self) -> str:
        return f"{self.fault} {self.when} {self.point}"

    @property
    def reason(self) -> str | None:
        """Why it cannot apply."""
        return REASONS.get((self.fault, self.when))

    @property
    def expected(self) -> tuple[str, ...]:
        """The states that the job may end in."""
        if not self.fault.startswith(("SIGKILL", "SIGSTOP")):
            return ("completed",)
        started = self.point in ("first append", "append", "finish", "beat")
        started = started or (self.point, self.when) == ("start", "after")
        ended = (self.point, self.when) == ("finish", "after")
        return ("lost",) if started and not ended else ("completed",)

    @property
    def epochs(self) -> tuple[int, ...]:
        """Of the execution that ended. A claim that was lost before its start is claimed again; a worker that lives
        may have to give it back itself, when it was suspended or its call's answer was lost.
        """
        before_start = (
            (self.point == "claim" and self.when == "after")
            or self.point == "read"
            or (self.point == "start" and self.when == "before")
        )
        if self.fault.startswith(("SIGKILL", "SIGSTOP")):
            return (2,) if before_start else (1,)
        return (1, 2) if before_start or self.point in ("claim", "start") else (1,)


@dataclass
class Outcome:
    cell: Cell
    state: str
    seconds: float  # from the fault to the end of the job
    violations: int = 0
    failure: str = ""

    @property
    def good(self) -> bool:
        return not self.failure


def cells() -> Iterator[Cell]:
    for point in POINTS:
        for when in ("before", "after"):
            for fault in FAULTS:
                yield Cell(fault, when, point)


async def run_cell(world: World, cell: Cell, seed: int) -> Outcome:
    history = world.history(f"{seed} ({cell})")
    roles: list[Role] = []
    try:
        async with AsyncExitStack() as stack:
            outcome = await _run(world, cell, history, roles, stack)
            for role in roles:
                await role.stop()
            await history.check(TIMINGS)
            return outcome
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError):
            raise
        state = "?"
        logs = "\n".join(f"--- {role.pid}\n{role.output[-2500:]}" for role in roles)
        return Outcome(
            cell, state, 0.0, int("violat" in str(error).lower()), f"{type(error).__name__}: {error}\n{logs}"
        )
    finally:
        for role in roles:
            role.thaw()
            role.kill()
            await role.wait()
        await history.close()
        await world.sql("delete from corevo.duties")


async def _run(world: World, cell: Cell, history: History, roles: list[Role], stack: AsyncExitStack) -> Outcome:
    submitted = await history.submit("paced", str(WORDS))
    assert submitted.outcome == "ok", submitted
    history.follow(submitted.job_id or "")
    plan = f"{cell.when}:{POINTS[cell.point]}"
    by_signal = cell.fault.startswith(("SIGKILL", "SIGSTOP"))
    quiet = {"COREVO_NOTIFY": "off" if cell.fault.endswith("NOTIFY off") else "on"}
    if by_signal:
        name = "kill" if cell.fault.startswith("SIGKILL") else "stop"
        # the claim that counts is the one that finds the job: the first
        victim = await world.worker(plans=(f"{name}@{plan.removesuffix('/claim')}",), ready=False, settings=quiet)
        roles.append(victim)
        await victim.until_reached()
        began = time.monotonic()
        if name == "kill":
            assert await victim.wait() == -9
        else:
            await victim.until_frozen()
        rescuer = await world.worker(settings=quiet)
        roles.append(rescuer)
        state = await history.until_ended(submitted.job_id, SECONDS)
        seconds = time.monotonic() - began
        if name == "stop":
            await asyncio.sleep(max(0.0, began + 3 * TTL_SECONDS - time.monotonic()))
            before = await history.stored(submitted.job_id or "")
            await rescuer.stop()
            victim.thaw()
            await _works(history, victim)
            assert await history.stored(submitted.job_id or "") == before, "a zombie wrote"
    else:
        proxy = await stack.enter_async_context(world.proxy())
        fault = _Fault(world, proxy, cell)
        rule = proxy.add(f"proxy@{plan.removesuffix('/claim')}", fault)
        victim = await world.worker(database=proxy.dsn(world.dsn), ready=False)
        roles.append(victim)
        await asyncio.wait_for(rule.reached.wait(), 20)
        began = time.monotonic()
        state = await history.until_ended(submitted.job_id, SECONDS)
        seconds = time.monotonic() - began
        early = not fault.healed.is_set()
        await fault.healed.wait()
        if cell.fault == "read-only" and (cell.point, cell.when) != ("finish", "after"):
            assert not early, "the job ended while nothing could be written: the fault was not reached"
        await _works(history, victim)
    assert state in cell.expected, f"ended {state}, expected {cell.expected}"
    jobs = await world.sql("select epoch, attempts, execution_id from corevo.jobs where id = $1", submitted.job_id)
    assert jobs[0]["epoch"] in cell.epochs and jobs[0]["attempts"] == 1, jobs
    return Outcome(cell, state, seconds)


class _Fault:
    """What the network or the server does at the point. Healed by itself."""

    def __init__(self, world: World, proxy: Proxy, cell: Cell) -> None:
        self.healed = asyncio.Event()
        self._world = world
        self._proxy = proxy
        self._cell = cell

    async def __call__(self, link: Link) -> None:
        server = self._world.server
        match self._cell.fault:
            case "black hole":
                await blackhole(link)
            case "reset":
                await reset(link)
            case "delay":
                await asyncio.sleep(TTL_SECONDS / 2)
            case "fast restart" | "immediate restart":
                await server.restart("fast" if self._cell.fault.startswith("fast") else "immediate")
            case "read-only":
                await server.set(default_transaction_read_only="on")
                asyncio.get_running_loop().create_task(self._writable())
                return
            case unknown:
                raise AssertionError(unknown)
        self.healed.set()

    async def _writable(self) -> None:
        await asyncio.sleep(2 * TTL_SECONDS)
        await self._world.server.set(default_transaction_read_only=None)
        self.healed.set()


async def _works(history: History, worker: Role) -> None:
    """The process that met the fault serves again."""
    assert worker.returncode is None, worker.output
    submitted = await history.submit("echo", "again", again=20)
    assert await history.until_ended(submitted.job_id, SECONDS) == "completed"


# ── many of them ──────────────────────────────────────────────────────────────────────────────────────────


async def run_cells(
    chosen: list[Cell], *, slots: int, seed: int, tell: Callable[[Outcome, int, int], None] | None = None
) -> list[Outcome]:
    """In `slots` worlds side by side, each with a Postgres of its own."""
    waiting = list(chosen)
    outcomes: list[Outcome] = []

    async def slot() -> None:
        async with a_server() as server, zygote() as forks, a_world(server, forks) as world:
            while waiting:
                cell = waiting.pop(0)
                outcome = await run_cell(world, cell, seed)
                outcomes.append(outcome)
                if tell is not None:
                    tell(outcome, len(outcomes), len(chosen))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(slots, len(chosen))):
            group.create_task(slot())
    return outcomes


def table(outcomes: list[Outcome]) -> str:
    by_cell = {outcome.cell: outcome for outcome in outcomes}
    lines = ["| point | " + " | ".join(FAULTS) + " |", "|---" * (len(FAULTS) + 1) + "|"]
    for point in POINTS:
        for when in ("before", "after"):
            row = []
            for fault in FAULTS:
                cell = Cell(fault, when, point)
                outcome = by_cell.get(cell)
                if outcome is None:
                    row.append("–")
                elif outcome.good:
                    row.append(f"{outcome.state} {outcome.seconds:.1f} s")
                else:
                    row.append(f"**{outcome.state}** (expected {'/'.join(cell.expected)})")
            lines.append(f"| {when} {point} | " + " | ".join(row) + " |")
    ran = outcomes
    skipped = [cell for cell in cells() if cell.reason]
    lines += [
        "",
        f"{len(ran)} cells run, {sum(o.good for o in ran)} ended in the expected state, the one shown, with every "
        f"invariant and the client's history checked after each; {sum(o.violations for o in ran)} violations. "
        f"Slowest {max((o.seconds for o in ran), default=0):.1f} s from the fault to the end of the job.",
        "",
        f"{len(skipped)} cells cannot apply:",
        "",
        *(f"- {fault} {when} any point: {reason}" for (fault, when), reason in REASONS.items()),
    ]
    return "\n".join(lines) + "\n"


def write(outcomes: list[Outcome]) -> None:
    text = README.read_text("utf-8")
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    README.write_text(head + BEGIN + "\n" + table(outcomes) + "\n" + END + tail, "utf-8")


def show(outcome: Outcome, done: int, total: int) -> None:
    terminal = sys.stderr.isatty()
    mark = "ok" if outcome.good else "WRONG"
    bar = "#" * (20 * done // total)
    line = f"[{bar:.<20}] {done:3d}/{total}  {mark:5} {outcome.cell!s:45} {outcome.state} {outcome.seconds:5.1f} s"
    print(("\r\x1b[K" if terminal and outcome.good else "") + line, end="" if terminal and outcome.good else "\n",
          file=sys.stderr, flush=True)  # fmt: skip
    if not outcome.good:
        print(outcome.failure, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.matrix", description="Every fault at every point.")
    parser.add_argument("--slots", type=int, default=3, help="worlds side by side")
    parser.add_argument("--only", default="", help="cells whose name has these words; README.md stays as it is")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    chosen = [cell for cell in cells() if not cell.reason and options.only in str(cell)]
    random.Random(options.seed).shuffle(chosen)
    began = time.monotonic()
    outcomes = asyncio.run(run_cells(chosen, slots=options.slots, seed=options.seed, tell=show))
    wrong = [outcome for outcome in outcomes if not outcome.good]
    if not options.only:
        write(outcomes)
    print(f"\n{len(outcomes)} cells, {len(wrong)} wrong, {time.monotonic() - began:.0f} s, seed {options.seed}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
