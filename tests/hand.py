"""A worker played by hand: each step of a run when a test says so, published as a worker publishes, or not at all."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from corevo import wire
from corevo.contracts import (
    EVENT_CHANNEL,
    JOB_CHANNEL,
    AgentSpec,
    Append,
    Claim,
    Event,
    ExecutionId,
    Finish,
    JobId,
    Outcome,
    WorkerId,
)
from corevo.store import events, jobs, notify, workers
from corevo.store.connections import Connections
from tests.processes import eventually


@dataclass
class Run:
    """One started job."""

    hand: Hand
    claim: Claim
    execution_id: ExecutionId
    seq: int = 1
    at: int = 0
    heard: bool = True  # whether gateways are told

    @property
    def job_id(self) -> JobId:
        return self.claim.job_id

    async def say(self, *texts: str) -> None:
        """Stores one delta a text, in one append."""
        batch = []
        for text in texts:
            self.seq += 1
            batch.append(Event(self.seq, "text.delta", json.dumps({"text": text, "at": self.at})))
            self.at += len(text)
        await self.append(batch)

    async def append(self, batch: list[Event]) -> None:
        (answer,) = await events.append(
            self.hand.db, [Append(self.execution_id, self.claim.token, batch[0].seq, tuple(batch))]
        )
        assert answer.result == "stored", answer
        await self.publish(batch)

    async def publish(self, batch: list[Event]) -> None:
        if self.heard:
            blocks = wire.encode(self.job_id, self.execution_id, self.claim.epoch, batch, payload=self.hand.payload)
            await notify.send(self.hand.db, [(EVENT_CHANNEL, block) for block in blocks])

    async def finish(self, outcome: Outcome = "completed", reason: str = "completed") -> None:
        ending = Finish(self.execution_id, self.claim.token, outcome, reason, None, ())
        (answer,) = await jobs.finish(self.hand.db, [ending])
        assert answer.result in ("ended", "retry"), answer
        assert answer.terminal_seq is not None and answer.terminal_data is not None
        await self.publish([Event(answer.terminal_seq, f"run.{outcome}", answer.terminal_data)])
        await self.changed()

    async def changed(self) -> None:
        if self.heard:
            await notify.send(self.hand.db, [(JOB_CHANNEL, str(self.job_id))])


@dataclass
class Hand:
    db: Connections
    payload: bool = True
    worker_id: WorkerId = field(default_factory=lambda: WorkerId(uuid4()))

    async def register(self, *names: str, attempts: int = 1) -> None:
        specs = [AgentSpec(name, retry_safe=attempts > 1, max_attempts=attempts) for name in names]
        await workers.register(self.db, self.worker_id, name="hand", version="test", agents=specs)

    async def start(self, *, agent: str = "demo", heard: bool = True) -> Run:
        """Claims and starts the oldest job, as soon as there is one."""
        request = uuid4()

        async def look() -> list[Claim]:
            return await jobs.claim(self.db, self.worker_id, request, [agent], "normal", 1)

        (claim,) = await eventually(look, what="a claimable job")
        (started,) = await jobs.start(self.db, self.worker_id, [claim])
        assert started.execution_id is not None
        run = Run(self, claim, started.execution_id, heard=heard)
        await run.publish([Event(1, "run.started", "{}")])
        await run.changed()
        return run


async def lose(database: Connections, run: Run, above: int) -> None:
    """What a crash of the database does to an execution's newest events, whose commits were not yet flushed."""
    await database.fetch("delete from corevo.events where execution_id = $1 and seq > $2", run.execution_id, above)


def uuid(text: Any) -> UUID:
    return UUID(str(text))
