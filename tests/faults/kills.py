"""How long a job of a killed worker stays unended: python -m tests.faults.kills --count 50

Some workers at once, each with a run, are killed and replaced, again and again, and each time with them the one that is
on duty as janitor.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time

from tests.faults.roles import Role, zygote
from tests.faults.servers import a_server
from tests.faults.worlds import PERIOD_SECONDS, TIMINGS, TTL_SECONDS, World, a_world
from tests.processes import eventually

AT_ONCE = 5
LIMIT_SECONDS = TTL_SECONDS + PERIOD_SECONDS + 1.0


async def measure(world: World, count: int, seed: int) -> list[float]:
    """Seconds from each SIGKILL to the `lost` of its job, by the server's clock, which is this machine's."""
    rng = random.Random(seed)
    history = world.history(seed)
    janitor = await world.janitor()
    found: list[float] = []
    on_duty: set[str] = set()
    try:
        while len(found) < count:
            size = min(AT_ONCE, count - len(found))
            victims = [await world.worker(options=("--places", "1")) for _ in range(size)]
            submitted = await asyncio.gather(*(history.submit("waits", "x") for _ in range(size)))
            ids = [call.job_id for call in submitted]
            await eventually(lambda ids=ids: _all(world, ids, "running"), what="runs in every worker")  # type: ignore[misc]
            heir = await world.janitor()
            (duty,) = await world.sql("select holder::text from corevo.duties where until > now()")
            times: dict[int, float] = {}
            for victim in rng.sample(victims, size):
                await asyncio.sleep(rng.uniform(0, 0.4))
                times[victim.pid] = time.time()
                victim.kill()
                janitor.kill()
            janitor = heir
            on_duty.add(str(duty["holder"]))
            rows = await eventually(lambda ids=ids: _lost(world, ids), seconds=20, what="the end of their jobs")  # type: ignore[misc]
            owners = await _owners(world, victims)
            found += [float(str(rows[job])) - times[pid] for job, pid in owners.items() if job in rows]
            _show(len(found), count, found)
        assert len(on_duty) == -(-count // AT_ONCE), "the duty did not move on each time"
        await history.check(TIMINGS)
    finally:
        await history.close()
        await janitor.stop()
    return found


async def _all(world: World, ids: list[str | None], state: str) -> bool:
    rows = await world.sql(
        "select count(*) as n from corevo.jobs where id = any($1::uuid[]) and state = $2", ids, state
    )
    return rows[0]["n"] == len(ids)


async def _lost(world: World, ids: list[str | None]) -> dict[str, object]:
    rows = await world.sql(
        "select id::text, extract(epoch from finished_at) as at from corevo.jobs "
        "where id = any($1::uuid[]) and state = 'lost'",
        ids,
    )
    return {str(row["id"]): row["at"] for row in rows} if len(rows) == len(ids) else {}


async def _owners(world: World, victims: list[Role]) -> dict[str, int]:
    """Which worker had which job, by the id that each says it began with."""
    rows = await world.sql("select job_id::text as job, worker_id::text as worker from corevo.executions")
    found = {}
    for row in rows:
        for victim in victims:
            if f"worker_id={row['worker']}" in victim.output:
                found[str(row["job"])] = victim.pid
    return found


def _show(done: int, count: int, found: list[float]) -> None:
    print(f"{done:3d}/{count} kills, slowest {max(found):.2f} s", file=sys.stderr, flush=True)


def describe(found: list[float]) -> str:
    return (
        f"{len(found)} kills: median {statistics.median(found):.2f} s, slowest {max(found):.2f} s, "
        f"allowed {LIMIT_SECONDS:.2f} s (TTL {TTL_SECONDS:g} + period {PERIOD_SECONDS:g} + 1)"
    )


async def run(count: int, seed: int) -> list[float]:
    async with a_server() as server, zygote() as forks, a_world(server, forks) as world:
        return await measure(world, count, seed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.kills", description="From SIGKILL to lost.")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    found = asyncio.run(run(options.count, options.seed))
    print(describe(found))
    return 0 if len(found) == options.count and max(found) <= LIMIT_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
