"""Postgres is restarted again and again under a stream of jobs; python -m tests.faults.restarts is the long one."""

from __future__ import annotations

import random

from tests.faults.restarts import under_restarts
from tests.faults.roles import Zygote
from tests.faults.servers import Server


async def test_postgres_restarted_under_jobs_loses_nothing_that_was_promised(server: Server, forks: Zygote) -> None:
    report = await under_restarts(server, forks, count=60, restarts=4, seed=random.randrange(10**6))
    print(report)
