"""Forks roles from a process that has imported everything: a role starts in a tenth of a second, not in a whole one.

Reads one JSON object a line, {"arguments", "environment", "plans", "log"}, and answers {"pid"}; tells of each end with
{"pid", "status"}. When its input ends it kills what is left, so that nothing outlives the tests, whatever ends them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from typing import Any

import corevo.cli
import corevo.gateway
import corevo.janitor
import corevo.logs
import corevo.serve
import corevo.solo
import corevo.worker  # noqa: F401
from tests.faults import faulty
from tests.faults.triggers import Trigger

LOOK_SECONDS = 0.02


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then close our input
    children: set[int] = set()
    pending = b""
    try:
        while True:
            if select.select([0], [], [], LOOK_SECONDS)[0]:
                piece = os.read(0, 65536)
                if not piece:
                    return
                *lines, pending = (pending + piece).split(b"\n")
                for line in lines:
                    pid = fork(json.loads(line))
                    children.add(pid)
                    tell({"pid": pid})
            for pid in list(children):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    children.discard(pid)
                    tell({"pid": pid, "status": os.waitstatus_to_exitcode(status)})
    finally:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def tell(answer: dict[str, int]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


def fork(request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.environ.clear()
        os.environ.update(request["environment"])
        faulty.run([Trigger.parse(plan) for plan in request["plans"]], request["arguments"])
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
