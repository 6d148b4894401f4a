"""A fuzz of the protocol alone: python -m tests.concurrency.fuzz --seconds 120 --actors 14 --seed 1

Actors on their own connections play clients, honest workers, ghosts of fenced workers and janitors, and call the SQL
functions at random on few threads, so that they meet. Meanwhile backends are killed, workers fall silent or are fenced
while they write, some transactions are held open to stretch the moment between a call and its commit, days pass, and a
checker asks all invariants again and again. A fault is: a violated invariant, a deadlock, an append that waited for a
lock, an acknowledged event or job that is gone, one idempotency key that gave two jobs, an error that no function
declares, or a job that does not end once everything is healed.

Each actor's choices follow from the seed; how they interleave does not.
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
from uuid import UUID, uuid4

import asyncpg

from tests.invariants import Violation, violations_seen_by
from tests.protocol import Claim, Piece, Protocol

ACTOR, WRITER = "corevo-fuzz-actor", "corevo-fuzz-writer"
TTL_SECONDS, LATE_SECONDS, QUEUE_SECONDS, LEASE_SECONDS = 2.0, 0.8, 3.0, 1.0
INVARIANT_TIMES = {"ttl_seconds": TTL_SECONDS, "stall_limit_seconds": 3.0, "period_seconds": 2.0}
APPEND_LOCK_TIMEOUT = "100ms"  # append waits for no row; held transactions last longer than this
HELD_SECONDS = (0.12, 0.25)
KEPT = 80  # claims, runs and jobs that actors still remember: old ones are what ghosts act on
AGENTS: dict[str, tuple[str, float, int]] = {  # lane, time-out, attempts
    "demo": ("normal", 300.0, 1),
    "again": ("normal", 300.0, 3),
    "brief": ("normal", 0.3, 1),  # overstays its deadline
    "doomed": ("heavy", 300.0, 1),  # whoever claims it dies
    "ignored": ("heavy", 300.0, 1),  # nobody claims it
}
WORKED = ["demo", "again", "brief"]
OUTCOMES = ["completed", "completed", "failed", "cancelled", "interrupted", "timed_out", "lost"]

DECLARED = {  # what each call may be refused with; anything else is a fault
    "admit": {"RV101", "RV103", "RV104", "RV105", "RV106", "RV108"},
    "held": {"RV101", "RV103", "RV104", "RV105", "RV106", "RV108"},
    "cancel": {"RV101"},
    "claim": {"RV004"},
    "doom": {"RV004"},
    "release": {"RV001"},
    "input": {"RV101", "RV108"},
    "settle": {"RV001"},
    "beat": {"RV004"},
    "delete": {"RV101", "RV105"},
}

Operation = Callable[[], Awaitable[object]]

#: What a run of the fuzz must have reached, or it has shown nothing.
EXPECTED: set[tuple[str, str]] = {
    *(("admit", o) for o in ("queued", "already_running", "replaced", "enqueued", "steered", "direct", "replayed")),
    *(("admit", o) for o in ("RV104", "RV105", "RV106")),
    *(("cancel", o) for o in ("ended", "requested", "RV101")),
    *(("claim", o) for o in ("some", "none", "same request", "RV004")),
    *(("start", o) for o in ("started", "stale", "worker_fenced")),
    *(("append", o) for o in ("stored", "busy", "fenced")),
    *(("ghost", o) for o in ("stored", "gap", "fenced")),
    *(("finish", o) for o in ("ended", "retry", "gap", "fenced")),
    *(("release", o) for o in ("released", "RV001")),
    *(("beat", o) for o in ("beaten", "RV004")),
    *(("delete", o) for o in ("deleted", "RV105")),
    *(("sweep", o) for o in ("released", "poison", "lost", "retry", "cancelled", "timed_out")),
    *(("settle", o) for o in ("done", "returned", "RV001")),
    *(("held", o) for o in ("finish", "cancel", "admit")),
    ("accept", "some"), ("input", "given"), ("expire", "expired"), ("fence", "by a janitor"), ("fence", "at once"),
    ("duty", "held"), ("duty", "not held"), ("kill", "killed"), ("day", "passed"), ("read", "in order"),
}  # fmt: skip


@dataclass(slots=True, eq=False)
class Run:
    job: UUID
    execution: UUID
    token: UUID
    seq: int = 1  # acknowledged as stored
    sending: bool = False


@dataclass(slots=True)
class Memory:
    """What clients and workers were told. Shared by all actors; only its owner changes a run."""

    threads: list[tuple[UUID, UUID | None]] = field(default_factory=list)
    workers: list[UUID] = field(default_factory=list)
    silent: set[UUID] = field(default_factory=set)
    fenced: set[UUID] = field(default_factory=set)
    jobs: list[tuple[UUID, UUID]] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    taken: list[tuple[Run, UUID]] = field(default_factory=list)  # inputs that a run accepted
    held: list[UUID] = field(default_factory=list)  # threads in which a commit is waited for: worth meeting there
    admitted: dict[UUID, UUID] = field(default_factory=dict)  # job → thread, for ever
    deleted: set[UUID] = field(default_factory=set)
    acknowledged: dict[UUID, int] = field(default_factory=dict)  # execution → seq, for ever
    keys: dict[tuple[UUID, str], UUID] = field(default_factory=dict)


@dataclass(slots=True)
class Report:
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    checks: int = 0

    @property
    def clean(self) -> bool:
        return not self.faults and not self.violations

    @property
    def missing(self) -> set[tuple[str, str]]:
        return EXPECTED - self.seen.keys()


class Fuzz:
    """One run on a fresh database. It stops at the first fault."""

    def __init__(self, dsn: str, *, actors: int = 14, seed: int = 1, accounts: int = 4) -> None:
        self.dsn, self.actors, self.seed, self.accounts = dsn, actors, seed, accounts
        self.memory, self.report = Memory(), Report()
        self.settings = {"statement_timeout": "20s"}
        self.days = 0
        self.waits: dict[int, list[str]] = {}  # server process of a writer → what it was seen waiting for
        self.stopped = asyncio.Event()

    async def run(
        self,
        seconds: float,
        *,
        until_complete_seconds: float = 0.0,
        day_seconds: float | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Report:
        """Runs for `seconds`, and where something expected is missing then, on until it was reached or time is up."""
        await self.set_up()
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            writers = max(2, self.actors // 3)
            for n in range(self.actors):
                rng = random.Random(f"{self.seed}/{n}")
                kind = "writer" if n < writers else "janitor" if n >= self.actors - 2 else "anybody"
                group.create_task(Actor(self, kind, rng).run())
            group.create_task(self.kill(random.Random(f"{self.seed}/killer")))
            group.create_task(self.check())
            group.create_task(self.watch_writers())
            group.create_task(self.pass_days(day_seconds or seconds / 6))
            while not self.stopped.is_set():
                spent = time.monotonic() - began
                if spent >= seconds and (not self.report.missing or spent >= until_complete_seconds):
                    self.stopped.set()
                if progress:
                    progress(spent)
                await asyncio.sleep(0.05)
        if self.report.clean:
            await self.heal_and_judge()
        return self.report

    def fault(self, what: str) -> None:
        self.report.faults.append(what)
        self.stopped.set()

    async def keep(self) -> Protocol:
        """A connection that is not killed."""
        return await Protocol.connect(self.dsn, application_name="corevo-fuzz-keep", statement_timeout="60s")

    async def set_up(self) -> None:
        host = await self.keep()
        # to find a deadlock soon is for superusers; without it the killer often ends one before it is found
        if await host.value("show is_superuser") == "on":
            self.settings["deadlock_timeout"] = "20ms"
        for _ in range(self.accounts):
            account = await host.account()
            self.memory.threads.append((account, None))
            for _ in range(2):
                self.memory.threads.append((account, await host.value("select corevo.create_thread($1, '')", account)))
        for name, (lane, timeout, attempts) in AGENTS.items():
            await host.worker(name, lane=lane, timeout_seconds=timeout, max_attempts=attempts)
        await host.close()

    async def kill(self, rng: random.Random) -> None:
        host = await self.keep()
        while not self.stopped.is_set():
            await asyncio.sleep(rng.uniform(0.05, 0.4))
            killed = await host.value(
                "select count(pg_terminate_backend(pid)) from (select pid from pg_stat_activity"
                " where datname = current_database() and application_name in ($1, $2) and state in ('active', $3)"
                " order by random() limit 1) a",
                ACTOR, WRITER, rng.choice(("idle in transaction", "active")),
            )  # fmt: skip
            self.report.seen["kill", "killed"] += bool(killed)
        await host.close()

    async def watch_writers(self) -> None:
        """Looks what appends wait for. Waits for the server's own housekeeping, a file that grows or an autovacuum that
        cuts one, are no fault of the protocol; a wait for a row or another transaction is, however short."""
        host = await self.keep()
        while not self.stopped.is_set():
            rows = await host.all(
                "select l.pid, l.locktype, l.mode, l.relation::regclass::text as relation,"
                "  array(select b.backend_type || ': ' || left(b.query, 60) from pg_stat_activity b"
                "          where b.pid = any (pg_blocking_pids(l.pid))) as blockers"
                " from pg_locks l join pg_stat_activity a on a.pid = l.pid"
                " where not l.granted and a.datname = current_database() and a.application_name = $1",
                WRITER,
            )
            for row in rows:
                what = f"{row['locktype']} {row['mode']} {row['relation'] or ''}, held by {row['blockers']}"
                housekeeping = row["locktype"] == "extend" or any(b.startswith("autovacuum") for b in row["blockers"])
                if housekeeping:
                    self.waits.setdefault(row["pid"], []).append(what)
                else:
                    self.fault(f"append waited for {what}")
            await asyncio.sleep(0.01)
        await host.close()

    async def check(self) -> None:
        host = await self.keep()
        while True:
            last = self.stopped.is_set()
            self.report.violations += await violations_seen_by(host.connection, limit=3, **INVARIANT_TIMES)
            self.report.checks += 1
            if self.report.violations:
                self.stopped.set()
            if last or self.report.violations:
                break
            await asyncio.sleep(0.02)
        await host.close()

    async def pass_days(self, every: float) -> None:
        host = await self.keep()
        began = time.monotonic()
        while not self.stopped.is_set():
            if time.monotonic() - began > every * (self.days + 1):
                self.days += 1
                await host.value("select corevo.ensure_partitions(3)")
                await host.move_clock(f"{self.days} days")
                self.report.seen["day", "passed"] += 1
            await asyncio.sleep(0.02)
        await host.close()

    async def heal_and_judge(self) -> None:
        """With every worker gone and the janitor left alone, all jobs end; and nothing that was told is untrue."""
        host, memory = await self.keep(), self.memory
        await host.value("update corevo.workers set fenced_at = corevo.now() where fenced_at is null")
        for _ in range(20):
            for row in await host.all("select * from corevo.jobs_to_sweep(0, 1000)"):
                await host.sweep(row["job_id"], 0)
            for row in await host.all("select * from corevo.jobs_to_expire(-3600, 1000)"):
                await host.expire(row["job_id"], -3600)
        if left := await host.value("select count(*) from corevo.jobs where state in ('queued', 'running')"):
            self.fault(f"{left} jobs do not end")
        self.report.violations += await violations_seen_by(host.connection, limit=3, **INVARIANT_TIMES)
        there = {row["id"] for row in await host.all("select id from corevo.jobs")}
        for job, thread in memory.admitted.items():
            if job not in there and thread not in memory.deleted:
                self.fault(f"job {job} was admitted and is gone")
        rows = await host.all(
            "select x.id, j.thread_id, (select max(e.seq) from corevo.events e where e.execution_id = x.id) as stored"
            " from corevo.executions x join corevo.jobs j on j.id = x.job_id"
        )
        for row in rows:
            if row["stored"] < memory.acknowledged.get(row["id"], 0):
                self.fault(f"execution {row['id']} lost acknowledged events: {row['stored']}")
        await host.close()


class Actor:
    """One connection that does one random thing after the other, and a new one when it was killed."""

    def __init__(self, fuzz: Fuzz, kind: str, rng: random.Random) -> None:
        self.fuzz, self.kind, self.rng = fuzz, kind, rng
        self.memory, self.seen = fuzz.memory, fuzz.report.seen
        self.sql: Protocol
        kinds: dict[str, dict[str, tuple[int, Operation]]] = {
            "writer": {"append": (5, self.append), "ghost": (3, self.ghost), "read": (1, self.read)},
            "janitor": {"janitor": (1, self.janitor)},
            "anybody": {
                "admit": (20, self.admit),
                "cancel": (5, self.cancel),
                "claim": (12, self.claim),
                "start": (14, self.start),
                "finish": (7, self.finish),
                "release": (2, self.release),
                "beat": (6, self.beat),
                "accept": (3, self.accept),
                "fence": (1, self.fence),
                "doom": (1, self.doom),
                "input": (4, self.input),
                "settle": (3, self.settle),
                "delete": (1, self.delete),
                "held": (4, self.held),
                "silence": (1, self.silence),
            },
        }
        self.operations = kinds[kind]

    async def run(self) -> None:
        names = list(self.operations)
        weights = [weight for weight, _ in self.operations.values()]
        connected = False
        name = "connect"
        while not self.fuzz.stopped.is_set():
            try:
                if not connected:
                    self.sql = await Protocol.connect(
                        self.fuzz.dsn,
                        application_name=WRITER if self.kind == "writer" else ACTOR,
                        lock_timeout=APPEND_LOCK_TIMEOUT if self.kind == "writer" else "5s",
                        **self.fuzz.settings,
                    )
                    connected = True
                (name,) = self.rng.choices(names, weights)
                await self.operations[name][1]()
            except asyncpg.PostgresError as error:
                self.judge(name, error)
                connected = connected and not self.drop_if_dead()
            except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError):
                # killed in the middle: what the call did is not known, and the connection stays unusable
                self.seen[name, "connection lost"] += 1
                if connected:
                    self.sql.connection.terminate()
                connected = False
            if self.kind == "writer" or self.rng.random() < 0.2:
                await asyncio.sleep(self.rng.random() * 0.01)
        if connected:
            self.sql.connection.terminate()

    def drop_if_dead(self) -> bool:
        return self.sql.connection.is_closed()

    def judge(self, name: str, error: asyncpg.PostgresError) -> None:
        state = error.sqlstate or "?"
        if state in DECLARED.get(name, ()):
            self.seen[name, state] += 1
        elif state == "57P01" or state.startswith("08"):
            self.seen[name, "connection lost"] += 1
        elif state == "55P03" and name in ("append", "ghost"):
            if self.fuzz.waits.pop(self.sql.connection.get_server_pid(), None):
                self.seen[name, "housekeeping"] += 1
            else:
                self.fuzz.fault(f"{name} waited for a lock: {getattr(error, 'context', '')}")
        elif state == "55P03":  # the machine is slow, or a held transaction met another: retried by the product
            self.seen[name, "lock time-out"] += 1
        else:
            self.fuzz.fault(f"{'DEADLOCK in ' if state == '40P01' else ''}{name}: {state} {error}")

    def pick(self, runs: int) -> list[Run]:
        some = self.memory.runs[-20:] if self.rng.random() < 0.6 else self.memory.runs
        return self.rng.sample(some, min(len(some), self.rng.randint(1, runs)))

    def meets(self) -> UUID | None:
        """Often, a thread in which somebody holds a transaction open."""
        return self.rng.choice(self.memory.held) if self.memory.held and self.rng.random() < 0.4 else None

    def worker(self) -> UUID | None:
        return self.rng.choice(self.memory.workers) if self.memory.workers else None

    # ── clients ───────────────────────────────────────────────────────────────────────────────────────

    async def admit(self) -> None:
        (await self.ask_to_admit())()

    async def ask_to_admit(self) -> Callable[[], None]:
        """Returns what a client does with the answer, once it has it for sure."""
        rng, memory = self.rng, self.memory
        met = self.meets()
        account, thread = rng.choice([t for t in memory.threads if met and t[1] == met] or memory.threads)
        key = f"k{rng.randrange(40)}" if rng.random() < 0.2 else None
        # rarely a job that nobody runs where others line up behind it: a jammed thread meets nobody
        agent = rng.choices(list(AGENTS), (60, 30, 10, 0.3, 0.3) if thread else (30, 25, 10, 20, 10))[0]
        direct = self.worker() if rng.random() < 0.5 else None
        row = await self.sql.admit(
            account,
            f"text {rng.randrange(3)}",
            agent=agent,
            thread=thread,
            on_busy=rng.choice((None, "join", "replace", "enqueue", "enqueue", "enqueue", "steer", "reject")),
            key=key,
            body_hash="other" if rng.random() < 0.2 else "h",
            next_limit=rng.randint(1, 2),
            worker=direct,
        )

        def tell() -> None:
            job, thread = row["job_id"], row["thread_id"]
            was = memory.keys.get((account, key)) if key else None
            self.seen["admit", "replayed" if was == job else row["outcome"]] += 1
            if was and was != job and not {thread, memory.admitted[was]} & memory.deleted:
                self.fuzz.fault(f"key {key} gave {was}, then {job}")
            if key:
                memory.keys[account, key] = job
            memory.admitted[job] = thread
            memory.jobs = [*memory.jobs[-KEPT:], (account, job)]
            if direct and row["token"]:
                self.seen["admit", "direct"] += 1
                self.remember(Claim(direct, job, row["epoch"], row["token"]))

        return tell

    async def cancel(self, of_next: float = 0.4) -> UUID | None:
        memory = self.memory
        if not memory.jobs:
            return None
        some = self.rng.choice((memory.jobs, memory.jobs[-15:]))
        if self.rng.random() < of_next:
            waiting = await self.sql.all(
                "select account_id, id from corevo.jobs where state = 'queued' and blocked_by is not null limit 20"
            )
            some = [(row["account_id"], row["id"]) for row in waiting if row["id"] in memory.admitted]
        elif met := self.meets():
            some = [job for job in memory.jobs if memory.admitted[job[1]] == met]
        account, job = self.rng.choice(some or memory.jobs)
        if self.rng.random() < 0.1:
            account, _ = self.rng.choice(memory.threads)  # perhaps a stranger
        row = await self.sql.cancel(account, job)
        self.seen["cancel", "ended" if row["ended"] else "requested"] += 1
        return memory.admitted[job]

    async def input(self) -> None:
        if self.memory.jobs:
            account, job = self.rng.choice(self.memory.jobs[-20:])
            await self.sql.value(
                "select corevo.request_command($1, $2, 'input', $3)", account, job, '{"text": "and another thing"}'
            )
            self.seen["input", "given"] += 1

    async def delete(self) -> None:
        ours = [thread for _, thread in self.memory.threads if thread]
        candidates = [t for t in self.memory.admitted.values() if t not in ours and t not in self.memory.deleted]
        if not candidates:
            return
        thread = self.rng.choice(candidates[-KEPT:])
        account = await self.sql.value("select account_id from corevo.threads where id = $1", thread)
        self.memory.deleted.add(thread)  # before the call: it may be killed after its commit
        await self.sql.value("select corevo.delete_thread($1, $2)", account, thread)
        self.seen["delete", "deleted"] += 1

    async def read(self) -> None:
        if not self.memory.jobs:
            return
        _, job = self.rng.choice(self.memory.jobs)
        await self.sql.all("select * from corevo.stream_heads($1)", [job])
        last: dict[int, int] = {}
        for row in await self.sql.all("select * from corevo.read_events($1, 0, 0, 1000, 1000000)", job):
            if row["seq"] != last.get(row["epoch"], 0) + 1:
                self.fuzz.fault(f"job {job} epoch {row['epoch']}: {row['seq']} after {last.get(row['epoch'])}")
            last[row["epoch"]] = row["seq"]
        self.seen["read", "in order"] += bool(last)

    # ── workers ───────────────────────────────────────────────────────────────────────────────────────

    def remember(self, claim: Claim) -> None:
        self.memory.claims = [*self.memory.claims[-KEPT:], claim]

    async def claim(self) -> None:
        if len(self.memory.workers) < 6 or self.rng.random() < 0.03:
            self.memory.workers = [*self.memory.workers[-8:], await self.register()]
        worker = self.rng.choice(self.memory.workers)
        if worker in self.memory.fenced and self.rng.random() < 0.7:
            self.memory.workers = [w for w in self.memory.workers if w != worker]
        request = uuid4()
        claims = await self.sql.claim(worker, self.rng.randint(1, 3), request=request, agents=WORKED)
        if self.rng.random() < 0.2 and claims:
            again = await self.sql.claim(worker, 3, request=request, agents=WORKED)
            self.seen["claim", "same request"] += bool({c.token for c in again} & {c.token for c in claims})
            claims = list({c.token: c for c in claims + again}.values())
        self.seen["claim", "some" if claims else "none"] += 1
        for claim in claims:
            self.remember(claim)

    async def register(self) -> UUID:
        """A worker of all agents; it changes none of them."""
        worker = uuid4()
        await self.sql.value(
            "select corevo.register_worker($1, 'w', 'test', array_agg(name), array_agg(lane),"
            " array_agg(timeout_seconds), array_agg(retry_safe), array_agg(max_attempts)) from corevo.agents",
            worker,
        )
        return worker

    async def start(self) -> None:
        if not self.memory.claims:
            return
        first = self.rng.choice(self.memory.claims)
        claims = [c for c in self.memory.claims if c.worker == first.worker][: self.rng.randint(1, 4)]
        tokens = {c.job: c.token for c in claims}
        for row in await self.sql.start(*claims):
            self.seen["start", row["result"]] += 1
            if row["result"] == "started" and all(r.execution != row["execution_id"] for r in self.memory.runs):
                run = Run(row["job_id"], row["execution_id"], tokens[row["job_id"]])
                self.memory.runs = [*self.memory.runs[-KEPT:], run]
        if self.rng.random() < 0.7:
            self.memory.claims = [c for c in self.memory.claims if c not in claims]

    async def append(self) -> None:
        runs = [r for r in self.pick(10) if not r.sending]
        pieces = {r: Piece(r.execution, r.token, r.seq + 1, ("abc",) * self.rng.randint(1, 4)) for r in runs}
        for run in runs:
            run.sending = True
        try:
            by = {r.execution: r for r in runs}
            for row in await self.sql.append(*pieces.values()):
                self.seen["append", row["result"]] += 1
                run = by[row["execution_id"]]
                if row["result"] == "gap":
                    self.fuzz.fault(
                        f"execution {run.execution} was acknowledged up to {run.seq} and has {row['stored_seq']}"
                    )
                if row["result"] == "stored":
                    run.seq += len(pieces[run].texts)
                    self.memory.acknowledged[run.execution] = run.seq
        finally:
            for run in runs:
                run.sending = False

    async def ghost(self) -> None:
        """Writes from a wrong place, with a wrong token, or after the end."""
        for run in self.pick(1):
            first = max(2, run.seq + self.rng.choice((-1, 0, 1, 1, 2, 9)))
            token = run.token if self.rng.random() < 0.8 else uuid4()
            texts = ("ghost",) * self.rng.randint(1, 5)
            for row in await self.sql.append(Piece(run.execution, token, first, texts)):
                self.seen["ghost", row["result"]] += 1

    async def finish(self) -> UUID | None:
        runs = self.pick(5)
        if met := self.meets():
            there = [r for r in self.memory.runs if self.memory.admitted.get(r.job) == met][-2:]
            runs = list({r.execution: r for r in runs + there}.values())
        pieces = [
            Piece(r.execution, r.token if self.rng.random() < 0.95 else uuid4(),
                  max(2, r.seq + self.rng.choice((0, 1, 1, 1, 20))), ("end",) * self.rng.randint(0, 3))
            for r in runs
        ]  # fmt: skip
        gone = set()
        for row in await self.sql.finish(*pieces, outcomes=[self.rng.choice(OUTCOMES) for _ in runs], reason="fuzz"):
            self.seen["finish", row["result"]] += 1
            if row["result"] != "gap" and self.rng.random() < 0.6:
                gone.add(row["execution_id"])
        self.memory.runs = [r for r in self.memory.runs if r.execution not in gone]
        return self.memory.admitted.get(runs[0].job) if runs else None

    async def release(self) -> None:
        if self.memory.claims:
            await self.sql.release(self.rng.choice(self.memory.claims))
            self.seen["release", "released"] += 1

    async def accept(self) -> None:
        runs = {run.execution: run for run in self.pick(8)}
        rows = await self.sql.all(
            "select * from corevo.accept_commands($1, $2)", list(runs), [run.token for run in runs.values()]
        )
        self.seen["accept", "some" if rows else "none"] += 1
        inputs = [(runs[row["execution_id"]], row["command_id"]) for row in rows if row["kind"] == "input"]
        self.memory.taken = [*self.memory.taken[-KEPT:], *inputs]

    async def settle(self) -> None:
        if self.memory.taken:
            run, command = self.memory.taken.pop(self.rng.randrange(len(self.memory.taken)))
            rows = await self.sql.all(
                "select * from corevo.settle_commands($1, $2, $3, $4)",
                run.execution, run.token, [command], self.rng.choice(("done", "returned")),
            )  # fmt: skip
            for row in rows:
                self.seen["settle", row["state"]] += 1

    async def beat(self) -> None:
        worker = self.worker()
        if worker and worker not in self.memory.silent:
            await self.sql.beat(worker)
            self.seen["beat", "beaten"] += 1

    async def silence(self) -> None:
        """One worker freezes: it beats no more, but what it had begun goes on writing."""
        if (worker := self.worker()) and self.rng.random() < 0.3:
            self.memory.silent.add(worker)

    async def fence(self) -> None:
        if worker := self.worker():
            await self.sql.fence(worker)
            self.memory.fenced.add(worker)
            self.seen["fence", "at once"] += 1

    async def doom(self) -> None:
        """Claims jobs and dies before it starts them."""
        worker = await self.register()
        await self.sql.claim(worker, 2, agents=["doomed"], lane="heavy")
        await self.sql.fence(worker)

    async def held(self) -> None:
        """One call whose commit comes late."""
        name = self.rng.choice(("finish", "cancel", "admit"))
        tell: Callable[[], None] | None = None
        thread: UUID | None = None
        try:
            async with self.sql.connection.transaction():
                match name:
                    case "finish":
                        thread = await self.finish()
                    case "cancel":
                        thread = await self.cancel(of_next=0.8)
                    case _:
                        tell = await self.ask_to_admit()
                if thread:
                    self.memory.held.append(thread)
                await asyncio.sleep(self.rng.uniform(*HELD_SECONDS))
        finally:
            if thread:
                self.memory.held.remove(thread)
        if tell:
            tell()
        self.seen["held", name] += 1

    # ── janitors ──────────────────────────────────────────────────────────────────────────────────────

    async def janitor(self) -> None:
        me = uuid4()
        for _ in range(self.rng.randint(5, 60)):
            duty = await self.sql.duty(me, me, lease_seconds=LEASE_SECONDS, ttl_seconds=TTL_SECONDS)
            self.seen["duty", "held" if duty["held"] else "not held"] += 1
            if duty["watched_seconds"] >= TTL_SECONDS:
                fenced = await self.sql.all("select * from corevo.fence_workers($1)", TTL_SECONDS)
                self.memory.fenced.update(row["worker_id"] for row in fenced)
                self.seen["fence", "by a janitor"] += len(fenced)
            # two janitors are harmless, so the one without the duty sweeps too
            for row in await self.sql.all("select * from corevo.jobs_to_sweep($1, 50)", LATE_SECONDS):
                swept = await self.sql.sweep(row["job_id"], LATE_SECONDS)
                self.seen["sweep", swept["result"]] += 1
            for row in await self.sql.all("select * from corevo.jobs_to_expire($1, 50)", QUEUE_SECONDS):
                expired = await self.sql.expire(row["job_id"], QUEUE_SECONDS)
                self.seen["expire", "expired" if expired["expired"] else "not"] += 1
            await self.sql.value("select corevo.ensure_partitions(3)")
            await asyncio.sleep(0.05)
            if self.fuzz.stopped.is_set():
                break
        await self.sql.value("select corevo.drop_duty('janitor', $1)", me)


# ── command line ──────────────────────────────────────────────────────────────────────────────────────────


def show(fuzz: Fuzz, seconds: float) -> Callable[[float], None]:
    """A progress line: rewritten in a terminal, every ten seconds elsewhere."""
    shown = -10.0

    def progress(spent: float) -> None:
        nonlocal shown
        terminal = sys.stderr.isatty()
        if spent - shown < (0.5 if terminal else 10):
            return
        shown = spent
        report = fuzz.report
        done = min(20, int(20 * spent / seconds))
        line = (
            f"[{'#' * done}{'.' * (20 - done)}] {spent:4.0f}/{seconds:.0f} s  {sum(report.seen.values()):7d} outcomes  "
            f"{report.seen['kill', 'killed']:4d} killed  {fuzz.days} days  {report.checks:4d} checks  "
            f"{len(report.missing):2d} not reached  {len(report.faults) + len(report.violations)} faults"
        )
        print("\r" + line if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)

    return progress


def describe(report: Report) -> str:
    lines = [f"{name:9} {outcome:18} {n:8d}" for (name, outcome), n in sorted(report.seen.items())]
    lines += [f"NOT REACHED {name} {outcome}" for name, outcome in sorted(report.missing)]
    lines += [f"VIOLATED {v.invariant} {v.id} {v.detail}" for v in report.violations]
    lines += [f"FAULT {fault}" for fault in report.faults]
    return "\n".join(lines)


async def fuzz_a_fresh_database(options: argparse.Namespace) -> Report:
    from corevo.store.migrations import migrate
    from tests.server import create_database, drop_database, serve

    with serve() as maintenance:
        name = f"corevo_fuzz_{uuid4().hex[:8]}"
        dsn = await create_database(maintenance, name)
        await migrate(dsn)
        fuzz = Fuzz(dsn, actors=options.actors, seed=options.seed)
        try:
            return await fuzz.run(options.seconds, progress=show(fuzz, options.seconds))
        finally:
            await drop_database(maintenance, name)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.concurrency.fuzz", description="Fuzz the protocol in SQL.")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--actors", type=int, default=14)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="default: a random one")
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.actors} actors, {options.seconds:.0f} s", file=sys.stderr)
    report = asyncio.run(fuzz_a_fresh_database(options))
    print(f"\n{describe(report)}")
    print(f"{report.checks} checks, {len(report.violations)} violations, {len(report.faults)} faults")
    return 0 if report.clean and not report.missing else 1


if __name__ == "__main__":
    sys.exit(main())
