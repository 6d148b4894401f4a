"""Makes the README's pictures from the running product, with the demo agent.

.venv/bin/python -m tests.screenshots
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from playwright.async_api import Browser, expect

from corevo.store.migrations import migrate
from tests.browser.browser import Screen, launched, person
from tests.processes import role
from tests.server import create_database, serve

FOLDER = Path(__file__).parent / "browser" / "screenshots"
WIDE, PHONE = {"width": 1200, "height": 800}, {"width": 390, "height": 720}
BEFORE = ("echo Notes for Monday", "echo Which index helps here?", "echo A name for the boat", "markdown, please")


async def make(browser: Browser, url: str) -> None:
    async with person(browser, viewport=WIDE) as someone:
        screen = await someone.open(url)
        for text in BEFORE:
            await screen.page.locator("#new").click()
            await screen.send(text)
            await screen.stored()
        await rename(screen)
        address = screen.page.url
        await screen.page.mouse.move(600, 5)
        await picture(screen, "answer.png")

    async with person(browser, viewport=WIDE, color_scheme="dark") as someone:
        screen = await someone.open(address)
        await screen.stored()
        await screen.send("long")
        await screen.seen(600)
        await screen.field.fill("echo And then this?")
        await picture(screen, "streaming.png")
        await screen.page.locator("#instead").click()
        await screen.stored(3)

    async with person(browser, viewport=PHONE, has_touch=True, is_mobile=True, device_scale_factor=1.5) as someone:
        screen = await someone.open(address)
        await screen.stored(3)
        await screen.send("fail")
        await expect(screen.last.get_by_role("button", name="Send again?")).to_be_visible()
        await picture(screen, "phone.png")


async def rename(screen: Screen) -> None:
    """Titles come from the first message; a person's own wins."""
    await screen.page.locator("li.open").get_by_role("button", name="Rename").click()
    await screen.page.locator("li.open input").fill("What a run looks like")
    await screen.page.locator("li.open input").press("Enter")
    await expect(screen.page.locator("#title")).to_have_text("What a run looks like")


async def picture(screen: Screen, name: str) -> None:
    await screen.page.evaluate("document.activeElement.tagName === 'A' && document.activeElement.blur()")
    await screen.page.wait_for_timeout(300)
    await screen.page.screenshot(path=FOLDER / name)
    print(f"{FOLDER / name}: {(FOLDER / name).stat().st_size // 1024} kB")


async def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with serve() as maintenance:
        database = await create_database(maintenance, "screenshots")
        await migrate(database)
        async with role(database, "solo", "corevo.agents.demo", "--port", "0") as solo, launched() as browser:
            await make(browser, solo.url)


if __name__ == "__main__":
    asyncio.run(main())
