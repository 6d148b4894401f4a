"""The fuzz in short, and the proof that it would notice: python -m tests.concurrency.fuzz is the long one."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time

import pytest

from tests.concurrency.fuzz import Fuzz, describe
from tests.concurrency.mutants import MUTANTS, Mutant
from tests.server import create_database, drop_database

SHORT_SECONDS = 15.0
COMPLETE_SECONDS = 60.0  # as long as it may take, on a slow machine, to reach every operation and outcome
CAUGHT_WITHIN_SECONDS = 60.0
RUN_SECONDS = 8.0  # of one seed: the faults show soon or, in a database that has gone quiet, late


async def test_fifteen_seconds_of_the_fuzz_find_nothing_and_reach_everything(database: str) -> None:
    seed = int(os.environ.get("COREVO_FUZZ_SEED", random.randrange(10**6)))
    print(f"seed {seed}: COREVO_FUZZ_SEED={seed} repeats it, python -m tests.concurrency.fuzz --seed {seed} is longer")
    report = await Fuzz(database, seed=seed).run(SHORT_SECONDS, until_complete_seconds=COMPLETE_SECONDS)
    print(describe(report))
    assert report.violations == []
    assert report.faults == []
    assert report.missing == set()
    assert report.checks > 10


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
async def test_the_fuzz_catches(mutant: Mutant, maintenance: str, template: str) -> None:
    """Seed after seed, each on a fresh database, until one of them does."""
    deadline = time.monotonic() + CAUGHT_WITHIN_SECONDS
    for seed in itertools.count(1):
        left = deadline - time.monotonic()
        assert left > 0, f"not caught in {CAUGHT_WITHIN_SECONDS:.0f} s and {seed - 1} runs"
        name = f"corevo_mutant_{os.getpid()}_{seed}"
        try:
            dsn = await create_database(maintenance, name, template)
            await mutant.apply(dsn)
            report = await asyncio.wait_for(
                Fuzz(dsn, seed=seed, accounts=2).run(RUN_SECONDS, day_seconds=60), left + 30
            )
        finally:
            await drop_database(maintenance, name)
        if not report.clean:
            break
    print(f"caught by seed {seed} with {CAUGHT_WITHIN_SECONDS - (deadline - time.monotonic()):.1f} s spent")
    print(describe(report))
    found = [*report.faults, *(v.invariant for v in report.violations)]
    assert any(f.startswith(mutant.caught_as) for f in found), found
