"""From SIGKILL to `lost` in short; python -m tests.faults.kills --count 50 is the long one."""

from __future__ import annotations

import random

from tests.faults.kills import LIMIT_SECONDS, describe, measure
from tests.faults.worlds import World

KILLS = 10


async def test_a_killed_worker_s_job_is_lost_in_time_also_when_the_janitor_died_with_it(world: World) -> None:
    found = await measure(world, KILLS, random.randrange(10**6))
    print(describe(found))
    assert len(found) == KILLS
    assert max(found) <= LIMIT_SECONDS
