"""A real browser for tests: the system's Chromium, and a page that remembers what it did."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / ".axe" / "package" / "axe.min.js"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
PATIENCE_MS = 15_000
expect.set_options(timeout=PATIENCE_MS)

#: Every text that the newest answer had when a frame was painted.
PAINTS = """
window.paints = [];
(() => {
  let last = '';
  const look = () => {
    const answer = [...document.querySelectorAll('.message.assistant')].at(-1);
    const text = answer?.querySelector('.live')?.textContent;
    if (text !== undefined && text !== last) { last = text; window.paints.push(text); }
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})();
"""

#: How often the newest answer grew, its last text before the stored one took its place, and how long the page froze.
#: Reads no text while it grows: for 200 kB, sixty times a second, that alone would freeze a page.
FREEZES = """
window.grown = 0; window.last = ''; window.frozen = [];
(() => {
  new MutationObserver((records) => {
    if (records.some((r) => r.addedNodes.length && r.target.closest?.('.live'))) window.grown += 1;
    for (const { target, removedNodes } of records) {
      if (removedNodes.length && target.classList?.contains('rich')) {
        window.last = [...removedNodes].map((node) => node.textContent).join('');
      }
    }
  }).observe(document, { childList: true, subtree: true });
  new PerformanceObserver((list) => {
    for (const task of list.getEntries()) window.frozen.push(Math.round(task.duration));
  }).observe({ type: 'longtask', buffered: true });
})();
"""


def absent(what: str) -> None:
    """Skips, or fails where everything has to be there."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}: CI has to bring it")
    pytest.skip(what)


def find_chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        absent("no Chromium is installed (Debian: apt install chromium)")
    return found or ""


@contextlib.asynccontextmanager
async def launched() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        try:
            yield browser
        finally:
            await browser.close()


class Person:
    """One browser context: somebody with a browser. At the end nothing foreign was asked and nothing broke."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.requests: list[str] = []
        self.troubles: list[str] = []
        context.on("request", lambda request: self.requests.append(request.url))
        context.on("weberror", lambda error: self.troubles.append(str(error.error)))
        context.on("console", lambda message: self._note(message.type, message.text))
        context.on("dialog", lambda dialog: self.troubles.append(f"dialog: {dialog.message}"))

    def _note(self, kind: str, text: str) -> None:
        # a refused or lost request is a console error of the browser, and the page's business
        if kind == "error" and "Failed to load resource" not in text and "WebSocket" not in text:
            self.troubles.append(text)

    async def open(self, url: str, recorder: str = PAINTS) -> Screen:
        page = await self.context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        await page.add_init_script(recorder)
        await page.goto(url)
        return Screen(page)

    def check(self) -> None:
        hosts = {urlsplit(url).hostname for url in self.requests if not url.startswith("blob:")}
        assert hosts <= {"127.0.0.1"}, f"a request left the site: {hosts}"
        assert self.troubles == []


@contextlib.asynccontextmanager
async def person(browser: Browser, **options: Any) -> AsyncIterator[Person]:
    context = await browser.new_context(locale=options.pop("locale", "en-US"), **options)
    someone = Person(context)
    try:
        yield someone
        someone.check()
    finally:
        await context.close()


class Screen:
    """What one sees and does on the chat page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.answers = page.locator(".message.assistant")
        self.questions = page.locator(".message.user")
        self.stop = page.locator("#stop")
        self.field = page.locator("#text")
        self.rows = page.locator("#threads li")
        self.banner = page.locator("#connection")

    @property
    def last(self) -> Any:
        return self.answers.last

    @property
    def thread_id(self) -> str:
        return urlsplit(self.page.url).path.removeprefix("/t/")

    async def choose(self, agent: str) -> None:
        await self.page.locator("#agent").select_option(agent)

    async def send(self, text: str, agent: str | None = None) -> None:
        if agent is not None:
            await self.choose(agent)
        await self.field.fill(text)
        await self.field.press("Enter")

    async def stored(self, count: int = 1) -> None:
        """Waits until so many answers are shown as they are stored."""
        await expect(self.page.locator(".message.assistant[aria-busy=false]")).to_have_count(count)

    async def paints(self) -> list[str]:
        texts: list[str] = await self.page.evaluate("window.paints")
        return texts

    async def seen(self, characters: int) -> None:
        """Waits until the newest answer has so much text."""
        await self.page.wait_for_function(
            "n => ([...document.querySelectorAll('.message.assistant > :is(.live, .rich)')].at(-1)?.textContent ?? '')"
            ".length >= n",
            arg=characters,
        )

    async def longest_freeze(self) -> int:
        return max(await self.page.evaluate("window.frozen"), default=0)

    async def messages(self) -> list[dict[str, Any]]:
        """The stored messages of the open conversation, oldest first."""
        answer = await self.page.request.get(f"{self.origin}/api/threads/{self.thread_id}/messages?limit=100")
        items: list[dict[str, Any]] = (await answer.json())["items"]
        return items

    @property
    def origin(self) -> str:
        parts = urlsplit(self.page.url)
        return f"{parts.scheme}://{parts.netloc}"
