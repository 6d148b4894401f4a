"""axe-core finds no serious violation, in any state, light or dark, wide or narrow."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect

from tests.browser.browser import AXE, Screen, absent, person
from tests.browser.conftest import Fleet

pytestmark = pytest.mark.asyncio(loop_scope="session")

RICH = """# Heading

Text with **bold**, `code`, a [link](https://example.org/) and ![a picture](https://example.org/x.png)

> quoted

- a list

| a | b |
|---|:-:|
| 1 | 2 |

```python
a_line = "that is long " * 20  # so long that it has to scroll, because code is never broken into two lines by a page
```
"""

RUN = """async () => {
  const found = await axe.run(document, { resultTypes: ['violations'], preload: false });
  return found.violations.filter((v) => ['serious', 'critical'].includes(v.impact))
    .map((v) => `${v.id}: ${v.nodes.map((n) => n.html.slice(0, 120) + ' ' + n.failureSummary).join(' | ')}`);
}"""


@pytest.fixture(scope="module")
def axe() -> str:
    if not AXE.is_file():
        absent(f"axe-core is not in {AXE.parent.parent} (.ci/run fetches it: npm pack axe-core)")
    return AXE.read_text("utf-8")


async def violations(screen: Screen, axe: str) -> list[str]:
    await screen.page.evaluate(axe)
    found: list[str] = await screen.page.evaluate(RUN)
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_serious_violation(fleet: Fleet, browser: Browser, axe: str, scheme: str) -> None:
    async with person(browser, color_scheme=scheme, reduced_motion="reduce") as someone:
        screen = await someone.open(fleet.one.url)
        await expect(screen.page.locator("#blank")).to_be_visible()
        assert await violations(screen, axe) == [], "empty"

        await screen.choose("says")
        await screen.field.fill(RICH)
        await screen.page.locator("#send").click()
        await screen.stored()
        assert await violations(screen, axe) == [], "an answer"

        await screen.send("fail", "raises")
        await screen.stored(2)
        await screen.send("long", "waits")
        await screen.seen(8)
        await screen.choose("says")
        await screen.field.fill("and then")
        assert await violations(screen, axe) == [], "a failure, a run and the choice"
        await screen.page.locator("#send").click()
        await expect(screen.last).to_contain_text("Waits")
        await someone.context.set_offline(True)
        await screen.send("later", "says")
        await expect(screen.banner).to_be_visible()
        assert await violations(screen, axe) == [], "offline"
        await someone.context.set_offline(False)
        await expect(screen.banner).to_be_hidden()

        await screen.page.locator("#help-open").click()
        assert await violations(screen, axe) == [], "help"
        await screen.page.keyboard.press("Escape")
        await screen.page.locator("li.open").get_by_role("button", name="Delete").click()
        assert await violations(screen, axe) == [], "delete"
        await screen.page.keyboard.press("Escape")

        await screen.page.set_viewport_size({"width": 360, "height": 740})
        assert await violations(screen, axe) == [], "narrow"
        await screen.page.locator("#drawer-open").click()
        await expect(screen.page.locator("#drawer")).to_be_visible()
        await screen.page.wait_for_timeout(300)
        assert await violations(screen, axe) == [], "drawer"
        await screen.page.locator("#drawer-close").click()
        await screen.stop.click()
        await screen.stored(5)


async def test_what_is_read_aloud_is_the_beginning_and_the_end_not_every_word(fleet: Fleet, browser: Browser) -> None:
    async with person(browser) as someone:
        screen = await someone.open(fleet.one.url)
        await screen.page.evaluate(
            """() => { window.said = [];
            new MutationObserver(() => window.said.push(document.getElementById('announcer').textContent))
              .observe(document.getElementById('announcer'), { childList: true }); }"""
        )
        await screen.send("40", "paced")
        await screen.stored()
        said = await screen.page.evaluate("window.said")
        assert said[-2:] == ["The answer begins.", "The answer is complete."]
        assert len(said) <= 6
        await expect(screen.page.locator("#log")).to_have_attribute("aria-live", "off")
