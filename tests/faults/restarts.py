"""Postgres restarted under jobs: python -m tests.faults.restarts --jobs 200 --restarts 10

Fast and immediate in turn, one of the outages three TTLs long. Clients submit, follow over two gateways and read
history all the while. In the end: every id that was answered with 2xx is there, every event that history showed is
there, no job was lost, and a job is picked up as quickly as before.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import sys
import time
from contextlib import suppress

import httpx

from tests.faults.history import History, Row
from tests.faults.roles import Zygote, zygote
from tests.faults.servers import Server, a_server
from tests.faults.worlds import TIMINGS, TTL_SECONDS, World, a_world

CLIENTS = 8
NUMBERS = 15  # what each run says, 20 ms apart
PICK_UPS = 8
SLOWER = 2.0  # how much a pick-up may take after, in units of before, beside a fixed allowance
ALLOWANCE_SECONDS = 0.15


async def under_restarts(server: Server, forks: Zygote, *, count: int, restarts: int, seed: int) -> str:
    rng = random.Random(seed)
    async with (
        a_world(server, forks) as world,
        forks.role(world.dsn, "web", "--port", "0", settings=world.settings) as other,
    ):
        workers = [await world.worker() for _ in range(2)]
        history = History(world.dsn, [world.gateway.url, other.url], seed)
        promised: dict[str, set[Row]] = {}
        try:
            before = await pick_up_seconds(world, history)
            done = asyncio.Event()
            restarted = asyncio.Event()
            clients = [asyncio.create_task(_client(history, rng, count // CLIENTS, restarted)) for _ in range(CLIENTS)]
            reader = asyncio.create_task(_read_history(history, promised, done))
            try:
                await _restart(server, restarts, rng, clients)
                restarted.set()
                submitted = [job for jobs in await asyncio.gather(*clients) for job in jobs]
                states = await history.converge()
            finally:
                done.set()
                for client in clients:
                    client.cancel()
                await reader
            after = await pick_up_seconds(world, history)
            await history.check(TIMINGS)
            for job_id, rows in promised.items():
                assert rows <= set(await history.stored(job_id)), f"history promised events of {job_id} that are gone"
            assert set(submitted) <= set(states), "an id answered with 2xx is gone"
            assert set(states.values()) == {"completed"}, {k: v for k, v in states.items() if v != "completed"}
            allowed = SLOWER * before + ALLOWANCE_SECONDS
            assert after <= allowed, f"a pick-up takes {after:.3f} s after and took {before:.3f} s before"
            seen = sum(len(rows) for rows in promised.values())
            resets = sum(follower.resets for follower in history.followers)
            return (
                f"{len(submitted)} jobs, {restarts} restarts, {len(states)} ended, none lost; {seen} events read in "
                f"history, all there; {resets} resets; pick-up {before * 1000:.0f} ms before, "
                f"{after * 1000:.0f} ms after; "
                f"{history.report()}"
            )
        finally:
            await history.close()
            for worker in workers:
                await worker.stop()


async def _restart(server: Server, restarts: int, rng: random.Random, clients: list[asyncio.Task[list[str]]]) -> None:
    for number in range(restarts):
        await asyncio.sleep(rng.uniform(0.3, 1.0))
        assert not any(client.done() for client in clients), "a client gave up before the last restart"
        away = 3 * TTL_SECONDS if number == restarts // 2 else 0.0
        await server.restart("fast" if number % 2 else "immediate", away_seconds=away)


async def _client(history: History, rng: random.Random, count: int, restarted: asyncio.Event) -> list[str]:
    """Sends one job after another, at least `count` and until the last restart, each until it knows its id; follows
    every third.
    """
    found: list[str] = []
    for number in itertools.count():
        if number >= count and restarted.is_set():
            break
        call = await history.submit("paced", str(NUMBERS), again=100)
        assert call.outcome == "ok" and call.job_id, call
        found.append(call.job_id)
        if number % 3 == 0:
            history.follow(call.job_id)
        await asyncio.sleep(rng.uniform(0.0, 0.3))
    return found


async def _read_history(history: History, promised: dict[str, set[Row]], done: asyncio.Event) -> None:
    """What GET …/events shows counts as promised."""
    async with httpx.AsyncClient(timeout=15) as http:
        while not done.is_set():
            await asyncio.sleep(0.05)
            ids = [call.job_id for call in history.calls if call.job_id][-10:]
            for job_id in ids:
                with suppress(httpx.HTTPError):
                    url = f"{history.urls[0]}/api/jobs/{job_id}/events"
                    answer = await http.get(url, params={"limit": "100"})
                    if answer.status_code == 200:
                        rows = promised.setdefault(str(job_id), set())
                        rows |= {
                            (e["execution_id"], e["seq"], e["type"], json.dumps(e["data"], sort_keys=True))
                            for e in answer.json()["items"]
                        }


async def pick_up_seconds(world: World, history: History) -> float:
    """The median time from a submission to the start, with nothing else to do."""
    ids = []
    for _ in range(PICK_UPS):
        call = await history.submit("echo", "x", again=20)
        await history.until_ended(call.job_id)
        ids.append(call.job_id)
    rows = await world.sql(
        "select extract(epoch from started_at - created_at)::float8 as s from corevo.jobs where id = any($1::uuid[])",
        ids,
    )
    return statistics.median(float(str(row["s"])) for row in rows)


async def _main(options: argparse.Namespace) -> None:
    began = time.monotonic()
    async with a_server() as server, zygote() as forks:
        report = await under_restarts(server, forks, count=options.jobs, restarts=options.restarts, seed=options.seed)
    print(f"{report}; {time.monotonic() - began:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.restarts", description="Restarts under jobs.")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    asyncio.run(_main(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
