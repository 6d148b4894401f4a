"""Hot statements stay cheap however much lies finished beside them: their real plans, as run inside the functions."""

from __future__ import annotations

import re
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.protocol import Protocol, piece

FINISHED, WAITING = 200_000, 2_000

# one account's finished jobs, each with an execution of two events; no foreign key is checked, no trigger runs
FILL = f"""
set local session_replication_role = replica;
insert into corevo.threads (id, account_id, created_at, updated_at, last_turn)
  values ('00000000-0000-0000-0000-00000000000a', '{{account}}', corevo.now(), corevo.now(), {FINISHED});
insert into corevo.jobs (id, account_id, thread_id, turn, agent, lane, input, fingerprint, timeout_seconds,
                         max_attempts, state, ready_at, waiting_since, epoch, token, execution_id,
                         execution_started_at, started_at, attempts, created_at, finished_at)
  select ('10000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, '{{account}}',
         '00000000-0000-0000-0000-00000000000a', n, 'demo', 'normal', '"x"', 'f', 300, 1, 'completed', now(), now(), 1,
         '{{account}}', overlay(corevo.uuid7_floor(now())::text placing lpad(to_hex(n), 12, '0') from 25)::uuid,
         now(), now(), 1, now(), now()
    from generate_series(1, {FINISHED}) n;
insert into corevo.executions (id, job_id, epoch, token, worker_id, started_at, deadline_at, ended_at, outcome)
  select execution_id, id, 1, token, '{{account}}', now(), now(), now(), 'completed' from corevo.jobs;
insert into corevo.events (execution_id, seq, type, data)
  select id, s, case s when 1 then 'run.started' else 'run.completed' end, '{{{{}}}}'
    from corevo.executions, generate_series(1, 2) s
"""
BACKLOG = f"""
set local session_replication_role = replica;
insert into corevo.jobs (id, account_id, thread_id, turn, agent, lane, input, fingerprint, timeout_seconds,
                         max_attempts, state, ready_at, waiting_since, created_at)
  select gen_random_uuid(), '{{account}}', gen_random_uuid(), 1, 'demo', 'normal', '"x"', 'f', 300, 1, 'queued',
         now() - interval '1 s', now(), now()
    from generate_series(1, {WAITING}) n
"""


class Plans:
    """Collects the plans of the statements that run inside functions, from auto_explain."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.logged: list[str] = []

    async def open(self) -> None:
        try:
            await self.protocol.connection.execute(
                "load 'auto_explain'; set auto_explain.log_min_duration = 0; set auto_explain.log_analyze = on;"
                "set auto_explain.log_timing = off; set auto_explain.log_nested_statements = on;"
                "set client_min_messages = log"
            )
        except asyncpg.PostgresError as error:
            pytest.skip(f"this server cannot load auto_explain: {error}")
        self.protocol.connection.add_log_listener(lambda _, message: self.logged.append(str(message.message)))

    def take(self, *words: str) -> str:
        """The plan of the innermost statement with these words; forgets the others."""
        found = [plan for plan in self.logged if all(word in plan for word in words)]
        assert found, f"no plan with {words} in {self.logged}"
        self.logged.clear()
        return found[0]


def rows_read(plan: str) -> int:
    """The most rows that any node gave or threw away."""
    numbers = re.findall(r"actual rows=([\d.]+)", plan) + re.findall(r"Rows Removed by [\w ]+: (\d+)", plan)
    return int(max(float(n) for n in numbers))


EVENTS_KEY = r"Index (Only )?Scan (Backward )?using events_\d+_pkey"
TABLE_SCAN = r"Seq Scan on (jobs|executions|events)"


async def test_hot_statements_use_their_indexes_beside_200_000_finished_jobs(
    raw: Protocol, account: UUID, worker: UUID
) -> None:
    async with raw.connection.transaction():
        await raw.connection.execute(FILL.format(account=account))
    await raw.connection.execute("analyze corevo.jobs, corevo.executions, corevo.events")
    plans = Plans(raw)
    await plans.open()
    for mode in ("force_custom_plan", "force_generic_plan"):
        await raw.value(f"set plan_cache_mode = {mode}")
        for n in range(6):
            await raw.admit(account, str(n))
        run = await raw.running(worker)
        plans.logged.clear()

        assert len(await raw.claim(worker, 2)) == 2
        plan = plans.take("with picked as materialized")
        assert "using jobs_claimable" in plan
        assert not re.search(TABLE_SCAN, plan), plan
        assert rows_read(plan) <= 5, plan

        (row,) = await raw.append(piece(run, 2, "a", "b"))
        assert row["result"] == "stored"
        plan = plans.take("e.seq = r.first_seq - 1")
        assert re.search(EVENTS_KEY, plan), plan
        assert not re.search(f"{TABLE_SCAN}|Hash", plan), plan
        assert rows_read(plan) <= 5, plan

        await raw.all("select * from corevo.read_events($1, 0, 0, 100, 100000)", run.job)
        plan = plans.take("from corevo.events e", "order by e.seq limit v_left")
        assert re.search(EVENTS_KEY, plan), plan
        assert not re.search(TABLE_SCAN, plan), plan
        assert rows_read(plan) <= 5, plan

        await raw.all("select * from corevo.stream_heads($1)", [run.job, uuid4()])
        plan = plans.take("executions_job_id_epoch_key")
        assert re.search(EVENTS_KEY, plan), plan
        assert not re.search(TABLE_SCAN, plan), plan
        assert rows_read(plan) <= 5, plan

        for call in (
            raw.beat(worker),
            raw.all("select * from corevo.jobs_to_sweep(20, 10)"),
            raw.all("select * from corevo.jobs_to_expire(60, 10)"),
            raw.cancel(account, run.job),
            raw.finish(piece(run, 4)),
        ):
            await call
        every = "\n".join(plans.logged)
        assert not re.search(TABLE_SCAN, every), every

    # the plan that was cached while little waited, on a backlog that no analyze has seen
    async with raw.connection.transaction():
        await raw.connection.execute(BACKLOG.format(account=account))
    for mode in ("auto", "force_generic_plan"):
        await raw.value(f"set plan_cache_mode = {mode}")
        plans.logged.clear()
        assert len(await raw.claim(worker, 2)) == 2
        plan = plans.take("with picked as materialized")
        assert "using jobs_claimable" in plan
        assert rows_read(plan) <= 5, plan
