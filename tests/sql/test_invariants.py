"""Every invariant is seen when it is broken: each test breaks a database on purpose and asks."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from uuid import UUID

import asyncpg
import pytest

from corevo.programs import find_programs
from tests.invariants import PATH, invariants, violations, violations_seen_by
from tests.protocol import Protocol, Running, piece


@dataclass(frozen=True)
class Scene:
    """One job of each kind, all correct."""

    account: UUID
    worker: UUID
    ended: Running
    ended_thread: UUID
    running: Running
    running_thread: UUID
    next: UUID
    queued: UUID
    queued_thread: UUID


async def scene(protocol: Protocol) -> Scene:
    account = await protocol.account()
    worker = await protocol.worker()
    first = await protocol.admit(account, "ended", key="k")
    ended = await protocol.running(worker)
    await protocol.append(piece(ended, 2, "a", "b"))
    await protocol.finish(piece(ended, 4))
    second = await protocol.admit(account, "running")
    running = await protocol.running(worker)
    await protocol.append(piece(running, 2, "a", "b"))
    following = await protocol.admit(account, "next", thread=second["thread_id"], on_busy="enqueue")
    queued = await protocol.admit(account, "queued")
    return Scene(
        account, worker, ended, first["thread_id"], running, second["thread_id"], following["job_id"],
        queued["job_id"], queued["thread_id"],
    )  # fmt: skip


DROP_CHECKS = """
do $$ declare c record; begin
  for c in select conname from pg_constraint where conrelid = 'corevo.jobs'::regclass and contype = 'c' loop
    execute format('alter table corevo.jobs drop constraint %I', c.conname);
  end loop;
end $$"""

# invariant · the name of the broken thing in the scene · statements that break it. {names} are ids of the scene.
PLANTS = [
    ("I1", "running.job", """
        alter table corevo.executions drop constraint executions_job_id_epoch_key;
        insert into corevo.executions
            (id, job_id, epoch, token, worker_id, started_at, deadline_at, ended_at, outcome, will_retry)
          select corevo.uuid7(corevo.now()), job_id, epoch, gen_random_uuid(), worker_id, started_at, deadline_at,
                 started_at, 'failed', true
            from corevo.executions where id = '{running.execution}'"""),
    ("I1", "running.job", """
        drop index corevo.executions_open;
        insert into corevo.executions (id, job_id, epoch, token, worker_id, started_at, deadline_at)
          select corevo.uuid7(corevo.now()), job_id, 0, gen_random_uuid(), worker_id, started_at, deadline_at
            from corevo.executions where id = '{running.execution}'"""),
    ("I2", "ended.execution", "insert into corevo.events values ('{ended.execution}', 5, 'text.delta', '{{}}')"),
    ("I2", "ended.execution", "insert into corevo.events values ('{ended.execution}', 5, 'run.failed', '{{}}')"),
    ("I2", "ended.execution", "delete from corevo.events where execution_id = '{ended.execution}' and seq = 4"),
    ("I2", "ended.execution", "delete from corevo.events where execution_id = '{ended.execution}'"),
    ("I2", "running.execution", """
        insert into corevo.events values ('{running.execution}', 4, 'run.completed', '{{}}')"""),
    ("I2", "running.execution", "delete from corevo.events where execution_id = '{running.execution}' and seq = 2"),
    ("I2", "running.execution", "delete from corevo.events where execution_id = '{running.execution}' and seq < 2"),
    ("I2", None, "insert into corevo.events values (corevo.uuid7(corevo.now()), 1, 'run.started', '{{}}')"),
    ("I3", "running.job", "update corevo.jobs set token = gen_random_uuid() where id = '{running.job}'"),
    ("I3", "running.job", "update corevo.jobs set epoch = epoch + 1 where id = '{running.job}'"),
    ("I3", "running.job", "update corevo.executions set worker_id = token where id = '{running.execution}'"),
    ("I3", "running.execution", "update corevo.executions set epoch = 9 where id = '{running.execution}'"),
    ("I3", "queued", "update corevo.jobs set worker_id = '{worker}', claimed_at = corevo.now() where id = '{queued}'"),
    ("I5", "account", """
        alter table corevo.idempotency drop constraint idempotency_pkey;
        insert into corevo.idempotency (account_id, key, body_hash, outcome, job_id, created_at)
          values ('{account}', 'k', 'h', 'queued', '{queued}', corevo.now())"""),
    ("I5", "worker", "update corevo.idempotency set job_id = '{worker}'"),
    ("I5", "ended.job", """
        insert into corevo.accounts (id, name, created_at) values ('{worker}', 'other', corevo.now());
        update corevo.idempotency set account_id = '{worker}'"""),
    ("I7", "running_thread", """
        drop index corevo.jobs_one_current;
        update corevo.jobs set blocked_by = null where id = '{next}'"""),
    ("I10", None, """
        insert into corevo.commands (id, job_id, kind, requested_at)
          values (gen_random_uuid(), '{ended.job}', 'input', corevo.now())"""),
    ("I10", None, """
        insert into corevo.commands (id, job_id, kind, state, requested_at)
          values (gen_random_uuid(), '{ended.job}', 'cancel', 'accepted', corevo.now())"""),
    ("I11", "running.job", """
        update corevo.workers set beat_at = corevo.now() - interval '86 s' where id = '{worker}';
        update corevo.jobs set claimed_at = corevo.now() - interval '86 s' where worker_id = '{worker}';
        insert into corevo.duties (name, swept_at, watching_since)
          values ('janitor', corevo.now(), corevo.now() - interval '46 s')"""),
    ("I11", "running.job", """
        delete from corevo.workers;
        update corevo.jobs set claimed_at = corevo.now() - interval '86 s' where worker_id = '{worker}';
        insert into corevo.duties (name, swept_at, watching_since)
          values ('janitor', corevo.now(), corevo.now() - interval '46 s')"""),
    ("I14", "ended_thread", "update corevo.threads set current_job_id = '{ended.job}' where id = '{ended_thread}'"),
    ("I14", "ended_thread", "update corevo.threads set current_job_id = '{queued}' where id = '{ended_thread}'"),
    ("I14", "running_thread", "update corevo.threads set current_job_id = '{next}' where id = '{running_thread}'"),
    ("I14", "running.job", "update corevo.threads set current_job_id = null where id = '{running_thread}'"),
    ("I14", "queued_thread", """
        update corevo.threads set current_job_id = gen_random_uuid() where id = '{queued_thread}'"""),
    ("S1", "running.job", """
        update corevo.executions set ended_at = corevo.now(), outcome = 'lost' where id = '{running.execution}'"""),
    ("S1", "running.job", """
        update corevo.jobs set state = 'queued', worker_id = null, claimed_at = null, execution_id = null,
          execution_started_at = null where id = '{running.job}'"""),
    ("S1", "ended.job", "update corevo.executions set ended_at = null, outcome = null where id = '{ended.execution}'"),
    ("S1", "running.job", """
        update corevo.jobs set execution_id = '{ended.execution}' where id = '{running.job}'"""),
    ("S2", "next", "update corevo.jobs set blocked_by = '{ended.job}' where id = '{next}'"),
    ("S3", "ended.job", "delete from corevo.messages where job_id = '{ended.job}' and part = 1000"),
    ("S3", "ended.job", "delete from corevo.messages where job_id = '{ended.job}' and part = 1"),
    ("S3", "ended.job", "update corevo.messages set status = 'failed' where job_id = '{ended.job}' and part = 1000"),
    ("S3", "ended.job", """
        drop index corevo.messages_in_order;
        insert into corevo.messages
          select gen_random_uuid(), thread_id, job_id, turn, part, role, text, status, created_at
            from corevo.messages where job_id = '{ended.job}' and part = 1000"""),
    ("S3", "queued", """
        insert into corevo.messages
          select gen_random_uuid(), thread_id, job_id, turn, 1000, 'assistant', 'x', 'failed', created_at
            from corevo.messages where job_id = '{queued}'"""),
    ("S4", "ended.execution", "update corevo.executions set outcome = 'failed' where id = '{ended.execution}'"),
    ("S4", "ended.execution", "update corevo.executions set will_retry = true where id = '{ended.execution}'"),
    ("S5", "ended.execution", "update corevo.jobs set state = 'failed' where id = '{ended.job}'"),
    ("S5", "ended.execution", """
        update corevo.jobs set execution_id = null, execution_started_at = null where id = '{ended.job}'"""),
    ("S5", "ended.execution", "update corevo.executions set will_retry = true where id = '{ended.execution}'"),
    ("S6", "running.job", "update corevo.jobs set attempts = 0 where id = '{running.job}'"),
    ("S6", "ended.job", "update corevo.jobs set started_at = null where id = '{ended.job}'"),
    ("S6", "ended.job", "update corevo.jobs set max_attempts = 0 where id = '{ended.job}'"),
    ("S7", "queued", """
        insert into corevo.accounts (id, name, created_at) values ('{worker}', 'other', corevo.now());
        update corevo.jobs set account_id = '{worker}' where id = '{queued}'"""),
    ("S7", None, "update corevo.messages set turn = 7 where job_id = '{queued}'"),
    ("S7", None, "update corevo.messages set thread_id = '{ended_thread}', turn = 7 where job_id = '{queued}'"),
    ("S7", "queued_thread", "update corevo.threads set last_turn = 7 where id = '{queued_thread}'"),
    ("S8", "running.job", "update corevo.jobs set cancel_requested_at = corevo.now() where id = '{running.job}'"),
    ("S8", "running.job", """
        insert into corevo.commands (id, job_id, kind, requested_at)
          values (gen_random_uuid(), '{running.job}', 'cancel', corevo.now())"""),
    ("S8", "queued", """
        update corevo.jobs set cancel_requested_at = corevo.now() where id = '{queued}';
        insert into corevo.commands (id, job_id, kind, requested_at)
          values (gen_random_uuid(), '{queued}', 'cancel', corevo.now())"""),
]  # fmt: skip


def look_up(scene: Scene, path: str) -> str:
    value: object = scene
    for name in path.split("."):
        value = getattr(value, name)
    return str(value)


@pytest.mark.parametrize(("invariant", "broken", "sql"), PLANTS)
async def test_a_planted_violation_is_returned(raw: Protocol, invariant: str, broken: str | None, sql: str) -> None:
    set_up = await scene(raw)
    assert await violations_seen_by(raw.connection) == []
    await raw.connection.execute(DROP_CHECKS)
    await raw.connection.execute(sql.format(**vars(set_up)))
    found = [v for v in await violations_seen_by(raw.connection) if v.invariant == invariant]
    assert found
    assert broken is None or look_up(set_up, broken) in {v.id for v in found}


def test_every_invariant_has_a_plant() -> None:
    assert {i.name for i in invariants()} == {name for name, _, _ in PLANTS}


async def test_silence_is_a_violation_only_while_somebody_watched(raw: Protocol) -> None:
    await scene(raw)
    await raw.value("update corevo.workers set beat_at = corevo.now() - interval '1 hour'")
    await raw.value("update corevo.jobs set claimed_at = claimed_at - interval '1 hour' where claimed_at is not null")
    assert await violations_seen_by(raw.connection) == [], "no janitor ever"
    await raw.value(
        "insert into corevo.duties (name, swept_at, watching_since) "
        "values ('janitor', corevo.now(), corevo.now() - interval '44 s')"
    )
    assert await violations_seen_by(raw.connection) == [], "not for long enough"
    assert await violations_seen_by(raw.connection, ttl_seconds=10, stall_limit_seconds=10) != []


async def test_events_of_days_that_were_dropped_are_not_missed(raw: Protocol) -> None:
    account, worker = await raw.account(), await raw.worker()
    await raw.admit(account)
    run = await raw.running(worker)
    await raw.finish(piece(run))
    today = await raw.value("select to_char(corevo.now() at time zone 'utc', 'YYYYMMDD')")
    yesterday = await raw.value("select to_char(corevo.now() at time zone 'utc' - interval '1 day', 'YYYYMMDD')")
    for day in (yesterday, today):
        await raw.value(f"alter table corevo.events detach partition corevo.events_{day}")
    assert await violations_seen_by(raw.connection) == []


async def test_psql_prints_each_violation_and_exits_with_3(raw: Protocol, database: str) -> None:
    psql = find_programs() / "psql"

    async def run(**environment: str) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            psql, "-X", database, "-f", PATH,
            env={**os.environ, **environment}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await asyncio.wait_for(process.communicate(), 60)
        return process.returncode, output.decode()

    set_up = await scene(raw)
    assert await run() == (0, "")
    await raw.value("update corevo.workers set beat_at = corevo.now() - interval '1 min'")
    await raw.value("update corevo.jobs set claimed_at = claimed_at - interval '1 min' where claimed_at is not null")
    await raw.value(
        "insert into corevo.duties (name, swept_at, watching_since) "
        "values ('janitor', corevo.now(), corevo.now() - interval '60 s')"
    )
    assert await run() == (0, "")
    code, output = await run(COREVO_HEARTBEAT_TTL_SECONDS="5", COREVO_LOOP_STALL_LIMIT_SECONDS="10")
    assert (code, output.startswith(f"I11 · {set_up.running.job} · running")) == (3, True)
    await raw.value("update corevo.threads set last_turn = 9")
    code, output = await run()
    assert code == 3
    assert output.count("S7 · ") == 3


async def test_it_cannot_write(raw: Protocol, database: str) -> None:
    text = PATH.read_text("utf-8")
    assert text.startswith("-- ")
    assert "repeatable read read only" in text
    assert await violations(database) == []
    async with raw.connection.transaction(readonly=True):
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await raw.value("update corevo.threads set last_turn = 9")
