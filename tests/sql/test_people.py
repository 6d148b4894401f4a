"""What an account reads and changes; a foreign row is a missing row."""

from __future__ import annotations

from uuid import UUID, uuid4

from tests.protocol import NOT_FOUND, THREAD_BUSY, Protocol, piece, refused


async def talked(protocol: Protocol, account: UUID, worker: UUID, *texts: str) -> UUID:
    """A thread with these questions, each answered."""
    thread: UUID | None = None
    for text in texts:
        row = await protocol.admit(account, text, thread=thread)
        thread = row["thread_id"]
        run = await protocol.running(worker)
        await protocol.finish(piece(run, 2, f"re: {text}"))
    assert thread is not None
    return thread


async def test_a_stranger_sees_and_changes_nothing(protocol: Protocol, account: UUID, worker: UUID) -> None:
    thread = await talked(protocol, account, worker, "mine")
    job = (await protocol.admit(account, "busy", thread=thread))["job_id"]
    stranger = await protocol.account()
    before = await protocol.contents()
    for who, seen in ((account, True), (stranger, False)):
        for sql, arguments in (
            ("select * from corevo.read_job($1, $2)", (who, job)),
            ("select * from corevo.list_jobs($1, null, null, null, 10)", (who,)),
            ("select * from corevo.list_jobs($1, $2, null, null, 10)", (who, thread)),
            ("select * from corevo.read_thread($1, $2)", (who, thread)),
            ("select * from corevo.list_threads($1, null, null, 10)", (who,)),
            ("select * from corevo.list_messages($1, $2, 0, 0, 10)", (who, thread)),
        ):
            assert bool(await protocol.all(sql, *arguments)) is seen, sql
    for sql, arguments in (
        ("select corevo.rename_thread($1, $2, 'x')", (stranger, thread)),
        ("select corevo.delete_thread($1, $2)", (stranger, thread)),
        ("select corevo.request_cancel($1, $2)", (stranger, job)),
    ):
        with refused(NOT_FOUND):
            await protocol.value(sql, *arguments)
    assert await protocol.contents() == before


async def test_messages_come_in_order_and_page_by_page(protocol: Protocol, account: UUID, worker: UUID) -> None:
    thread = await talked(protocol, account, worker, "one", "two")
    await protocol.admit(account, "three", thread=thread)
    read = "select * from corevo.list_messages($1, $2, $3, $4, $5)"
    rows = await protocol.all(read, account, thread, 0, 0, 10)
    assert [(r["role"], r["text"], r["status"]) for r in rows] == [
        ("user", "one", None),
        ("assistant", "re: one", "completed"),
        ("user", "two", None),
        ("assistant", "re: two", "completed"),
        ("user", "three", None),
    ]
    paged, last = [], (0, 0)
    while rows := await protocol.all(read, account, thread, *last, 2):
        paged += [r["text"] for r in rows]
        last = (rows[-1]["turn"], rows[-1]["part"])
    assert paged == ["one", "re: one", "two", "re: two", "three"]


async def test_jobs_and_threads_are_listed_newest_first_page_by_page(
    protocol: Protocol, account: UUID, worker: UUID
) -> None:
    admitted = [await protocol.admit(account, str(n)) for n in range(5)]
    for what, column, clock in (("jobs", "job_id", "created_at"), ("threads", "thread_id", "updated_at")):
        extra = "null, " if what == "jobs" else ""
        seen: list[UUID] = []
        at, last = None, None
        while rows := await protocol.all(f"select * from corevo.list_{what}($1, {extra}$2, $3, 2)", account, at, last):
            seen += [r["id"] for r in rows]
            at, last = rows[-1][clock], rows[-1]["id"]
        assert seen == [a[column] for a in reversed(admitted)]


async def test_a_waiting_job_knows_its_place(protocol: Protocol, account: UUID, worker: UUID) -> None:
    jobs = [(await protocol.admit(account, str(n)))["job_id"] for n in range(3)]
    ask = "select queue_position from corevo.read_job($1, $2)"
    assert [await protocol.value(ask, account, j) for j in jobs] == [1, 2, 3]
    await protocol.claim(worker)
    assert [await protocol.value(ask, account, j) for j in jobs] == [None, 1, 2]


class TestDeleteThread:
    async def test_takes_everything_in_it_and_nothing_else(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        await talked(protocol, account, worker, "kept")
        kept = await protocol.contents()
        thread = await talked(protocol, account, worker, "one", "two")
        await protocol.admit(account, "three", thread=thread, key="k")
        run = await protocol.running(worker)
        await protocol.cancel(account, run.job)
        await protocol.finish(piece(run), outcomes=["cancelled"])
        await protocol.value("select corevo.delete_thread($1, $2)", account, thread)
        assert await protocol.contents() == kept
        again = await protocol.admit(account, "anew", key="k", body_hash="other")
        assert again["outcome"] == "queued", "its keys went with it"

    async def test_is_refused_while_a_job_is_unended(self, protocol: Protocol, account: UUID, worker: UUID) -> None:
        admitted = await protocol.admit(account)
        before = await protocol.contents()
        with refused(THREAD_BUSY):
            await protocol.value("select corevo.delete_thread($1, $2)", account, admitted["thread_id"])
        assert await protocol.contents() == before
        with refused(NOT_FOUND):
            await protocol.value("select corevo.delete_thread($1, $2)", account, uuid4())

    async def test_a_late_writer_finds_nothing_to_write_to(
        self, protocol: Protocol, account: UUID, worker: UUID
    ) -> None:
        admitted = await protocol.admit(account)
        run = await protocol.running(worker)
        await protocol.finish(piece(run))
        await protocol.value("select corevo.delete_thread($1, $2)", account, admitted["thread_id"])
        before = await protocol.contents()
        assert [(r["result"], r["ended_by"]) for r in await protocol.append(piece(run, 2, "x"))] == [("fenced", "gone")]
        assert [(r["result"], r["ended_by"]) for r in await protocol.finish(piece(run))] == [("fenced", "gone")]
        assert [(r["result"], r["ended_by"]) for r in await protocol.start(run.claim)] == [("stale", "gone")]
        with refused(NOT_FOUND):
            await protocol.cancel(account, run.job)
        assert await protocol.contents() == before


async def test_a_thread_is_renamed(protocol: Protocol, account: UUID, worker: UUID) -> None:
    thread = await protocol.value("select corevo.create_thread($1, 'old')", account)
    await protocol.value("select corevo.rename_thread($1, $2, 'new')", account, thread)
    (row,) = await protocol.all("select title, current_job_id from corevo.read_thread($1, $2)", account, thread)
    assert tuple(row) == ("new", None)


async def test_notify_sends_each_message_on_its_channel(protocol: Protocol) -> None:
    heard: list[tuple[str, str]] = []
    await protocol.connection.add_listener("one", lambda _c, _p, channel, payload: heard.append((channel, payload)))
    await protocol.value("select corevo.notify($1, $2)", ["one", "two", "one"], ["a", "b", "c"])
    await protocol.value("select 1")
    assert heard == [("one", "a"), ("one", "c")]
    await protocol.connection.reset()
