"""What the chat page asks of a gateway: the page itself in two languages, history from its end, marks and HTML."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from corevo.store.connections import Connections
from tests.gateways import gateway_on
from tests.hand import Hand


@pytest.fixture
async def hand(database: str) -> AsyncIterator[Hand]:
    db = Connections(database, limit=1, name="test hand")
    hand = Hand(db)
    await hand.register("demo")
    yield hand
    await db.close()


@pytest.fixture
async def http(database: str, hand: Hand) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway_on(database, listens=False) as url, httpx.AsyncClient(base_url=url, timeout=20) as client:
        yield client


async def talk(http: httpx.AsyncClient, hand: Hand, *pairs: tuple[str, str]) -> str:
    """A thread of questions and answers."""
    body: dict[str, Any] = {}
    for question, answer in pairs:
        job = (await http.post("/api/jobs", json={"text": question, **body})).json()["job"]
        body = {"thread_id": job["thread_id"]}
        run = await hand.start()
        await run.say(answer)
        await run.finish()
    return str(body["thread_id"])


async def messages(http: httpx.AsyncClient, thread: str, **query: str) -> dict[str, Any]:
    answer = await http.get(f"/api/threads/{thread}/messages", params=query)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def test_history_is_read_from_its_end_and_on_from_any_message(http: httpx.AsyncClient, hand: Hand) -> None:
    thread = await talk(http, hand, *((f"q{n}", f"a{n}") for n in range(4)))
    oldest_first = [m["text"] for m in (await messages(http, thread))["items"]]
    seen: list[dict[str, Any]] = []
    query = {"order": "newest", "limit": "3"}
    while True:
        page = await messages(http, thread, **query)
        seen += page["items"]
        if page["next"] is None:
            break
        query["after"] = page["next"]
    assert [m["text"] for m in seen] == oldest_first[::-1]
    middle = seen[3]
    assert [m["text"] for m in (await messages(http, thread, after=middle["cursor"]))["items"]] == oldest_first[5:]
    older = await messages(http, thread, after=middle["cursor"], order="newest")
    assert [m["text"] for m in older["items"]] == oldest_first[:4][::-1]
    assert (await http.get(f"/api/threads/{thread}/messages?order=sideways")).json()["code"] == "invalid"


async def test_answers_come_with_html_and_with_their_error(http: httpx.AsyncClient, hand: Hand) -> None:
    thread = await talk(http, hand, ("**no markup** here", "but **here**"))
    await http.post("/api/jobs", json={"text": "fail", "thread_id": thread})
    await (await hand.start()).finish("failed", "agent_error")
    items = (await messages(http, thread))["items"]
    assert [m["html"] for m in items] == [None, "<p>but <strong>here</strong></p>\n", None, None]
    assert [m["error"] for m in items] == [None, None, None, {"code": "agent_error", "message": "agent error"}]


async def test_a_thread_is_unread_until_somebody_says_otherwise(http: httpx.AsyncClient, hand: Hand) -> None:
    thread = await talk(http, hand, ("hello", "there"))
    address = f"/api/threads/{thread}"
    assert (await http.get(address)).json()["unread"] is True
    assert (await http.patch(address, json={"unread": False})).json()["unread"] is False
    both = (await http.patch(address, json={"title": "named", "unread": True})).json()
    assert (both["title"], both["unread"]) == ("named", True)
    assert (await http.patch(address, json={})).json()["code"] == "invalid"


async def test_threads_are_found_by_their_titles(http: httpx.AsyncClient) -> None:
    for title in ("A cake", "bread", "Cake again"):
        await http.post("/api/threads", json={"title": title})
    found = (await http.get("/api/threads", params={"q": "cake"})).json()
    assert [thread["title"] for thread in found["items"]] == ["Cake again", "A cake"]
    assert len((await http.get("/api/threads", params={"q": ""})).json()["items"]) == 3
    for bad in ("x" * 201, "\x00"):
        assert (await http.get("/api/threads", params={"q": bad})).json()["code"] == "invalid"


async def test_the_page_is_one_in_each_language_for_every_thread(http: httpx.AsyncClient) -> None:
    for tag, word in (("en", "New conversation"), ("zh", "新对话")):
        page = await http.get("/", headers={"Accept-Language": f"{tag}-XX,{tag};q=0.9"})
        assert f'<html lang="{tag}">' in page.text and word in page.text
        assert page.headers["content-language"] == tag and page.headers["vary"] == "Accept-Language"
        thread = await http.get("/t/no-such-thread", headers={"Accept-Language": tag})
        assert thread.text == page.text


async def test_the_policy_lets_nothing_in_and_the_page_needs_no_exception(http: httpx.AsyncClient) -> None:
    page = await http.get("/")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy and "*" not in policy and "data:" not in policy and "http" not in policy
    assert not re.search(r"\son\w+=|\sstyle=|<style|<script(?![^>]*(src=|application/json))", page.text)


async def test_static_files_are_kept_for_ever_only_below_their_own_hash(http: httpx.AsyncClient) -> None:
    page = (await http.get("/")).text
    (folder,) = set(re.findall(r'"(/static/[0-9a-f]+)/', page))
    known = await http.get(f"{folder}/main.js")
    assert known.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert known.headers["content-type"].startswith("text/javascript")
    other_release = await http.get("/static/0123456789abcdef/main.js")
    assert other_release.text == known.text and other_release.headers["cache-control"] == "no-store"
    for name in ("none.js", "..%2fpage.py", "%2e%2e%2fpage.py"):
        assert (await http.get(f"{folder}/{name}")).status_code == 404
    modules = set(re.findall(r'from "\./([\w.]+)"', known.text))
    for name in modules:
        assert (await http.get(f"{folder}/{name}")).status_code == 200
