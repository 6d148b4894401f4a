"""Two tabs, two people's browsers, two gateways: everyone sees the same conversation."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Browser, expect

from tests.browser.browser import Person, person
from tests.browser.conftest import Fleet

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_stop_in_one_tab_is_seen_in_the_other(fleet: Fleet, someone: Person) -> None:
    first = await someone.open(fleet.one.url)
    await first.send("stop me", "waits")
    await first.seen(8)
    second = await someone.open(first.page.url)
    await second.seen(8)
    await expect(second.stop).to_be_visible()
    await second.stop.click()
    for screen in (first, second):
        await expect(screen.last).to_contain_text("Stopped.")
        await expect(screen.stop).to_be_hidden()
        await screen.stored()
    assert [(m["text"], m["status"]) for m in await first.messages()] == [("stop me", None), ("waiting ", "cancelled")]


async def test_what_one_tab_sends_renames_and_deletes_the_other_shows(fleet: Fleet, someone: Person) -> None:
    first = await someone.open(fleet.one.url)
    await first.send("one", "says")
    await first.stored()
    second = await someone.open(first.page.url)
    await second.stored()
    await first.send("two", "says")
    await second.stored(2)
    await second.send("three", "says")
    await first.stored(3)
    row = second.page.locator("li.open")
    await row.get_by_role("button", name="Rename").click()
    await row.get_by_role("textbox").fill("A name of its own")
    await row.get_by_role("textbox").press("Enter")
    await expect(first.page.locator("#title")).to_have_text("A name of its own")
    await expect(first.page.locator("li.open .name")).to_have_text("A name of its own")
    await second.page.locator("li.open").get_by_role("button", name="Delete").click()
    await second.page.locator("#delete-confirm").click()
    await expect(second.page.locator("#blank")).to_contain_text("What shall we begin with?")
    await expect(first.page.locator("#blank")).to_contain_text("does not exist, or not any more")


async def test_two_browsers_on_two_gateways_see_one_stream(fleet: Fleet, browser: Browser) -> None:
    async with person(browser) as ann, person(browser) as ben:
        here = await ann.open(fleet.one.url)
        await here.send("60", "paced")
        await here.seen(30)
        there = await ben.open(f"{fleet.two.url}/t/{here.thread_id}")
        await asyncio.gather(here.stored(), there.stored())
        (_, answer) = await here.messages()
        for screen in (here, there):
            paints = await screen.paints()
            assert len(paints) >= 5
            assert all(answer["text"].startswith(text) for text in paints)
        await there.send("from the other side", "says")
        await here.stored(2)
        assert [m["text"] for m in await here.messages()] == [m["text"] for m in await there.messages()]


async def test_marks_tell_of_running_and_unread_conversations(fleet: Fleet, browser: Browser) -> None:
    async with person(browser) as ann, person(browser) as ben:
        here = await ann.open(fleet.one.url)
        await here.send("40 marked", "paced")
        await here.seen(5)
        there = await ben.open(fleet.two.url)
        row = there.page.locator("li", has_text="40 marked")
        await expect(row.get_by_role("link", name="40 marked , working")).to_be_visible()
        await here.page.locator("#new").click()
        await expect(row.get_by_role("link", name="40 marked , new answer")).to_be_visible()
        await row.get_by_role("link").click()
        await there.stored()
        await expect(here.page.locator("li.unread", has_text="40 marked")).to_have_count(0)
        await there.page.reload()
        await expect(there.page.locator("li", has_text="40 marked")).to_be_visible()
        await expect(there.page.locator("li.unread", has_text="40 marked")).to_have_count(0)


async def test_a_message_may_wait_for_the_present_answer_or_take_its_place(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.send("never ends", "waits")
    await screen.seen(8)
    await screen.choose("says")
    await screen.field.fill("after it")
    await expect(screen.page.locator("#hint")).to_contain_text("after it, or instead of it?")
    await expect(screen.page.locator("#send")).to_have_text("After this one")
    await screen.page.locator("#send").click()
    await expect(screen.last).to_contain_text("Waits until the answer before it has ended")
    await screen.field.fill("instead of all that")
    await screen.page.get_by_role("button", name="Instead").click()
    await screen.stored(3)
    assert [(m["text"], m["status"]) for m in await screen.messages()] == [
        ("never ends", None), ("waiting ", "cancelled"),
        ("after it", None), ("", "cancelled"),
        ("instead of all that", None), ("instead of all that", "completed"),
    ]  # fmt: skip
    await expect(screen.answers.nth(1)).to_contain_text("because a later message came instead")


async def test_search_finds_titles(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.send("A needle in the list", "says")
    await screen.stored()
    await screen.page.locator("#search").fill("NEEDLE in")
    await expect(screen.rows).to_have_count(1)
    await screen.page.locator("#search").fill("no such words")
    await expect(screen.page.locator("#threads-note")).to_have_text("No title contains these words.")
    await screen.page.locator("#search").press("Escape")
    await expect(screen.rows.first).to_be_visible()


async def test_a_busy_conversation_is_stopped_and_deleted(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.send("busy to the end", "waits")
    await screen.seen(8)
    await expect(screen.page.locator("li.open.running")).to_be_visible()
    await screen.page.locator("li.open").get_by_role("button", name="Delete").click()
    await expect(screen.page.locator("#delete-busy")).to_be_visible()
    await screen.page.locator("#delete-confirm").click()
    await expect(screen.page.locator("li", has_text="busy to the end")).to_have_count(0)
