"""A role that harms itself: python -m tests.faults.faulty PLAN… -- worker APP …

The product knows nothing of it: every connection that asyncpg opens here, the pulse's too, is one that looks at its
plans before a statement is sent and after its answer came, and there kills or stops the whole process by a real signal.
What it did stands on standard error first: `FAULT kill@before:start#1`. A third fault is `defect`: an error that no
caller expects, for the death of a part of a process that itself lives on.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import asyncpg

from tests.faults.triggers import Trigger, When

DEFECT = "defect"
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def install(plans: Sequence[Trigger]) -> None:
    """From here on this process is harmed as planned."""
    for plan in plans:
        if plan.fault not in (*SIGNALS, DEFECT):
            raise ValueError(f"{plan.fault}: {', '.join(SIGNALS)} or {DEFECT}")

    def harm(when: When, sql: str) -> None:
        for plan in plans:
            if plan.meets(when, sql):
                os.write(2, f"FAULT {plan}\n".encode())
                if plan.fault == DEFECT:
                    raise RuntimeError("a planned defect")
                os.kill(os.getpid(), SIGNALS[plan.fault])

    class Harmed(asyncpg.Connection):
        async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
            harm("before", query)
            rows = await super().fetch(query, *args, **options)
            harm("after", query)
            return rows

        async def execute(self, query: str, *args: Any, **options: Any) -> str:
            harm("before", query)
            status: str = await super().execute(query, *args, **options)
            harm("after", query)
            return status

    plain: Any = asyncpg.connect

    async def connect(*args: Any, **options: Any) -> Any:
        return await plain(*args, connection_class=Harmed, **options)

    asyncpg.connect = connect


def run(plans: Sequence[Trigger], arguments: Sequence[str]) -> None:
    """Becomes `corevo ARGUMENTS…`; ends by SystemExit."""
    if plans:
        install(plans)
    from corevo.cli import main

    main(args=list(arguments), prog_name="corevo")


if __name__ == "__main__":
    cut = sys.argv.index("--")
    run([Trigger.parse(text) for text in sys.argv[1:cut]], sys.argv[cut + 1 :])
