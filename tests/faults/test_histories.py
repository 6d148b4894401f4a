"""A handful of random histories; python -m tests.faults.histories --count 500 is the long one."""

from __future__ import annotations

import os
import random

from tests.faults.histories import describe, run_many

HISTORIES = 8


async def test_random_histories_violate_nothing() -> None:
    seed = int(os.environ.get("COREVO_FAULTS_SEED", random.randrange(10**6)))
    print(f"first seed {seed}: python -m tests.faults.histories --seed {seed} has more")
    reports = await run_many(HISTORIES, seed)
    print(describe(reports))
    wrong = [report.failure for report in reports if report.failure]
    assert not wrong, "\n\n".join(wrong)
    assert len(reports) == HISTORIES
    assert sum(len(report.faults) for report in reports) >= HISTORIES, "hardly a fault was reached"
