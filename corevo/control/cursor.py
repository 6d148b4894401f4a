"""Cursors as clients hold them.

    EXECUTION:SEQ        has everything up to this event, and it was not the execution's last
    EXECUTION:SEQ:end    has everything up to the terminal event of this execution
    JOB:end              has everything of a job that ended without an execution to end it

Lists have cursors too: opaque text that names the place of the last item.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from corevo.contracts import ExecutionId, JobId
from corevo.errors import BadCursor

ID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
STREAM = re.compile(rf"({ID}):(?:([0-9]{{1,18}})(:end)?|end)", re.IGNORECASE | re.ASCII)
UUID_TEXT = re.compile(ID, re.IGNORECASE | re.ASCII)
INT4_LIMIT = 2**31
#: Of moments in our cursors; what lies outside was made by hand, and the database or Python may not hold it.
FIRST_YEAR, LAST_YEAR = 2000, 2999


@dataclass(frozen=True, slots=True)
class StreamCursor:
    """`seq` None: the end of the job `id`; else a position in the execution `id`."""

    id: UUID
    seq: int | None
    end: bool


def parse_stream(text: str) -> StreamCursor:
    """Raises BadCursor."""
    found = STREAM.fullmatch(text)
    if found is None:
        raise BadCursor("a cursor is EXECUTION:SEQ, EXECUTION:SEQ:end or JOB:end")
    owner, seq, end = found.groups()
    return StreamCursor(UUID(owner), None if seq is None else int(seq), seq is None or end is not None)


def of_event(execution_id: ExecutionId, seq: int, terminal: bool) -> str:
    return f"{execution_id}:{seq}:end" if terminal else f"{execution_id}:{seq}"


def of_job_end(job_id: JobId) -> str:
    return f"{job_id}:end"


def parse_uuid(text: str) -> UUID | None:
    """Only the canonical form: what `UUID()` accepts beside it is not one of our ids."""
    return UUID(text) if UUID_TEXT.fullmatch(text) else None


def page_by_time(at: datetime, last: UUID) -> str:
    return _pack(f"{at.isoformat()}|{last}")


def parse_page_by_time(text: str) -> tuple[datetime, UUID]:
    at, _, last = _unpack(text).partition("|")
    try:
        moment, last_id = datetime.fromisoformat(at), UUID(last)
        if moment.tzinfo is None or not FIRST_YEAR <= moment.astimezone(UTC).year <= LAST_YEAR:
            raise ValueError(at)
    except (ValueError, OverflowError):
        raise BadCursor("this cursor is not one of ours") from None
    return moment, last_id


def page_by_place(turn: int, part: int) -> str:
    return _pack(f"{turn}.{part}")


def parse_page_by_place(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,10})\.([0-9]{1,10})", _unpack(text), re.ASCII)
    if found is None or max(int(n) for n in found.groups()) >= INT4_LIMIT:
        raise BadCursor("this cursor is not one of ours")
    return int(found[1]), int(found[2])


def _pack(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _unpack(text: str) -> str:
    if len(text) > 200:
        raise BadCursor("this cursor is not one of ours")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        raise BadCursor("this cursor is not one of ours") from None
