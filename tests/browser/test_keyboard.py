"""Everything works without a mouse, and what one writes is sent when one means to send it."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.browser.browser import Person, Screen
from tests.browser.conftest import Fleet

pytestmark = pytest.mark.asyncio(loop_scope="session")

FOCUSED = """() => {
  const it = document.activeElement, box = it.getBoundingClientRect(), style = getComputedStyle(it);
  const ring = style.outlineStyle !== 'none' || it.id === 'text' || it.id === 'search';
  const name = it.getAttribute('aria-label') || it.textContent.trim() || it.id;
  return { body: it === document.body, name, ring, seen: box.width > 0 };
}"""


async def test_a_conversation_by_keyboard_alone(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    keyboard = screen.page.keyboard
    await expect(screen.field).to_be_focused()
    await screen.choose("says")
    await screen.field.focus()
    await keyboard.type("first line")
    await keyboard.press("Shift+Enter")
    await keyboard.type("second line")
    await keyboard.press("Enter")
    await screen.stored()
    assert (await screen.messages())[0]["text"] == "first line\nsecond line"
    await expect(screen.field).to_be_focused()

    await keyboard.press("ArrowUp")
    await expect(screen.field).to_have_value("first line\nsecond line")
    await keyboard.press("Escape")
    await expect(screen.field).to_have_value("")

    # to the choice of an agent and back, by Tab
    await keyboard.press("Tab")
    await expect(screen.page.locator("#agent")).to_be_focused()
    await keyboard.type("waits")
    await keyboard.press("Shift+Tab")
    await keyboard.type("stop this")
    await keyboard.press("Enter")
    await keyboard.press("Control+.")  # before the gateway has answered
    await expect(screen.last).to_contain_text("Stopped.")

    await screen.send("another one", "waits")
    await screen.stored(2)
    await expect(screen.last).to_contain_text("waiting")
    await screen.choose("says")
    await screen.field.focus()
    await keyboard.type("instead")
    await keyboard.press("Control+Enter")
    await screen.stored(4)
    assert (await screen.messages())[-1]["text"] == "instead"

    await keyboard.press("Control+/")
    await expect(screen.page.locator("#help")).to_be_visible()
    await keyboard.press("Escape")
    await expect(screen.page.locator("#help")).to_be_hidden()

    await keyboard.press("Control+Shift+O")
    await expect(screen.page.locator("#blank")).to_be_visible()
    assert screen.page.url == fleet.one.url + "/"
    await keyboard.press("Control+k")
    await keyboard.type("first line")
    await expect(screen.rows).to_have_count(1)
    await keyboard.press("ArrowDown")
    await keyboard.press("Enter")
    await screen.stored(4)
    await keyboard.press("Control+k")
    await keyboard.press("ArrowDown")
    await keyboard.press("F2")
    await keyboard.type("Named by keys")
    await keyboard.press("Enter")
    await expect(screen.page.locator("#title")).to_have_text("Named by keys")
    await expect(screen.page.locator("#threads a").first).to_be_focused()
    await keyboard.press("Delete")
    await expect(screen.page.locator("#delete")).to_be_visible()
    await keyboard.press("Escape")
    await expect(screen.page.locator("#threads a").first).to_be_focused()
    await keyboard.press("Delete")
    await keyboard.press("Tab")
    await keyboard.press("Enter")
    await expect(screen.page.locator("li", has_text="Named by keys")).to_have_count(0)


async def test_every_stop_of_tab_is_named_and_visible(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.choose("says")
    await screen.field.fill("Text\n\n```python\ncode\n```\n\n| a |\n|---|\n| b |\n\n[link](https://example.org/)")
    await screen.page.locator("#send").click()
    await screen.stored()
    await screen.page.evaluate("document.activeElement.blur()")
    names: list[str] = []
    for _ in range(60):
        await screen.page.keyboard.press("Tab")
        stop = await screen.page.evaluate(FOCUSED)
        if stop["body"]:
            continue  # between the last stop and the first one
        assert stop["name"] and stop["ring"] and stop["seen"], stop
        names.append(stop["name"])
        if stop["name"] == "Keyboard and help" and "text" in names:
            break
    for name in ("Skip to the message field", "New conversation", "Search titles", "Copy", "Copy code", "Send again",
                 "Edit and send again", "link", "Table", "Code: python", "text"):  # fmt: skip
        assert name in names, names


async def test_the_drawer_of_a_phone_by_keyboard(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.page.set_viewport_size({"width": 360, "height": 740})
    await expect(screen.page.locator("#drawer")).to_be_hidden()
    await screen.page.locator("#drawer-open").focus()
    await screen.page.keyboard.press("Enter")
    await expect(screen.page.locator("#drawer")).to_be_visible()
    await expect(screen.page.locator("#drawer-close")).to_be_focused()
    await screen.page.keyboard.press("Escape")
    await expect(screen.page.locator("#drawer")).to_be_hidden()
    await expect(screen.page.locator("#drawer-open")).to_be_focused()
    await screen.page.keyboard.press("Control+k")
    await expect(screen.page.locator("#search")).to_be_focused()


async def test_enter_that_ends_the_choice_of_a_character_sends_nothing(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.field.fill("にほn")
    await compose(screen, {"key": "Enter", "isComposing": True})
    await compose(screen, {"key": "Enter", "keyCode": 229})
    await expect(screen.questions).to_have_count(0)
    await expect(screen.field).to_have_value("にほn")


async def compose(screen: Screen, key: dict[str, object]) -> None:
    await screen.field.evaluate(
        "(field, key) => field.dispatchEvent(new KeyboardEvent('keydown', {bubbles: true, cancelable: true, ...key}))",
        key,
    )
