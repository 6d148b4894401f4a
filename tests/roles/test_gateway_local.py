"""The local direct path, seen from the gateway: when its worker is asked, given a job, or given its place back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from corevo.contracts import AccountId, Claim, WorkerId
from corevo.control.identity import Identity
from corevo.control.jobs import Jobs, Submission
from corevo.control.projection import Projector
from corevo.errors import AgentUnknown
from corevo.notifier import Notifier
from corevo.settings import load_settings
from corevo.store import accounts, jobs
from corevo.store.connections import Connections
from tests.hand import Hand
from tests.processes import eventually


@dataclass
class Local:
    worker_id: WorkerId
    places: int = 1
    taken: list[Claim] = field(default_factory=list)

    def reserve(self) -> bool:
        if self.places == 0:
            return False
        self.places -= 1
        return True

    def take(self, claim: Claim) -> None:
        self.taken.append(claim)

    def give_back(self) -> None:
        self.places += 1


@dataclass
class Setting:
    db: Connections
    account: AccountId
    local: Local
    jobs: Jobs


@pytest.fixture
async def setting(database: str) -> AsyncIterator[Setting]:
    db = Connections(database, limit=2, name="test")
    hand = Hand(db)
    await hand.register("demo")
    settings = load_settings(database_url=database, auth="off")
    projector = Projector(db, settings, lambda: False)
    local = Local(hand.worker_id)
    made = Jobs(db, settings, Notifier(db, enabled=False), projector, Identity(settings, db), local)
    yield Setting(db, await accounts.local_account(db), local, made)
    await db.close()


async def test_a_free_place_takes_the_job_with_its_first_epoch(setting: Setting) -> None:
    admitted = await setting.jobs.submit(setting.account, Submission(text="a"), None)
    (claim,) = setting.local.taken
    assert (claim.job_id, claim.epoch) == (admitted.job_id, 1)
    assert setting.local.places == 0, "the place is the job's now"
    (started,) = await jobs.start(setting.db, setting.local.worker_id, [claim])
    assert started.result == "started"


async def test_without_a_place_the_job_waits_for_anybody(setting: Setting) -> None:
    setting.local.places = 0
    admitted = await setting.jobs.submit(setting.account, Submission(text="a"), None)
    assert setting.local.taken == [] and setting.local.places == 0
    assert (await setting.jobs.read(setting.account, admitted.job_id)).queue_position == 1


async def test_an_older_job_that_waits_is_not_overtaken(setting: Setting) -> None:
    setting.local.places = 0
    await setting.jobs.submit(setting.account, Submission(text="older"), None)
    setting.local.places = 1
    await setting.jobs.submit(setting.account, Submission(text="newer"), None)
    assert setting.local.taken == [] and setting.local.places == 1


async def test_a_refusal_gives_the_place_back(setting: Setting) -> None:
    with pytest.raises(AgentUnknown):
        await setting.jobs.submit(setting.account, Submission(text="a", agent="nobody"), None)
    assert setting.local.taken == [] and setting.local.places == 1


async def test_a_repeated_key_takes_nothing_twice(setting: Setting) -> None:
    await setting.jobs.submit(setting.account, Submission(text="a"), "key")
    setting.local.places = 1
    await setting.jobs.submit(setting.account, Submission(text="a"), "key")
    assert len(setting.local.taken) == 1 and setting.local.places == 1


async def test_a_caller_that_goes_leaves_no_job_that_nobody_runs(setting: Setting) -> None:
    caller = asyncio.create_task(setting.jobs.submit(setting.account, Submission(text="a"), None))
    await asyncio.sleep(0)
    caller.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await caller

    async def taken() -> bool:
        return len(setting.local.taken) == 1

    await eventually(taken, what="the claim")
