"""Every command in every state of a job: python -m tests.faults.commands [--slots 3] [--only WORDS] [--seed N]

A cell: a job is brought into a state, its owner is left alive, killed or frozen, and then a cancel, an input or an
answer is sent over a gateway. What the command and the job end as is compared with what must be; a frozen owner is
thawed afterwards and must change nothing. The table stands in README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.faults.roles import Role, zygote
from tests.faults.servers import a_server
from tests.faults.worlds import TIMINGS, TTL_SECONDS, World, a_world
from tests.invariants import violations
from tests.processes import eventually

README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- commands -->\n", "<!-- end of commands -->\n"

COMMANDS = ("cancel", "input", "answer")
#: state → the owners it can have.
STATES = {
    "queued": ("none",),
    "claimed": ("alive", "killed", "frozen"),
    "running": ("alive", "killed", "frozen"),
    "retrying": ("none",),
    "completed": ("none",),
    "lost": ("none",),
}
AGENT = {"cancel": "waits", "input": "listens", "answer": "asks"}


@dataclass(frozen=True)
class Cell:
    command: str
    state: str
    owner: str
    notify: str

    def __str__(self) -> str:
        return f"{self.command} {self.state} {self.owner} notify-{self.notify}"

    @property
    def expected(self) -> tuple[str, str]:
        """The end of the command and of the job."""
        if self.state in ("completed", "lost"):
            return "already_finished", self.state
        gone = self.owner in ("killed", "frozen")
        if self.state == "running" and gone:
            return ("already_finished" if self.command == "cancel" else "returned"), "lost"
        if self.command == "cancel":
            return "done", "cancelled"
        if self.command == "answer" and self.state != "running":
            return "returned", "cancelled"  # to a question that nobody has asked; the run is stopped afterwards
        return "done", "completed"


@dataclass
class Outcome:
    cell: Cell
    command: str
    job: str
    seconds: float
    failure: str = ""


def cells() -> Iterator[Cell]:
    for state, owners in STATES.items():
        for owner, command, notify in itertools.product(owners, COMMANDS, ("on", "off")):
            yield Cell(command, state, owner, notify)


class Case:
    """One cell under way."""

    def __init__(self, world: World, cell: Cell, http: httpx.AsyncClient) -> None:
        self.world = world
        self.cell = cell
        self.http = http
        self.roles: list[Role] = []
        self.job = ""
        self.owner: Role | None = None

    async def run(self) -> tuple[str, str]:
        await getattr(self, f"make_{self.cell.state}")()
        path, body = self.cell.command, await self.body()
        answer = await self.http.post(f"/api/jobs/{self.job}/{path}", json=body)
        assert answer.status_code == 202, answer.text
        command = answer.json()["command"]["id"]
        if self.cell.state == "claimed" and self.cell.owner == "alive":
            assert self.owner is not None
            self.owner.thaw()  # well within its TTL: it only was slow between claim and start
        if self.cell.expected[1] == "completed" or self.cell.command == "answer":
            await self.worker()
        end = await eventually(lambda: self.ended(command), seconds=20, what="the end of the command")
        if self.cell.command == "answer" and self.cell.expected == ("returned", "cancelled"):
            await self.http.post(f"/api/jobs/{self.job}/cancel")
        state = await eventually(self.job_ended, seconds=20, what="the end of the job")
        if self.cell.owner == "frozen" and self.owner is not None:
            before = await self.stored()
            self.owner.thaw()
            await asyncio.sleep(TTL_SECONDS)
            assert await self.stored() == before, "a thawed owner changed something"
        return end, state

    async def body(self) -> dict[str, str]:
        if self.cell.command == "input":
            return {"text": "more"}
        if self.cell.command == "cancel":
            return {}
        events = (await self.http.get(f"/api/jobs/{self.job}/events")).json()["items"]
        asked = [e["data"]["question_id"] for e in events if e["type"] == "input.requested"]
        return {"question_id": asked[0] if asked else "none", "answer": "blue"}

    # ── the states ────────────────────────────────────────────────────────────────────────────────────

    async def make_queued(self) -> None:
        await self.submit(AGENT[self.cell.command])

    async def make_claimed(self) -> None:
        self.owner = await self.worker(
            plans=["kill@before:start" if self.cell.owner == "killed" else "stop@before:start"]
        )
        await self.submit(AGENT[self.cell.command])
        await self.owner.until_reached()
        row = (await self.world.sql("select worker_id, execution_id from corevo.jobs where id = $1", self.job))[0]
        assert row["worker_id"] is not None and row["execution_id"] is None, "the state was not reached"

    async def make_running(self) -> None:
        self.owner = await self.worker()
        await self.submit(AGENT[self.cell.command])
        await eventually(self.speaks, what="a run that goes on")
        if self.cell.owner == "killed":
            self.owner.kill()
            await self.owner.wait()
        elif self.cell.owner == "frozen":
            self.owner.freeze()

    async def make_retrying(self) -> None:
        first = await self.worker()
        await self.submit("fails-then-listens")
        await eventually(self.failed_once, every=0.01, what="the first failure")
        first.kill()  # nobody takes the second attempt before the command is there
        await first.wait()

    async def make_completed(self) -> None:
        await self.worker()
        await self.submit("echo")
        await eventually(self.job_ended)

    async def make_lost(self) -> None:
        worker = await self.worker()
        await self.submit("waits")
        await eventually(self.speaks)
        worker.kill()
        await worker.wait()
        await eventually(self.job_ended)

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────

    async def worker(self, plans: list[str] | None = None) -> Role:
        role = await self.world.worker(plans=plans or [], settings={"COREVO_NOTIFY": self.cell.notify})
        self.roles.append(role)
        return role

    async def submit(self, agent: str) -> None:
        answer = await self.http.post("/api/jobs", json={"text": "x", "agent": agent})
        assert answer.status_code == 202, answer.text
        self.job = answer.json()["job"]["id"]

    async def stored(self) -> list[dict[str, Any]]:
        return await self.world.sql(
            "select j.state, x.epoch, x.outcome,"
            " (select count(*) from corevo.events e where e.execution_id = x.id) as events,"
            " (select array_agg(c.state order by c.id) from corevo.commands c where c.job_id = j.id) as commands"
            " from corevo.jobs j left join corevo.executions x on x.job_id = j.id"
            " where j.id = $1 order by x.epoch",
            self.job,
        )

    async def speaks(self) -> bool:
        events = (await self.http.get(f"/api/jobs/{self.job}/events")).json()["items"]
        return any(event["type"] in ("text.delta", "input.requested") for event in events)

    async def failed_once(self) -> bool:
        job = (await self.http.get(f"/api/jobs/{self.job}")).json()
        return bool(job["state"] == "queued" and job["epoch"] == 1)

    async def job_ended(self) -> str:
        job = (await self.http.get(f"/api/jobs/{self.job}")).json()
        return str(job["state"]) if job["finished_at"] else ""

    async def ended(self, command: str) -> str:
        found = (await self.http.get(f"/api/jobs/{self.job}/commands/{command}")).json()
        return str(found["state"]) if found["done_at"] else ""


async def run_cell(world: World, janitor: Role, cell: Cell) -> Outcome:
    began = time.monotonic()
    async with httpx.AsyncClient(base_url=world.gateway.url, timeout=20) as http:
        case = Case(world, cell, http)
        command = job = "?"
        failure = ""
        try:
            command, job = await case.run()
            if (command, job) != cell.expected:
                failure = f"expected {cell.expected}"
            found = await violations(world.dsn, limit=20, **TIMINGS)
            if found:
                failure += f" {found}"
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        finally:
            for role in case.roles:
                role.thaw()
                role.kill()
                await role.wait()
    return Outcome(cell, command, job, time.monotonic() - began, failure)


async def run_cells(chosen: list[Cell], *, slots: int, tell: Any = None) -> list[Outcome]:
    waiting = list(chosen)
    outcomes: list[Outcome] = []

    async def slot() -> None:
        async with a_server() as server, zygote() as forks, a_world(server, forks) as world:
            janitor = await world.janitor()
            try:
                while waiting:
                    outcome = await run_cell(world, janitor, waiting.pop(0))
                    outcomes.append(outcome)
                    if tell is not None:
                        tell(outcome, len(outcomes), len(chosen))
            finally:
                await janitor.stop()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(slots, len(chosen))):
            group.create_task(slot())
    return outcomes


def table(outcomes: list[Outcome]) -> str:
    by_cell = {outcome.cell: outcome for outcome in outcomes}
    heads = [f"{command}, NOTIFY {notify}" for command in COMMANDS for notify in ("on", "off")]
    lines = ["| job, owner | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for state, owners in STATES.items():
        for owner in owners:
            row = []
            for command, notify in itertools.product(COMMANDS, ("on", "off")):
                outcome = by_cell.get(Cell(command, state, owner, notify))
                if outcome is None:
                    row.append("–")
                else:
                    row.append(f"{outcome.command}, job {outcome.job}" + (" **WRONG**" if outcome.failure else ""))
            lines.append(f"| {state}" + ("" if owner == "none" else f", {owner}") + " | " + " | ".join(row) + " |")
    good = sum(not outcome.failure for outcome in outcomes)
    lines += ["", f"{len(outcomes)} cells run, {good} ended as expected, with every invariant checked after each."]
    return "\n".join(lines) + "\n"


def write(outcomes: list[Outcome]) -> None:
    text = README.read_text("utf-8")
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    README.write_text(head + BEGIN + "\n" + table(outcomes) + "\n" + END + tail, "utf-8")


def show(outcome: Outcome, done: int, total: int) -> None:
    mark = "WRONG" if outcome.failure else "ok"
    line = f"{done:3d}/{total} {mark:5} {outcome.cell!s:45} {outcome.command}, job {outcome.job} {outcome.failure}"
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.commands", description="Every command in every state."
    )
    parser.add_argument("--slots", type=int, default=3, help="worlds side by side")
    parser.add_argument("--only", default="", help="cells whose name has these words; README.md stays as it is")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    chosen = [cell for cell in cells() if options.only in str(cell)]
    random.Random(options.seed).shuffle(chosen)
    began = time.monotonic()
    outcomes = asyncio.run(run_cells(chosen, slots=options.slots, tell=show))
    wrong = [outcome for outcome in outcomes if outcome.failure]
    if not options.only:
        write(outcomes)
    print(f"\n{len(outcomes)} cells, {len(wrong)} wrong, {time.monotonic() - began:.0f} s, seed {options.seed}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
