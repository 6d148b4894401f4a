"""Hostile markdown stays inert: no element that acts, no request that leaves, no word that is taken for markup."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.browser.browser import Person
from tests.browser.conftest import Fleet

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOSTILE = (Path(__file__).parent / "hostile.md").read_text("utf-8")

#: Every element of the log that does not come from a short list, every attribute that acts, every link that may not be.
ACTIVE = """() => {
  const fine = new Set(('ARTICLE SECTION DIV P SPAN BUTTON UL OL LI A BR CODE PRE EM STRONG S DEL H1 H2 H3 H4 H5 H6 HR '
    + 'BLOCKQUOTE TABLE THEAD TBODY TR TH TD svg use DETAILS SUMMARY').split(' '));
  const found = [];
  for (const element of document.querySelectorAll('#log *')) {
    if (!fine.has(element.tagName)) found.push(element.tagName);
    for (const { name, value } of element.attributes) {
      if (/^on|^style$|^src|^ping$|^form/.test(name)) found.push(`${name}=${value}`);
      if (name === 'href' && !/^(https?:\\/\\/|mailto:|#i-)/i.test(value)) found.push(`href=${value}`);
    }
    if (element.tagName === 'A' && (element.target !== '_blank' || !element.rel.includes('noopener'))) found.push('A');
  }
  return found;
}"""


async def test_a_hostile_corpus_is_inert_while_it_streams_and_when_it_is_stored(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.choose("says")
    await screen.field.fill(HOSTILE)
    await screen.page.locator("#send").click()
    await screen.stored()
    await screen.page.wait_for_timeout(300)
    assert await screen.page.evaluate(ACTIVE) == []
    assert not (await screen.page.title()).startswith("pwned")
    pictures = screen.last.locator("a.picture")
    assert await pictures.count() >= 4
    await expect(pictures.first).to_have_attribute("href", "https://evil.example/?q=1")
    await screen.page.reload()
    await screen.stored()
    assert await screen.page.evaluate(ACTIVE) == []
    # that no request left is checked at the end of each test, for this one with these links in sight


async def test_a_title_is_text(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url)
    await screen.send("<img src=https://evil.example/ onerror=alert(1)> **title**", "says")
    await screen.stored()
    await expect(screen.page.locator("#title")).to_contain_text("<img src=https://evil.example/")
    await expect(screen.page.locator("#threads img")).to_have_count(0)


async def test_code_is_copied_as_it_was_written(fleet: Fleet, someone: Person) -> None:
    await someone.context.grant_permissions(["clipboard-read", "clipboard-write"])
    screen = await someone.open(fleet.one.url)
    code = "if a < b && c:\n    print('<b>')"
    await screen.choose("says")
    await screen.field.fill(f"Here:\n\n```python\n{code}\n```\n")
    await screen.page.locator("#send").click()
    await screen.stored()
    await screen.last.get_by_role("button", name="Copy code").click()
    assert await screen.page.evaluate("navigator.clipboard.readText()") == code
    await screen.last.get_by_role("button", name="Copy", exact=True).click()
    copied = await screen.page.evaluate("navigator.clipboard.readText()")
    assert copied == (await screen.messages())[1]["text"]
