"""Each way a message can fail has its words and a way on."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from playwright.async_api import Browser, Route, WebSocketRoute, expect

from corevo.store.connections import Connections
from tests.browser.browser import Person, Screen, person
from tests.browser.conftest import AGENTS, Fleet
from tests.hand import Hand
from tests.processes import role

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def again(screen: Screen, words: str) -> None:
    """The words are shown, also after a reload, with the offer to send it again."""
    await expect(screen.last).to_contain_text(words)
    await screen.page.reload()
    await expect(screen.last).to_contain_text(words)
    await expect(screen.last.get_by_role("button", name="Send again?")).to_be_visible()


async def test_failed(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.send("fall", "raises")
    await again(screen, "It failed")
    await expect(screen.last).to_contain_text("before the fall")
    await screen.choose("says")
    await screen.last.get_by_role("button", name="Send again?").click()
    await screen.stored(2)
    assert [m["text"] for m in await screen.messages()][2:] == ["fall", "fall"]


async def test_timed_out(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.send("hurry", "late")
    await again(screen, "It took longer than it may")


async def test_lost_and_interrupted(own_database: str, browser: Browser) -> None:
    async with person(browser) as someone, role(own_database, "web", "--port", "0") as web:
        async with role(own_database, "janitor"), role(own_database, "worker", AGENTS) as killed:
            screen = await someone.open(web.url)
            await screen.send("do not die", "waits")
            await screen.seen(8)
            killed.kill()
            await again(screen, "The worker was lost. Things it began outside may have happened.")
            await killed.wait()
        async with role(own_database, "worker", AGENTS, settings={"COREVO_STOP_GRACE_SECONDS": "5.2"}) as deployed:
            await screen.choose("waits")
            await screen.last.get_by_role("button", name="Send again?").click()
            await expect(screen.answers).to_have_count(2)
            await expect(screen.last).to_contain_text("waiting")
            deployed.signal(signal.SIGTERM)
            await again(screen, "Interrupted by a deploy")


async def test_queued_in_line_and_expired(own_database: str, browser: Browser) -> None:
    db = Connections(own_database, limit=1, name="test hand")
    hand = Hand(db)
    await hand.register("slowpoke")
    async with person(browser) as someone, role(own_database, "web", "--port", "0") as web:
        first, second = await someone.open(web.url), await someone.open(web.url)
        await expect(first.page.locator("#agent")).to_be_hidden()  # there is one, so there is no choice
        await first.send("one")
        await expect(first.last).to_contain_text("Queued, next in line")
        await second.send("two")
        await expect(second.last).to_contain_text("Queued, 2nd in line")
        run = await hand.start(agent="slowpoke")
        await expect(second.last).to_contain_text("Queued, next in line", timeout=10_000)
        await run.finish()
        await expect(first.last).to_contain_text("It ended without a word.")
        async with role(own_database, "janitor", settings={"COREVO_QUEUE_START_SECONDS": "0.5"}):
            await again(second, "No worker took it in time.")
    await db.close()


async def test_a_full_line_of_the_conversation(own_database: str, browser: Browser) -> None:
    async with (
        person(browser) as someone,
        role(own_database, "web", "--port", "0", settings={"COREVO_NEXT_LIMIT": "1"}) as web,
        role(own_database, "worker", AGENTS),
    ):
        screen = await someone.open(web.url)
        await screen.send("runs", "waits")
        await screen.seen(8)
        await screen.send("waits", "says")
        await expect(screen.answers).to_have_count(2)
        await screen.send("is too many", "says")
        question = screen.questions.last
        await expect(question).to_contain_text("Too many messages wait in this conversation already.")
        await screen.stop.click()
        await screen.stored(2)
        await expect(question.get_by_role("button", name="Try again")).to_be_enabled(timeout=10_000)
        await question.get_by_role("button", name="Try again").click()
        await screen.stored(3)
        assert [m["text"] for m in await screen.messages()][-2:] == ["is too many", "is too many"]


REFUSALS = {
    "queue_full": "Too many are waiting at the moment.",
    "too_many_in_flight": "You have as many runs going as you may.",
    "rate_limited": "That was too fast.",
    "out_of_credits": "Today's credits are used up.",
    "agent_unavailable": "No worker serves this agent at the moment.",
    "unavailable": "The database does not answer at the moment.",
    "unheard_of": "It was refused: in its own words",
}


async def test_what_a_server_may_answer_is_said_in_words(fleet: Fleet, someone: Person) -> None:
    codes = list(REFUSALS)

    def refuse(socket: WebSocketRoute) -> None:
        def answer(text: Any) -> None:
            frame = json.loads(text)
            if frame["op"] == "send" and codes:
                code = codes.pop(0)
                refusal = {"ev": "error", "ref": frame["ref"], "code": code, "detail": "in its own words"}
                socket.send(json.dumps(refusal | ({"retry_after_seconds": 1} if code == "queue_full" else {})))

        socket.on_message(answer)

    await someone.context.route_web_socket("**/api/ws", refuse)
    screen = await someone.open(fleet.one.url)
    for code, words in REFUSALS.items():
        await screen.send(f"refused as {code}", "says")
        note = screen.questions.last.locator(".ending")
        await expect(note).to_contain_text(words)
        if code == "queue_full":
            await expect(note.get_by_role("button", name="Try again in 1 s")).to_be_disabled()
        await expect(note.get_by_role("button", name="Try again", exact=True)).to_be_enabled()
        await note.get_by_role("button", name="Edit and send again").click()
        await expect(screen.field).to_have_value(f"refused as {code}")
        await expect(screen.questions).to_have_count(0)


async def test_a_message_that_is_too_long_is_not_sent(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.choose("says")
    await screen.field.fill("🙂" * 200_001)
    await expect(screen.page.locator("#hint")).to_contain_text("200,001 of 200,000 characters: too long to send")
    await expect(screen.page.locator("#send")).to_be_disabled()
    await screen.field.press("Enter")
    await expect(screen.questions).to_have_count(0)
    await screen.field.fill("🙂" * 200)
    await expect(screen.page.locator("#send")).to_be_enabled()


async def test_a_server_that_answers_nothing_leaves_words_and_a_retry(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.send("still here", "says")
    await screen.stored()
    away = True

    async def answer(route: Route) -> None:
        if away:
            problem = {"code": "unavailable", "detail": "x", "status": 503}
            await route.fulfill(status=503, content_type="application/problem+json", body=json.dumps(problem))
        else:
            await route.continue_()

    await someone.context.route("**/api/threads**", answer)
    await screen.page.reload()
    await expect(screen.page.locator("#blank")).to_contain_text("The messages could not be loaded.")
    await expect(screen.page.locator("#blank")).to_contain_text("The database does not answer at the moment.")
    await expect(screen.page.locator("#threads-note")).to_contain_text("The list could not be loaded.")
    away = False
    await screen.page.get_by_role("button", name="Try again").click()
    await screen.stored()


async def test_a_conversation_that_is_none(fleet: Fleet, someone: Person) -> None:
    for address in ("00000000-0000-7000-8000-00000000ffff", "nonsense"):
        screen = await someone.open(f"{fleet.one.url}/t/{address}")
        await expect(screen.page.locator("#blank")).to_contain_text("This conversation does not exist")


async def test_edit_and_send_again(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.send("with a tpyo", "says")
    await screen.stored()
    await screen.questions.last.hover()
    await screen.questions.last.get_by_role("button", name="Edit and send again").click()
    await expect(screen.page.locator("#editing")).to_be_visible()
    await screen.field.fill("without a typo")
    await screen.field.press("Enter")
    await screen.stored(2)
    await screen.last.hover()
    await screen.last.get_by_role("button", name="Send again").click()
    await screen.stored(3)
    texts = [m["text"] for m in await screen.messages() if m["role"] == "user"]
    assert texts == ["with a tpyo", "without a typo", "without a typo"]
