"""A late identity can close nothing but itself: whatever it calls, every table stays as it was."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.protocol import STALE, WORKER_FENCED, Claim, Protocol, Running, piece, refused

SCENES = ["released by the sweep", "claimed by another", "started by another", "finished by another", "lost", "retried",
          "cancelled"]  # fmt: skip


class Past:
    """A worker that froze, and the claim and the run that it still believes in."""

    def __init__(self, worker: UUID, run: Running) -> None:
        self.worker, self.run = worker, run

    @property
    def claim(self) -> Claim:
        return self.run.claim


async def freeze(zombie: Protocol, others: Protocol, account: UUID, scene: str) -> Past:
    """Plays the scene; the zombie had claimed, and where it says so started, before it was declared dead."""
    retries = 2 if scene == "retried" else 1
    frozen = await zombie.worker(max_attempts=retries)
    live = await others.worker(max_attempts=retries)
    await zombie.admit(account)
    (claim,) = await zombie.claim(frozen)
    run = Running(claim, claim.job)  # before a start it knows no execution: any id
    if scene in ("lost", "retried"):
        (row,) = await zombie.start(claim)
        run = Running(claim, row["execution_id"])
        await zombie.append(piece(run, 2, "a"))
    if scene == "cancelled":
        await others.cancel(account, claim.job)
    else:
        await others.fence(frozen)
        await others.sweep(claim.job)
    if scene in ("claimed by another", "started by another", "finished by another", "retried"):
        await others.value("update corevo.jobs set ready_at = corevo.now() where state = 'queued'")
        (again,) = await others.claim(live)
        assert again.epoch == 2
        if scene in ("started by another", "finished by another", "retried"):
            (row,) = await others.start(again)
            if scene != "retried":
                run = Running(
                    claim, row["execution_id"]
                )  # the zombie heard of the new execution, but has no token for it
            if scene == "finished by another":
                await others.finish(piece(Running(again, row["execution_id"]), 2, "done"))
    return Past(frozen, run)


@pytest.mark.parametrize("scene", SCENES)
async def test_a_stale_writer_changes_nothing_and_is_told(
    connections: list[Protocol], account: UUID, scene: str
) -> None:
    zombie, others, onlooker = connections[:3]
    past = await freeze(zombie, others, account, scene)
    before = await onlooker.contents()

    (row,) = await zombie.start(past.claim)
    assert row["result"] == "stale"
    assert row["ended_by"] in {"released", "newer_claim", "completed", "lost", "cancelled"}
    for first in (2, 3, 4):
        (row,) = await zombie.append(piece(past.run, first, "late", "later"))
        assert row["result"] == "fenced"
        assert row["ended_by"] in {"gone", "token", "lost"}
    for outcome in ("completed", "failed", "cancelled", "interrupted", "lost"):  # the end, and every failure clean-up
        (row,) = await zombie.finish(piece(past.run, 2, "late"), outcomes=[outcome])
        assert row["result"] == "fenced"
    with refused(STALE):
        await zombie.release(past.claim)
    assert await zombie.accept(past.run) == []
    if scene != "cancelled":
        with refused(WORKER_FENCED):
            await zombie.beat(past.worker)
        with refused(WORKER_FENCED):
            await zombie.claim(past.worker)

    assert await onlooker.contents() == before


@pytest.mark.parametrize("scene", ["started by another", "retried"])
async def test_the_new_owner_notices_nothing_of_it(connections: list[Protocol], account: UUID, scene: str) -> None:
    zombie, others = connections[:2]
    past = await freeze(zombie, others, account, scene)
    job = await others.job(past.claim.job)
    claim = Claim(job["worker_id"], job["id"], job["epoch"], job["token"])
    run = Running(claim, job["execution_id"])
    (row,) = await others.append(piece(run, 2, "new"))
    assert row["result"] == "stored"
    await zombie.append(piece(past.run, 3, "old"))
    await zombie.finish(piece(past.run, 3, "old"))
    (row,) = await others.finish(piece(run, 3))
    assert row["result"] == "ended"
    assert (await others.answer(run.job))["text"] == "new"
