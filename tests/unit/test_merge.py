"""I9 on the merge alone: thousands of schedules of loss, doubling, reordering, crashes, retries and reconnects.

A small world plays the database, the owner of the run, the channel and some clients. Reads take their snapshot when
they begin and arrive later, so that everything may happen in between. In the end every client has, of every execution
it was shown, exactly the stored history, and was told the end once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corevo.contracts import AccountId, ExecutionId, JobId, JobView, StoredEvent, StreamHead, ThreadId
from corevo.control import merge
from corevo.control.merge import Entry, Item, JobStream, Viewer
from corevo.wire import Block

JOB = JobId(UUID(int=1))
NOW = datetime(2026, 11, 30, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _small_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "RING_LIMIT_EVENTS", 8)
    monkeypatch.setattr(merge, "FOLLOW_FROM_START_EVENTS", 4)
    monkeypatch.setattr(merge, "EARLY_LIMIT_BLOCKS", 3)


class Choices:
    """Numbers that hypothesis may shrink; zeros when they run out."""

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = iter(numbers)
        self.left = len(numbers)

    def below(self, n: int) -> int:
        self.left -= 1
        return next(self._numbers, 0) % n


@dataclass
class Execution:
    epoch: int
    id: ExecutionId = field(default_factory=lambda: ExecutionId(uuid4()))
    stored: list[tuple[str, str]] = field(default_factory=list)
    durable: int = 0
    tail: list[tuple[str, str]] = field(default_factory=list)  # what the owner knows above the stored end
    owner_lives: bool = True
    ended: bool = False
    will_retry: bool = False
    said: int = 0


class World:
    """The database, the owner and the channel of one job."""

    def __init__(self) -> None:
        self.executions: list[Execution] = []
        self.state = "queued"
        self.started = False
        self.epoch = 0
        self.channel: list[Block] = []

    @property
    def open(self) -> Execution | None:
        last = self.executions[-1] if self.executions else None
        return last if last is not None and not last.ended else None

    @property
    def over(self) -> bool:
        return self.state not in ("queued", "running")

    # ── what happens ──────────────────────────────────────────────────────────────────────────────────

    def start(self, skip: int) -> None:
        self.epoch += 1 + skip
        run = Execution(self.epoch)
        run.stored.append(("run.started", "{}"))
        run.durable = 1
        self.executions.append(run)
        self.state, self.started = "running", True
        self.publish(run, 1)

    def say(self, run: Execution, count: int) -> None:
        """The owner appends; what a crash took goes first, byte for byte."""
        first = len(run.stored) + 1
        run.stored += run.tail
        run.tail = []
        for _ in range(count):
            run.said += 1
            run.stored.append(("text.delta", json.dumps({"text": f"{run.epoch}.{run.said} "})))
        if len(run.stored) >= first:
            self.publish(run, first)

    def crash(self, run: Execution, keep: int, owner_lives: bool) -> None:
        kept = run.durable + keep % (len(run.stored) - run.durable + 1)
        run.tail = run.stored[kept:] + run.tail
        del run.stored[kept:]
        run.durable = kept
        run.owner_lives = run.owner_lives and owner_lives

    def end(self, run: Execution, retry: bool) -> None:
        first = len(run.stored) + 1
        if run.owner_lives:
            run.stored += run.tail
        kind = "run.failed" if run.owner_lives and retry else "run.completed" if run.owner_lives else "run.lost"
        run.stored.append((kind, json.dumps({"reason": "x", "will_retry": True} if retry else {"reason": "x"})))
        run.ended, run.will_retry, run.durable = True, retry, len(run.stored)
        self.state = "queued" if retry else kind.removeprefix("run.")
        self.publish(run, first)

    def publish(self, run: Execution, first: int) -> None:
        self.channel.append(Block(JOB, run.id, run.epoch, first, len(run.stored), tuple(run.stored[first - 1 :])))

    # ── what is read ──────────────────────────────────────────────────────────────────────────────────

    def read(self, place: tuple[int, int], limit: int) -> list[StoredEvent]:
        rows = [
            StoredEvent(run.id, run.epoch, seq, kind, data)
            for run in self.executions
            for seq, (kind, data) in enumerate(run.stored, 1)
        ]
        return [row for row in rows if (row.epoch, row.seq) > place][:limit]

    def head(self) -> StreamHead:
        last = self.executions[-1] if self.executions else None
        return StreamHead(
            JOB,
            self.state,  # type: ignore[arg-type]
            False,
            last.id if last else None,
            last.epoch if last else None,
            len(last.stored) if last else None,
            last.ended if last else False,
            last.will_retry if last else False,
        )

    def row(self) -> JobView:
        run = self.open
        return JobView(
            JOB,
            AccountId(UUID(int=2)),
            ThreadId(UUID(int=3)),
            "demo",
            "normal",
            self.state,  # type: ignore[arg-type]
            self.epoch,
            run.id if run else None,
            None,
            NOW,
            NOW if self.started else None,
            NOW if self.over else None,
            None,
            None,
            False,
        )

    def history(self) -> list[tuple[int, int, str, Any]]:
        return [
            (run.epoch, seq, kind, json.loads(data))
            for run in self.executions
            for seq, (kind, data) in enumerate(run.stored, 1)
        ]


class Client:
    """What a person's browser would hold, with its own checks of every frame."""

    def __init__(self) -> None:
        self.got: list[tuple[int, int, str, Any]] = []
        self.execution: ExecutionId | None = None
        self.over = False
        self.resets = 0
        self.viewer: Viewer | None = None

    def hear(self, item: Item) -> None:
        assert not self.over, f"something after the end: {item}"
        if isinstance(item, Entry):
            frame = json.loads(item.frame)
            epoch, seq, kind = frame["epoch"], frame["seq"], frame["type"]
            last = self.got[-1] if self.got else (0, 0, "run.completed", None)
            if epoch == last[0]:
                assert seq == last[1] + 1, f"{epoch}:{seq} after {last}"
                assert last[2] not in merge.TERMINAL_TYPES
            else:
                assert epoch > last[0], f"{epoch}:{seq} after {last}"
                assert seq == 1
                assert last[2] in merge.TERMINAL_TYPES, f"left {last} without its end"
            self.got.append((epoch, seq, kind, frame["data"]))
            self.execution = item.execution_id
            return
        frame = json.loads(item.frame)
        if item.kind == "reset":
            assert frame["execution_id"] == str(self.execution), "a reset of another execution"
            epoch = self.got[-1][0]
            self.got = [event for event in self.got if event[0] != epoch]
            self.resets += 1
        elif frame["state"] not in ("queued", "running"):
            self.over = True


class Gateway:
    """One process: a stream, and reads under way."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stream = JobStream(JOB)
        self.reads: list[tuple[str, Any, Any]] = []  # what, for whom, the snapshot
        self.attached: list[Client] = []

    def attach(self, client: Client) -> None:
        place: dict[str, Any] = {}
        if client.got:
            epoch, seq, kind, _ = client.got[-1]
            stored = {(e, s): k for e, s, k, _ in self.world.history()}
            terminal = kind in merge.TERMINAL_TYPES and stored.get((epoch, seq)) == kind
            run = next(run for run in self.world.executions if run.epoch == epoch)
            place = {"epoch": epoch, "seq": seq, "execution_id": run.id, "terminal": terminal}
            place["final"] = terminal and not run.will_retry
            place["disproved"] = kind in merge.TERMINAL_TYPES and not terminal
        if self.stream.job is None:
            self.see_row(self.world.row())
        client.viewer = Viewer(self.stream, lambda: None, **place)
        self.stream.viewers.add(client.viewer)
        self.attached.append(client)

    def detach(self, client: Client) -> None:
        assert client.viewer is not None
        client.viewer.done = True
        self.stream.viewers.discard(client.viewer)
        self.attached.remove(client)
        if not self.attached:
            self.stream = JobStream(JOB)
            self.reads.clear()

    def see_row(self, view: JobView) -> None:
        self.stream.see_job(view, json.dumps({"state": view.state}))

    def take(self, client: Client, limit: int) -> None:
        assert client.viewer is not None
        for item in client.viewer.take(limit):
            client.hear(item)
        if client.viewer.done:
            self.detach(client)

    def begin_reads(self) -> bool:
        """Each wish becomes one read with the snapshot of now; like the projector, one at a time of each kind."""
        stream = self.stream
        under_way = {(what, id(whom)) for what, whom, _ in self.reads}
        began = len(self.reads)
        if stream.wants_head and ("head", id(stream)) not in under_way:
            stream.wants_head = False
            self.reads.append(("head", stream, self.world.head()))
        elif stream.wants_fill and not stream.wants_head and ("fill", id(stream)) not in under_way:
            stream.wants_fill = False
            self.reads.append(("fill", stream, self.world.read(stream.front, 5)))
        if stream.wants_job and ("row", id(stream)) not in under_way:
            stream.wants_job = False
            self.reads.append(("row", stream, self.world.row()))
        for client in self.attached:
            viewer = client.viewer
            assert viewer is not None
            if viewer.wants_page and ("page", id(viewer)) not in under_way:
                self.reads.append(("page", viewer, (viewer.ask(), self.world.read(viewer.place, 4))))
        return len(self.reads) > began

    def poll(self) -> None:
        if all(what != "head" for what, _, _ in self.reads):
            self.stream.wants_head = False
            self.reads.append(("head", self.stream, self.world.head()))

    def finish_read(self, which: int) -> None:
        what, whom, snapshot = self.reads.pop(which % len(self.reads))
        if what == "head":
            whom.see_head(snapshot)
        elif what == "fill":
            whom.fill(snapshot, full=len(snapshot) == 5)
        elif what == "row":
            self.see_row(snapshot)
        else:
            whom.feed(*snapshot)


def play(numbers: list[int]) -> list[Client]:
    pick = Choices(numbers)
    world = World()
    gateways = [Gateway(world), Gateway(world)]
    clients = [Client() for _ in range(3)]
    while pick.left > 0:
        act = pick.below(20)
        gateway = gateways[pick.below(2)]
        run = world.open
        idle = [client for client in clients if not client.over and (client.viewer is None or client.viewer.done)]
        if act == 0 and run is None and not world.over:
            world.start(skip=1 if pick.below(4) == 3 else 0)
        elif act in (1, 2) and run is not None and run.owner_lives:
            world.say(run, pick.below(4))
        elif act == 3 and run is not None:
            run.durable = len(run.stored)
        elif act == 4 and run is not None:
            world.crash(run, keep=pick.below(5), owner_lives=pick.below(2) == 0)
        elif act == 5 and run is not None and pick.below(3) == 0:
            world.end(run, retry=pick.below(4) != 0)
        elif act == 5 and run is None and not world.over:
            world.start(skip=0)
        elif act == 6 and run is None and not world.over and pick.below(20) == 0:
            world.state = "cancelled"
        elif act in (7, 8, 9) and world.channel:
            block = world.channel[pick.below(len(world.channel))]
            how = pick.below(6)
            if how == 0:
                world.channel.remove(block)
            elif how == 1:  # payloads off, or too large for the channel
                block = Block(block.job_id, block.execution_id, block.epoch, block.first_seq, block.last_seq, ())
            if how != 0 and gateway.attached:
                gateway.stream.offer(block)
        elif act == 10 and gateway.attached:
            gateway.poll()
        elif act == 11 and gateway.attached:
            gateway.stream.wants_job = True
        elif act in (12, 13):
            gateway.begin_reads()
        elif act in (14, 15) and gateway.reads:
            gateway.finish_read(pick.below(len(gateway.reads)))
        elif act in (16, 17) and gateway.attached:
            gateway.take(gateway.attached[pick.below(len(gateway.attached))], 1 + pick.below(6))
        elif act == 18 and idle:
            gateway.attach(idle[pick.below(len(idle))])
        elif act == 19 and gateway.attached and pick.below(2) == 0:
            gateway.detach(gateway.attached[0])
    heal(world, gateways, clients)
    return clients


def heal(world: World, gateways: list[Gateway], clients: list[Client]) -> None:
    """No more messages; the job ends; polling goes on. Everybody must get there."""
    if world.open is not None:
        world.end(world.open, retry=False)
    elif not world.over:
        world.state = "expired"
    for client in clients:
        if not client.over and (client.viewer is None or client.viewer.done):
            gateways[0].attach(client)
    for _ in range(400):
        if all(client.over for client in clients):
            break
        for gateway in gateways:
            if not gateway.stream.ended:
                gateway.poll()
            gateway.begin_reads()
            while gateway.reads:
                gateway.finish_read(0)
            for client in list(gateway.attached):
                gateway.take(client, 3)
    for client in clients:
        assert client.over, "was never told the end"
        assert client.got == world.history()


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 10_000), max_size=400))
def test_every_client_gets_the_stored_history_once_and_in_order(numbers: list[int]) -> None:
    play(numbers)
