"""A worker dies or freezes at its first statement, at its second, … until a run passes untouched.

And: a short sample of the matrix. python -m tests.faults.matrix is the whole.
"""

from __future__ import annotations

import itertools
import os
import random

import pytest

from tests.faults.history import ENDED, History
from tests.faults.matrix import FAULTS, Cell, cells, run_cells
from tests.faults.roles import Role
from tests.faults.worlds import TIMINGS, World
from tests.processes import eventually

FIRST_STATEMENTS = 24
IMPORTANT = [
    Cell("SIGKILL", "after", "claim"),
    Cell("SIGKILL", "after", "start"),
    Cell("SIGSTOP", "before", "finish"),
    Cell("reset", "after", "finish"),  # the reply to a commit is lost
    Cell("reset", "after", "start"),
    Cell("reset", "after", "register"),
    Cell("immediate restart", "after", "append"),
    Cell("read-only", "before", "finish"),
    Cell("black hole", "before", "beat"),
]
SAMPLE = 4


@pytest.mark.parametrize("when", ["before", "after"])
async def test_killed_at_each_statement_in_turn(world: World, when: str) -> None:
    """One job a round: first the worker that dies at its n-th statement, then one that does not."""
    history = world.history(when)
    long = bool(os.environ.get("COREVO_FAULTS_LONG"))
    step = 1 if long else 4
    for number in itertools.count(1, step):
        submitted = await history.submit("paced", "5")
        history.follow(submitted.job_id or "")
        victim = await world.worker(plans=(f"kill@{when}:*#{number}",), ready=False)
        ended = await _ended_or_dead(history, submitted.job_id, victim)
        if not ended:
            assert victim.reached
            heir = await world.worker()
            state = await history.until_ended(submitted.job_id)
            assert state in ("completed", "lost"), state
            await heir.stop()
        else:
            victim.kill()
            await victim.wait()
        if ended and not victim.reached:
            assert number > FIRST_STATEMENTS // 2, "a run needs more statements than that"
            break
        if not long and number > FIRST_STATEMENTS:
            break
    await history.check(TIMINGS)
    await history.close()


async def _ended_or_dead(history: History, job_id: str | None, victim: Role) -> bool:
    async def look() -> str:
        if victim.returncode is not None:
            return "dead"
        return "ended" if (await history.states())[job_id or ""] in ENDED else ""

    return await eventually(look, seconds=30, what="an end, or death") == "ended"


async def test_a_sample_of_the_matrix() -> None:
    seed = int(os.environ.get("COREVO_FAULTS_SEED", random.randrange(10**6)))
    print(f"COREVO_FAULTS_SEED={seed} repeats it")
    others = [cell for cell in cells() if not cell.reason and cell not in IMPORTANT and cell.fault != "black hole"]
    chosen = IMPORTANT + random.Random(seed).sample(others, SAMPLE)
    outcomes = await run_cells(chosen, slots=3, seed=seed)
    wrong = [f"{outcome.cell}: {outcome.failure}" for outcome in outcomes if not outcome.good]
    assert not wrong, "\n\n".join(wrong)
    assert len(outcomes) == len(chosen)


def test_the_matrix_has_every_fault_at_every_point() -> None:
    found = list(cells())
    assert len(found) == len(set(found)) == len(FAULTS) * 8 * 2
    assert set(IMPORTANT) <= set(found)
