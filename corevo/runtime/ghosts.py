"""Ghosts: jobs that the database says are ours and nobody here knows, because the answer to a call was lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

import structlog

from corevo.contracts import JobId, OwnedJob
from corevo.errors import CorevoError, Stale
from corevo.runtime.ending import Endings

log = structlog.get_logger()

#: Replies of heartbeats that must list it: the first may cross an answer that is on its way.
REPLIES = 2

Key = tuple[JobId, UUID]


class Ghosts:
    """Counts them over the replies of heartbeats, and ends those that stay."""

    def __init__(self, endings: Endings, spawn: Callable[[Awaitable[None]], None]) -> None:
        self._endings = endings
        self._spawn = spawn
        self._seen: dict[Key, int] = {}
        self._ending: set[Key] = set()

    def compare(self, unknown: list[OwnedJob]) -> None:
        """Takes what the newest reply lists and nobody here knows."""
        self._seen = {key: self._seen.get(key, 0) + 1 for key in ((job.job_id, job.token) for job in unknown)}
        for job in unknown:
            key = (job.job_id, job.token)
            if self._seen[key] >= REPLIES and key not in self._ending:
                self._ending.add(key)
                self._spawn(self._end(job))

    async def _end(self, job: OwnedJob) -> None:
        """Again at a later beat where it cannot be done now."""
        log.warning("ending a ghost", job_id=str(job.job_id), started=job.execution_id is not None)
        try:
            await self._endings.end_ghost(job)
        except Stale as error:
            log.info("a ghost was gone already", job_id=str(job.job_id), lost_to=error.ended_by)
        except CorevoError as error:
            log.warning("a ghost could not be ended yet", job_id=str(job.job_id), error=str(error))
        finally:
            self._ending.discard((job.job_id, job.token))
