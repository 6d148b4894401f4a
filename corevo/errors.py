"""All errors of Corevo, and what a SQLSTATE means.

CorevoError                  code, detail; HTTP status where a client may see it
├── Refused                  the request cannot be done; the caller must change something
│   ├── NotFound · AgentUnknown                       404
│   ├── AgentRequired · Invalid · BadCursor           422, 400
│   ├── IdempotencyMismatch · ThreadBusy              409
│   └── ThreadLineFull · TooManyCommands              429
├── Unavailable              not now; the same request may work later (503)
│   └── AgentUnavailable
├── Stale                    an owner's write came too late; `ended_by` says what it lost to
│   └── WorkerFenced         the whole worker was declared dead
├── AgentFailed              raised by an agent: its job ends as failed, with this code and these words
├── ProtocolError            a defect: a call that no correct program makes
├── GateRefused              a role must not start; one problem a line, each with its fix (exit 3)
└── UsageError               a wrong setting or argument (exit 2)
"""

from __future__ import annotations

import re

CODE = re.compile(r"[a-z][a-z0-9_]{0,62}")


class CorevoError(Exception):
    """`code` is stable and snake_case; `detail` is one sentence for people."""

    code = "internal"
    status = 500

    def __init__(self, detail: str = "", *, code: str | None = None, retry_after_seconds: int | None = None) -> None:
        super().__init__(detail or self.code)
        self.detail = detail
        self.code = code or type(self).code
        self.retry_after_seconds = retry_after_seconds


class Refused(CorevoError):
    code = "refused"
    status = 400


class NotFound(Refused):
    code = "not_found"
    status = 404


class AgentUnknown(Refused):
    code = "agent_unknown"
    status = 404


class AgentRequired(Refused):
    code = "agent_required"
    status = 422


class Invalid(Refused):
    """A body, a field or a parameter that cannot be accepted as it is."""

    code = "invalid"
    status = 422


class BadCursor(Refused):
    code = "bad_cursor"
    status = 400


class IdempotencyMismatch(Refused):
    code = "idempotency_mismatch"
    status = 409


class ThreadBusy(Refused):
    code = "thread_busy"
    status = 409


class ThreadLineFull(Refused):
    code = "thread_line_full"
    status = 429


class Unavailable(CorevoError):
    """The database does not answer, or refuses for a reason that passes."""

    code = "unavailable"
    status = 503


class TooManyCommands(Refused):
    code = "too_many_commands"
    status = 429


class AgentUnavailable(Unavailable):
    code = "agent_unavailable"


class Stale(CorevoError):
    """A write with an identity that no longer owns the job. Nothing was changed.

    `ended_by`: a job state or execution outcome, or one of newer_claim, released, started, token, gone.
    """

    code = "stale"
    status = 409

    def __init__(self, ended_by: str) -> None:
        super().__init__(f"no longer the owner: {ended_by}")
        self.ended_by = ended_by


class WorkerFenced(Stale):
    code = "worker_fenced"


class AgentFailed(CorevoError):
    """What an agent raises to end its run as failed in its own words.

    `code` becomes the job's `error.code`: stable, snake_case, for programs. `message` is for the person who asked, so
    nothing secret may stand in it. Any other exception ends the run as `agent_error`.
    """

    code = "agent_failed"

    def __init__(self, code: str, message: str) -> None:
        if not CODE.fullmatch(code):
            raise ValueError(f"error code {code!r}: use 1 to 63 of a-z, 0-9 and _, beginning with a letter")
        super().__init__(message, code=code)


class ProtocolError(CorevoError):
    code = "bad_call"


class GateRefused(CorevoError):
    """Raised by the start gate with every problem it found."""

    code = "gate_refused"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class UsageError(CorevoError):
    code = "usage"


#: The protocol's own SQLSTATEs (sql/README.md).
BY_SQLSTATE: dict[str, type[CorevoError]] = {
    "RV001": Stale,
    "RV003": ProtocolError,
    "RV004": WorkerFenced,
    "RV005": ProtocolError,
    "RV101": NotFound,
    "RV102": AgentUnknown,
    "RV103": AgentUnavailable,
    "RV104": IdempotencyMismatch,
    "RV105": ThreadBusy,
    "RV106": ThreadLineFull,
    "RV107": AgentRequired,
    "RV108": TooManyCommands,
}

#: Postgres refused for a reason that passes: sent again with jitter, a few times.
TRANSIENT_SQLSTATES = frozenset({"40P01", "40001", "55P03"})

#: The server behind this address is another one now, read-only or going away: no connection to it is worth keeping.
MOVED_SQLSTATES = ("25006", "57P")

#: The server or this connection is no good for now: the connection is dropped, the caller sees `Unavailable`.
#: 08 connection, 57P shutdown, 53 resources, 25006 read-only, 42501 privileges revoked, 57014 statement time-out.
UNAVAILABLE_SQLSTATES = ("08", "57P", "53", "25006", "42501", "57014", "58", "XX")


#: Of those, what goes on until somebody mends it: no resources, read-only, privileges revoked.
LASTING_SQLSTATES = ("53", "25006", "42501")


def from_sqlstate(sqlstate: str, message: str, detail: str) -> CorevoError:
    """Turns a server error into the class its SQLSTATE stands for; `message` is the code, `detail` the sentence."""
    found = BY_SQLSTATE.get(sqlstate)
    if found is not None:
        return found(detail)
    if sqlstate.startswith(UNAVAILABLE_SQLSTATES) or sqlstate in TRANSIENT_SQLSTATES:
        return Unavailable(f"the database answered {sqlstate}: {message}", retry_after_seconds=2)
    return ProtocolError(f"the database answered {sqlstate}: {message}")
