"""How events travel on the channel `corevo_event`: text that a gateway cuts and splices without parsing JSON.

A payload is a sequence of blocks separated by an empty line. A block is one run's events of one append:

    JOB EXECUTION EPOCH FIRST_SEQ LAST_SEQ
    TYPE DATA
    TYPE DATA

A block without lines (payloads off, or an event too large for a channel) says only where the stream stands:
the gateway reads history. Data is JSON on one line; JSON escapes every newline inside a string.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from corevo.contracts import NOTIFY_LIMIT_BYTES, Event, ExecutionId, JobId


@dataclass(frozen=True, slots=True)
class Block:
    """`events` is empty when only the position travelled."""

    job_id: JobId
    execution_id: ExecutionId
    epoch: int
    first_seq: int
    last_seq: int
    events: tuple[tuple[str, str], ...]


def encode(
    job_id: JobId, execution_id: ExecutionId, epoch: int, events: Sequence[Event], *, payload: bool = True
) -> Iterator[str]:
    """Blocks for one run's stored events, each below the channel's limit."""
    if not payload:
        yield f"{job_id} {execution_id} {epoch} {events[0].seq} {events[-1].seq}"
        return
    lines: list[str] = []
    size = 0
    first = last = 0
    for event in events:
        line = f"{event.type} {event.data}"
        line_size = len(line.encode()) + 1
        if lines and size + line_size > NOTIFY_LIMIT_BYTES:
            yield f"{job_id} {execution_id} {epoch} {first} {last}\n" + "\n".join(lines)
            lines = []
        if not lines:
            size, first = 130, event.seq  # 130: more than the header can take
        if size + line_size > NOTIFY_LIMIT_BYTES:
            yield f"{job_id} {execution_id} {epoch} {event.seq} {event.seq}"
            continue
        lines.append(line)
        size += line_size
        last = event.seq
    if lines:
        yield f"{job_id} {execution_id} {epoch} {first} {last}\n" + "\n".join(lines)


def decode(payload: str) -> Iterator[Block]:
    """Cuts a payload into blocks. Raises ValueError for text that no worker sends."""
    for text in payload.split("\n\n"):
        header, *lines = text.split("\n")
        job, execution, epoch, first, last = header.split(" ")
        events = tuple((kind, data) for kind, _, data in (line.partition(" ") for line in lines))
        if events and len(events) != int(last) - int(first) + 1:
            raise ValueError("a block's events do not match its header")
        yield Block(JobId(UUID(job)), ExecutionId(UUID(execution)), int(epoch), int(first), int(last), events)
