"""Who gets a job when two want it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from uuid import UUID, uuid4

from tests.concurrency.holding import held
from tests.protocol import Protocol

ROUNDS = 1000
OVERLAPS = 100  # of them at least so many with both calls inside the server at one time
MOST_ROUNDS = 20_000

# began and ended are the server's times, inside the statement: two calls that overlap in them ran at once
TIMED_CLAIM = """
create function public.timed_claim(p_worker uuid, out began timestamptz, out ended timestamptz, out job uuid)
language plpgsql as $$
begin
  began := clock_timestamp();
  select c.job_id into job from corevo.claim(p_worker, gen_random_uuid(), '{demo}', 'normal', 1) c;
  ended := clock_timestamp();
end $$"""


async def test_two_connections_claim_a_thousand_jobs_and_each_job_goes_to_exactly_one(
    connections: list[Protocol], account: UUID
) -> None:
    clients = connections[:2]
    host = connections[2]
    workers = [await host.worker() for _ in clients]
    await host.connection.execute(TIMED_CLAIM)
    wins: Counter[int] = Counter()
    overlaps = rounds = 0
    while rounds < ROUNDS or overlaps < OVERLAPS:
        assert rounds < MOST_ROUNDS, f"only {overlaps} of {rounds} rounds overlapped"
        job = (await host.admit(account, str(rounds)))["job_id"]
        order = (0, 1) if rounds % 2 else (1, 0)
        rows = await asyncio.gather(
            *(clients[i].row("select * from public.timed_claim($1)", workers[i]) for i in order)
        )
        got = [(i, row["job"]) for i, row in zip(order, rows, strict=True) if row["job"]]
        assert [j for _, j in got] == [job], f"round {rounds}"
        wins[got[0][0]] += 1
        overlaps += max(r["began"] for r in rows) < min(r["ended"] for r in rows)
        rounds += 1
    assert min(wins[0], wins[1]) > 0, wins
    owned = await host.all("select worker_id, count(*), max(epoch) from corevo.jobs group by worker_id")
    assert {r[0]: r[1] for r in owned} == {workers[i]: wins[i] for i in wins}
    assert {r[2] for r in owned} == {1}


async def test_a_held_claim_makes_the_other_take_the_next_job_at_once(
    connections: list[Protocol], account: UUID, worker: UUID
) -> None:
    one, two = connections[:2]
    jobs = [(await one.admit(account, str(n)))["job_id"] for n in range(3)]
    async with one.connection.transaction():
        (first,) = await one.claim(worker)
        began = time.monotonic()
        rest = await two.claim(worker, 9)
        assert time.monotonic() - began < 2
    assert [first.job, *(c.job for c in rest)] == jobs


async def test_one_request_sent_twice_at_once_takes_once(
    connections: list[Protocol], account: UUID, worker: UUID
) -> None:
    one, two = connections[:2]
    for n in range(4):
        await one.admit(account, str(n))
    request = uuid4()
    async with held(connections) as meeting:
        first = await one.claim(worker, 2, request=request)
        task = await meeting.waits(two.claim(worker, 2, request=request))
    assert sorted(task.result(), key=str) == sorted(first, key=str)
    assert await one.value("select count(*) from corevo.jobs where worker_id is not null") == 2


async def test_many_claims_of_many_workers_give_no_job_twice(connections: list[Protocol], account: UUID) -> None:
    host = connections[0]
    workers = [await host.worker() for _ in connections]
    for n in range(200):
        await host.admit(account, str(n))

    async def drain(client: Protocol, worker: UUID) -> list[UUID]:
        taken: list[UUID] = []
        while claims := await client.claim(worker, 3):
            taken += [c.job for c in claims]
        return taken

    taken = await asyncio.gather(*(drain(c, w) for c, w in zip(connections, workers, strict=True)))
    flat = [job for some in taken for job in some]
    assert (len(flat), len(set(flat))) == (200, 200)
