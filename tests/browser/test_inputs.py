"""People say things to a run that goes on: they add sentences, and answer its questions."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect

from tests.browser.browser import AXE, Person, person
from tests.browser.conftest import AGENTS, Fleet
from tests.browser.test_accessibility import violations
from tests.processes import role

SAID = ["<b>softer</b>", "enough"]

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_sentence_that_the_run_takes(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.send("begin", "listens")
    await screen.seen(10)
    other = await someone.open(f"{fleet.two.url}/t/{screen.thread_id}")
    await other.seen(10)

    await screen.field.fill("<b>softer</b>")
    await screen.page.get_by_role("button", name="Add to this one").click()
    await expect(screen.last).to_contain_text("[<b>softer</b>]")
    added = screen.page.locator(".message.added")
    await expect(added).to_have_count(1)
    await expect(added.locator(".text")).to_have_text("<b>softer</b>")
    await expect(added.locator(".mark")).to_have_text("Taken")
    await expect(other.page.locator(".message.added .text")).to_have_text("<b>softer</b>")

    await screen.field.fill("enough")
    await screen.field.press("Alt+Enter")
    await screen.stored()
    await expect(added.last.locator(".mark")).to_have_text("Taken")
    messages = await screen.messages()
    assert [m["text"].strip() for m in messages] == ["begin", *SAID, "listening [<b>softer</b>] [enough]"]
    await expect(added.locator(".ending")).to_have_count(0)
    for seen in (screen, other):
        await seen.page.reload()
        await seen.stored()
        await expect(seen.questions.first.locator(".text")).to_have_text("begin")
        await expect(seen.page.locator(".message.added .text")).to_have_text(SAID)
        await expect(seen.page.locator(".message.added .mark")).to_have_text(["Taken", "Taken"])


async def test_sentences_whose_question_is_on_an_older_page(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.send("begin", "listens")
    await screen.seen(10)
    job = (await screen.messages())[0]["job_id"]
    said = [f"sentence {n}" for n in range(20)] + ["enough"]
    for text in said:
        answer = await screen.page.request.post(f"{screen.origin}/api/jobs/{job}/input", data={"text": text})
        assert answer.status == 202
    await screen.stored()
    await screen.page.reload()
    await screen.stored()
    await screen.page.locator("#scroller").evaluate("it => it.scrollTo(0, 0)")
    await expect(screen.page.locator(".message.added .text")).to_have_text(said)
    await expect(screen.questions.first.locator(".text")).to_have_text("begin")


async def test_questions_answered_by_keyboard(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    keyboard = screen.page.keyboard
    other = await someone.open(fleet.two.url)
    await screen.send("book", "asks")
    form = screen.page.locator(".question")
    await expect(form).to_contain_text("Which seat?")
    await expect(screen.last).to_contain_text("Waits for your answer")
    await other.page.goto(f"{fleet.two.url}/t/{screen.thread_id}")
    await expect(other.page.locator(".question")).to_contain_text("Which seat?")
    if AXE.is_file():
        assert await violations(screen, AXE.read_text("utf-8")) == []

    await screen.field.focus()
    while await screen.page.evaluate("document.activeElement.closest('.question') === null"):
        await keyboard.press("Shift+Tab")
    await expect(form.get_by_role("button", name="Aisle")).to_be_focused()
    await keyboard.press("Enter")
    await expect(form).to_contain_text("In whose name?")
    await expect(form).to_have_count(1)
    await expect(other.page.locator(".question")).to_contain_text("In whose name?")
    await expect(screen.field).to_be_focused()
    if AXE.is_file():
        assert await violations(screen, AXE.read_text("utf-8")) == []

    await keyboard.press("Shift+Tab")
    await keyboard.press("Shift+Tab")
    await expect(form.get_by_role("textbox", name="In whose name?")).to_be_focused()
    await keyboard.type("Ada")
    await keyboard.press("Enter")
    await screen.stored()
    await expect(screen.last).to_contain_text("asking Aisle for Ada")
    await expect(form).to_have_count(0)
    await expect(other.page.locator(".question")).to_have_count(0)


async def test_a_question_ends_with_its_run(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.send("book", "asks")
    await expect(screen.page.locator(".question")).to_be_visible()
    await screen.stop.click()
    await screen.stored()
    await expect(screen.page.locator(".question")).to_have_count(0)


async def test_an_answer_that_comes_too_late(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.send("quick", "gives_up")
    await screen.seen(6)
    form = screen.page.locator(".question")
    await form.get_by_role("textbox", name="Now or never?").fill("now")
    await form.get_by_role("button", name="Answer").click()
    await expect(screen.page.locator("#announcer")).to_contain_text("The question was not open any more.")
    await expect(form).to_have_count(0)
    await screen.stop.click()
    await screen.stored()


async def test_a_sentence_that_was_not_taken_is_offered_once(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.send("begin", "waits")
    await screen.seen(8)
    added = screen.page.locator(".message.added")
    for count, text in enumerate(("and this", "or that"), 1):
        await screen.field.fill(text)
        await screen.page.get_by_role("button", name="Add to this one").click()
        await expect(added).to_have_count(count)
        await expect(added.last.locator(".mark")).to_have_text("Added")
    await screen.stop.click()
    await expect(added.first).to_contain_text("This was not taken before the answer ended. Send it as a message?")
    await screen.page.reload()
    await expect(added).to_have_count(2)
    await expect(added.first).to_contain_text("This was not taken before the answer ended. Send it as a message?")

    await added.last.get_by_role("button", name="Discard").click()
    await expect(added).to_have_count(1)
    await screen.choose("says")
    await added.get_by_role("button", name="Send as a message").click()
    await screen.stored(2)
    await expect(added).to_have_count(0)
    await screen.page.reload()
    await screen.stored(2)
    await expect(added).to_have_count(0)
    assert [m["text"] for m in await screen.messages()][2:] == ["and this", "and this"]


async def test_a_sentence_that_may_have_been_taken(own_database: str, browser: Browser) -> None:
    async with (
        person(browser) as someone,
        role(own_database, "web", "--port", "0") as web,
        role(own_database, "janitor"),
        role(own_database, "worker", AGENTS) as worker,
    ):
        screen = await someone.open(web.url)
        await screen.send("begin", "waits")
        await screen.seen(8)
        await screen.field.fill("and this")
        await screen.page.get_by_role("button", name="Add to this one").click()
        await expect(screen.page.locator(".message.added")).to_have_count(1)
        job = (await screen.messages())[0]["job_id"]
        command = await screen.page.evaluate("JSON.parse(sessionStorage.getItem('corevo.added'))[0].command_id")
        await screen.page.wait_for_function(
            "async (at) => (await (await fetch(at)).json()).state === 'accepted'",
            arg=f"/api/jobs/{job}/commands/{command}",
        )
        worker.kill()
        await expect(screen.page.locator(".message.added")).to_contain_text("this may have been taken", timeout=30_000)
        await worker.wait()
