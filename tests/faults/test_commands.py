"""A sample of the table of commands; `python -m tests.faults.commands` runs all of it."""

from __future__ import annotations

import os
import random

from tests.faults.commands import cells, run_cells

SAMPLE = 14


async def test_a_sample_of_commands_ends_as_the_table_says() -> None:
    seed = int(os.environ.get("COREVO_FAULT_SEED", random.randrange(10**6)))
    print("seed", seed)
    chosen = random.Random(seed).sample(list(cells()), SAMPLE)
    wrong = [outcome for outcome in await run_cells(chosen, slots=2) if outcome.failure]
    assert wrong == [], f"seed {seed}"
