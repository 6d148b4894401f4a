"""Text grows in front of the reader, and whatever happens to page, network or gateway, it is the stored text."""

from __future__ import annotations

import itertools
import signal

import pytest
from playwright.async_api import expect

from tests.browser.agents import paced_text
from tests.browser.browser import Person, Screen
from tests.browser.conftest import Fleet
from tests.browser.forwarder import forwarder
from tests.processes import role

pytestmark = pytest.mark.asyncio(loop_scope="session")

COUNT = 60


async def is_the_stored_text(screen: Screen, count: int = COUNT) -> list[str]:
    """Every text that was ever painted is a beginning of the stored one, and the last is all of it."""
    await screen.stored()
    (_, answer) = await screen.messages()
    assert answer["text"].encode() == paced_text(count).encode()
    paints = await screen.paints()
    assert [p for p in paints if not answer["text"].startswith(p)] == [], "something was lost or doubled"
    shown = await screen.last.locator(".rich").inner_text()
    assert shown.split() == answer["text"].split()
    return paints


async def test_an_answer_grows_in_many_paints_and_ends_as_it_is_stored(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.send(f"{COUNT}", "paced")
    paints = await is_the_stored_text(screen)
    assert len(paints) >= 5
    assert all(len(a) < len(b) for a, b in itertools.pairwise(paints)), "text only grows"
    assert paints[-1].encode() == paced_text(COUNT).encode()


async def test_a_reload_in_mid_stream_loses_and_doubles_nothing(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.send(f"{COUNT}", "paced")
    await screen.seen(60)
    before = (await screen.paints())[-1]
    await screen.page.reload()
    await screen.seen(len(before))
    paints = await screen.paints()
    assert len(paints) <= 3, "history is painted at once, not played again"
    await is_the_stored_text(screen)
    await expect(screen.questions).to_have_count(1)


async def test_a_network_that_goes_and_comes_back_costs_nothing(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.send(f"{COUNT}", "paced")
    await screen.seen(40)
    await someone.context.set_offline(True)
    await expect(screen.banner).to_contain_text("You are offline")
    await screen.page.wait_for_timeout(250)  # a paint of what had come before may still be due
    held = (await screen.paints())[-1]
    await screen.send("5", "paced")
    await expect(screen.questions.last).to_contain_text("Will be sent when the connection is back.")
    await screen.page.wait_for_timeout(500)  # the run goes on, and nobody sees it
    assert (await screen.paints())[-1] == held
    await someone.context.set_offline(False)
    await expect(screen.banner).to_be_hidden()
    await screen.stored(2)
    messages = await screen.messages()
    assert [m["text"] for m in messages] == [f"{COUNT}", paced_text(COUNT), "5", paced_text(5)]


async def test_a_stop_pressed_while_the_network_is_away_is_said_when_it_is_back(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.send("2000", "paced")
    await screen.seen(10)
    await someone.context.set_offline(True)
    await expect(screen.banner).to_contain_text("You are offline")
    await screen.page.locator("#stop").click()
    await expect(screen.page.locator("#stop")).to_be_disabled()
    await someone.context.set_offline(False)
    await screen.stored()
    assert [m["status"] for m in await screen.messages()] == [None, "cancelled"]


async def test_a_message_that_was_on_its_way_survives_a_reload(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.choose("says")
    await someone.context.set_offline(True)
    await expect(screen.banner).to_be_visible()
    await screen.send("written in a tunnel")
    await someone.context.set_offline(False)
    await screen.page.reload()
    await screen.stored()
    assert [m["text"] for m in await screen.messages()] == ["written in a tunnel"] * 2


async def test_a_killed_gateway_is_replaced_by_another(fleet: Fleet, someone: Person) -> None:
    async with role(fleet.database, "web", "--port", "0") as doomed, forwarder(doomed.port) as address:
        screen = await someone.open(address.url)
        await screen.send("100", "paced")
        await screen.seen(60)
        address.target = fleet.two.port
        doomed.kill()
        await doomed.wait()
        await is_the_stored_text(screen, 100)
        assert len(await screen.paints()) >= 5


async def test_a_gateway_that_stops_says_so_and_another_goes_on(fleet: Fleet, someone: Person) -> None:
    async with role(fleet.database, "web", "--port", "0") as stopping, forwarder(stopping.port) as address:
        screen = await someone.open(address.url)
        await screen.send("100", "paced")
        await screen.seen(60)
        address.target = fleet.two.port
        stopping.signal(signal.SIGTERM)
        await is_the_stored_text(screen, 100)


async def test_a_socket_that_died_in_its_sleep_is_noticed_on_waking(fleet: Fleet, someone: Person) -> None:
    async with forwarder(fleet.one.port) as address:
        screen = await someone.open(address.url)
        await screen.send("100", "paced")
        await screen.seen(60)
        address.thawed.clear()
        before = address.connections
        await screen.page.wait_for_timeout(1_200)
        await screen.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        await screen.page.wait_for_function("() => document.getElementById('connection').hidden === false")
        assert address.connections > before
        address.thawed.set()
        await is_the_stored_text(screen, 100)


async def test_tools_status_and_usage_are_told(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.send("go 1", "tools")
    steps = screen.last.locator(".steps li")
    await expect(steps.first).to_contain_text("search_flights")
    await expect(steps.first).to_contain_text("Vienna")
    await expect(steps.nth(1)).to_contain_text("no seat left")
    await expect(screen.last.locator(".usage")).to_contain_text("1,234 tokens in, 56 out")
    await screen.stored()
    await expect(screen.last.locator("summary")).to_have_text("2 steps")


async def test_the_page_speaks_the_readers_language(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await expect(screen.page.locator("html")).to_have_attribute("lang", "en")
    assert someone.context.browser is not None
    chinese = await someone.context.browser.new_context(locale="zh-CN")
    page = await chinese.new_page()
    await page.goto(fleet.one.url)
    await expect(page.locator("html")).to_have_attribute("lang", "zh")
    await expect(page.locator("#new")).to_have_text("新对话")
    await expect(page.locator("#send")).to_have_text("发送")
    await expect(page.locator("#demo")).to_contain_text("演示代理")
    await chinese.close()
