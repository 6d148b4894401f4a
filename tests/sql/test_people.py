"""What an account reads and changes; a foreign row is a missing row."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

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
            ("select * from corevo.thread_view($1, $2)", (who, thread)),
            ("select * from corevo.find_threads($1, null, null, null, 10)", (who,)),
            ("select * from corevo.messages_after($1, $2, 0, 0, 10)", (who, thread)),
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
    read = "select * from corevo.messages_after($1, $2, $3, $4, $5)"
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


async def test_messages_come_newest_first_as_well_with_the_error_of_an_answer(
    protocol: Protocol, account: UUID, worker: UUID
) -> None:
    thread = await talked(protocol, account, worker, "one", "two")
    await protocol.admit(account, "three", thread=thread)
    run = await protocol.running(worker)
    await protocol.finish(piece(run), outcomes=["failed"], reason="agent_error")
    read = "select * from corevo.messages_before($1, $2, $3, $4, $5)"
    seen, last = [], (2**31 - 1, 0)
    while rows := await protocol.all(read, account, thread, *last, 2):
        seen += [(r["text"], r["status"], r["error_code"] is not None) for r in rows]
        last = (rows[-1]["turn"], rows[-1]["part"])
    assert seen == [
        ("", "failed", True),
        ("three", None, False),
        ("re: two", "completed", False),
        ("two", None, False),
        ("re: one", "completed", False),
        ("one", None, False),
    ]
    assert not await protocol.all(read, (await protocol.account()), thread, *(2**31 - 1, 0), 2)


async def test_threads_are_found_by_words_of_their_title(protocol: Protocol, account: UUID, worker: UUID) -> None:
    for text in ("A cake for Ann", "CAKE again", "bread", "100%"):
        await protocol.admit(account, text)
    find = "select title from corevo.find_threads($1, $2, null, null, 10)"
    assert [r["title"] for r in await protocol.all(find, account, "Cake")] == ["CAKE again", "A cake for Ann"]
    assert [r["title"] for r in await protocol.all(find, account, "%")] == ["100%"], "words, not a pattern"


async def test_a_thread_is_unread_from_the_end_of_a_run_until_it_is_seen(
    protocol: Protocol, account: UUID, worker: UUID
) -> None:
    thread = (await protocol.admit(account, "one"))["thread_id"]

    async def unread() -> bool:
        (row,) = await protocol.all("select unread from corevo.thread_view($1, $2)", account, thread)
        (listed,) = await protocol.all("select unread from corevo.find_threads($1, null, null, null, 10)", account)
        assert row["unread"] == listed["unread"]
        return bool(row["unread"])

    assert not await unread(), "a run that goes on has a mark of its own"
    await protocol.finish(piece(await protocol.running(worker)))
    assert await unread()
    await protocol.value("select corevo.mark_thread($1, $2, false)", account, thread)
    assert not await unread()
    await protocol.admit(account, "two", thread=thread)
    await protocol.finish(piece(await protocol.running(worker)))
    assert await unread()
    await protocol.value("select corevo.mark_thread($1, $2, false)", account, thread)
    await protocol.value("select corevo.mark_thread($1, $2, true)", account, thread)
    assert await unread()
    with refused(NOT_FOUND):
        await protocol.value("select corevo.mark_thread($1, $2, true)", await protocol.account(), thread)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Hello", "Hello"),
        ("\n\n  Two   words \n and a second line", "Two words"),
        ("## A *heading*", "A *heading*"),
        ("- ", "-"),
        (" \n\t", ""),
        (
            "Please compare the three offers that came in this morning, and say which one is best",
            "Please compare the three offers that came in this morning,…",
        ),
        ("x" * 200, "x" * 60 + "…"),
        ("一" * 70, "一" * 60 + "…"),
    ],
)
async def test_a_title_is_the_beginning_of_the_first_line(protocol: Protocol, text: str, title: str) -> None:
    assert await protocol.value("select corevo.title_of($1)", text) == title


async def test_jobs_and_threads_are_listed_newest_first_page_by_page(
    protocol: Protocol, account: UUID, worker: UUID
) -> None:
    admitted = [await protocol.admit(account, str(n)) for n in range(5)]
    for call, column, clock in (("list_jobs", "job_id", "created_at"), ("find_threads", "thread_id", "updated_at")):
        seen: list[UUID] = []
        at, last = None, None
        while rows := await protocol.all(f"select * from corevo.{call}($1, null, $2, $3, 2)", account, at, last):
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
    (row,) = await protocol.all("select title, current_job_id from corevo.thread_view($1, $2)", account, thread)
    assert tuple(row) == ("new", None)


async def test_notify_sends_each_message_on_its_channel(protocol: Protocol) -> None:
    heard: list[tuple[str, str]] = []
    await protocol.connection.add_listener("one", lambda _c, _p, channel, payload: heard.append((channel, payload)))
    await protocol.value("select corevo.notify($1, $2)", ["one", "two", "one"], ["a", "b", "c"])
    await protocol.value("select 1")
    assert heard == [("one", "a"), ("one", "c")]
    await protocol.connection.reset()
