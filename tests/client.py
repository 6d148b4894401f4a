"""A client of the protocol, for tests of roles: admits as a gateway does, and reads what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from corevo.contracts import WORK_CHANNEL, AccountId, Admission, Admitted, JobId, JobView, ThreadId
from corevo.store import events, jobs, notify, threads
from corevo.store.connections import Connections
from tests.processes import eventually


@dataclass
class Client:
    """Admits jobs as a gateway does."""

    db: Connections
    account: AccountId

    async def admit(self, agent: str, text: str, *, input: Any = None, metadata: Any = None,
                    thread: ThreadId | None = None, on_busy: Any = None) -> Admitted:  # fmt: skip
        admitted = await jobs.admit(
            self.db,
            Admission(
                self.account, text, text if input is None else input, metadata=metadata, agent=agent, thread_id=thread,
                on_busy=on_busy,
            ),
            next_limit=5,
        )  # fmt: skip
        await notify.send(self.db, [(WORK_CHANNEL, admitted.lane)])
        return admitted

    async def job(self, job_id: JobId) -> JobView:
        found = await jobs.read(self.db, self.account, job_id)
        assert found is not None
        return found

    async def ended(self, job_id: JobId, seconds: float = 15.0) -> JobView:
        async def check() -> JobView | None:
            job = await self.job(job_id)
            return job if job.finished_at else None

        found = await eventually(check, seconds=seconds, what="the end of a job")
        assert found is not None
        return found

    async def run(self, agent: str, text: str, **options: Any) -> JobView:
        return await self.ended((await self.admit(agent, text, **options)).job_id)

    async def answer(self, job: JobView) -> tuple[str, str | None]:
        messages = await threads.messages(self.db, self.account, job.thread_id, limit=100)
        (found,) = [m for m in messages if m.job_id == job.id and m.role == "assistant"]
        return found.text, found.status

    async def types(self, job: JobView) -> list[str]:
        return [event.type for event in await events.read(self.db, job.id, epoch=0, seq=0, limit=1000)]

    async def stored(self, job_id: JobId) -> list[tuple[object, int, str]]:
        found = await events.read(self.db, job_id, epoch=0, seq=0, limit=100_000, limit_bytes=100_000_000)
        return [(event.execution_id, event.seq, event.type) for event in found]

    async def said(self, job_id: JobId, count: int = 1) -> None:
        """Waits until so many deltas are stored."""

        async def check() -> bool:
            return sum(event[2] == "text.delta" for event in await self.stored(job_id)) >= count

        await eventually(check, what=f"{count} deltas")
