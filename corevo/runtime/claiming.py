"""Claims: what a worker takes for its free places, and how long it may rest when there is nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from uuid import UUID, uuid4

import structlog

from corevo.contracts import LANES, Claim, Lane, WorkerId
from corevo.errors import CorevoError, WorkerFenced
from corevo.runtime.executor import Executor
from corevo.runtime.registry import Agent
from corevo.store import jobs
from corevo.store.connections import Connections

log = structlog.get_logger()

#: Between looks at the queue while notifications are not proved to arrive.
UNHEARD_POLL_SECONDS = 0.5
DUE_MARGIN_SECONDS = 0.01


class Claimer:
    """Claims in the lanes that this process's agents use."""

    def __init__(self, db: Connections, executor: Executor, agents: Collection[Agent], *, poll_seconds: float) -> None:
        self._db = db
        self._executor = executor
        self._agents = sorted(agent.name for agent in agents)
        self._lanes = [lane for lane in LANES if any(agent.lane == lane for agent in agents)]
        self._poll_seconds = poll_seconds

    async def claim(self, worker_id: WorkerId) -> bool:
        """Claims for every free place. True when more may be waiting. Raises WorkerFenced."""
        again = False
        for lane in self._lanes:
            again = await self._claim_lane(worker_id, lane) or again
        return again

    async def rest_seconds(self, *, listening: bool) -> float:
        """How long to wait for a message before looking again: no longer than until the next job becomes due."""
        seconds = self._poll_seconds if listening else min(self._poll_seconds, UNHEARD_POLL_SECONDS)
        seconds *= random.uniform(0.8, 1.2)
        if listening and any(self._executor.free(lane) > 0 for lane in self._lanes):
            try:
                due = await jobs.next_due(self._db, self._agents, self._lanes)
            except CorevoError:
                return min(seconds, UNHEARD_POLL_SECONDS)
            if due is not None:
                # one that is due already and was not claimed is held by somebody: look again soon, not at once
                seconds = min(seconds, due + DUE_MARGIN_SECONDS if due > 0 else UNHEARD_POLL_SECONDS)
        return seconds

    async def _claim_lane(self, worker_id: WorkerId, lane: Lane) -> bool:
        free = self._executor.free(lane)
        if free <= 0:
            return False
        request = uuid4()
        self._executor.claiming.add(request)
        try:
            claims = await self._claim_surely(worker_id, request, lane, free)
            for claim in claims:
                self._executor.take(claim, lane)
        except WorkerFenced:
            raise
        except CorevoError as error:
            log.warning("claiming failed", lane=lane, error=str(error))
            return False
        finally:
            self._executor.claiming.discard(request)
        return len(claims) == free and self._executor.free(lane) > 0

    async def _claim_surely(self, worker_id: WorkerId, request: UUID, lane: Lane, limit: int) -> list[Claim]:
        """A claim whose answer was lost is asked for once more with the same request: it returns the same jobs."""
        for last in (False, True):
            try:
                return await jobs.claim(self._db, worker_id, request, self._agents, lane, limit)
            except WorkerFenced:
                raise
            except CorevoError:
                if last:
                    raise
                await asyncio.sleep(random.uniform(0.1, 0.3))
        raise AssertionError("unreachable")
