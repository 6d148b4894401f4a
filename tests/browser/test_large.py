"""A history of 10,000 messages and an answer of 200 kB neither freeze the page nor fill it."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from corevo.store.connections import connect
from tests.browser.browser import FREEZES, Person, Screen
from tests.browser.conftest import Fleet

pytestmark = pytest.mark.asyncio(loop_scope="session")

FREEZE_MS = 200
TURNS = 5_000
ACCOUNT = "00000000-0000-7000-8000-000000000001"
THREAD = "00000000-0000-7000-8000-00000000beef"

HISTORY = f"""
select corevo.local_account();
insert into corevo.threads (id, account_id, title, last_turn, created_at, updated_at)
  values ('{THREAD}', '{ACCOUNT}', 'ten thousand', {TURNS}, now(), now());
insert into corevo.jobs (id, account_id, thread_id, turn, agent, lane, input, fingerprint, timeout_seconds,
                         max_attempts, state, ready_at, waiting_since, created_at, finished_at)
  select ('10000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, '{ACCOUNT}', '{THREAD}', n, 'says', 'normal',
         '"x"', 'f', 300, 1, 'completed', now(), now(), now(), now()
    from generate_series(1, {TURNS}) n;
insert into corevo.messages (id, thread_id, job_id, turn, part, role, text, status, created_at)
  select gen_random_uuid(), '{THREAD}', ('10000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, n, part,
         case part when 1 then 'user' else 'assistant' end,
         case part when 1 then 'Question ' || n
                   else 'Answer ' || n || E' has **bold** words\\n\\n- a list\\n- of two\\n\\n'
                     || E'```python\\nx = ' || n || E'\\n```\\n' end,
         case part when 2 then 'completed' end, now()
    from generate_series(1, {TURNS}) n, generate_series(1, 2) part
"""


async def until_settled(screen: Screen) -> None:
    await screen.page.wait_for_function("() => document.querySelectorAll('.turn').length > 5")


async def streamed_whole(screen: Screen, stored: str) -> None:
    last: str = await screen.page.evaluate("window.last")
    same = last == stored
    assert same, f"{len(last)} of {len(stored)} characters, from {last[:50]!r} to {last[-50:]!r}"


async def test_ten_thousand_messages_scroll(fleet: Fleet, someone: Person) -> None:
    connection = await connect(fleet.database, name="test history")
    try:
        await connection.execute(HISTORY)
    finally:
        await connection.close()
    screen = await someone.open(f"{fleet.one.url}/t/{THREAD}", FREEZES)
    await expect(screen.last).to_contain_text(f"Answer {TURNS}")
    await until_settled(screen)
    assert await screen.page.evaluate("() => document.querySelectorAll('.turn').length") < 40, "one page first"

    turns = screen.page.locator(".turn")
    scroller = screen.page.locator("#scroller")
    reached = TURNS
    for _ in range(60):
        await scroller.evaluate("(s) => s.scrollBy(0, -2500)")
        await screen.page.wait_for_timeout(40)
        reached = int((await screen.questions.first.inner_text()).split()[1])
        if reached < TURNS - 180:
            break
    assert reached < TURNS - 180, "older messages came while scrolling"
    assert await turns.count() <= 140, "the page holds a window of the history"

    # what was read stays where it was while older ones came in above: nothing jumped by more than a screen
    shown = await screen.page.evaluate(
        "() => [...document.querySelectorAll('.message.user .text')]"
        ".map((e) => Number(e.textContent.split(' ')[1])).every((n, i, all) => i === 0 || n === all[i - 1] + 1)"
    )
    assert shown, "in order, without a hole"

    for _ in range(10):
        await scroller.evaluate("(s) => s.scrollBy(0, 2500)")
        await screen.page.wait_for_timeout(40)
    assert int((await screen.questions.last.inner_text()).split()[1]) > reached + 100, "newer ones came back"
    await screen.page.locator("#newest").click()
    await expect(screen.last).to_contain_text(f"Answer {TURNS}")
    await expect(screen.page.locator("#newest")).to_be_hidden()
    assert await screen.longest_freeze() < FREEZE_MS


async def test_an_answer_of_200_kb_streams(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url, FREEZES)
    await screen.send("200000", "big")
    await screen.page.wait_for_timeout(700)
    await screen.page.mouse.move(700, 300)
    await screen.page.mouse.wheel(0, -600)  # reading on above while it grows
    await expect(screen.page.locator("#newest")).to_be_visible()
    await screen.page.locator("#newest").click()
    await expect(screen.page.locator(".message.assistant[aria-busy=false]")).to_have_count(1, timeout=60_000)
    (_, answer) = await screen.messages()
    assert len(answer["text"]) == 200_000
    assert await screen.page.evaluate("window.grown") >= 10
    await streamed_whole(screen, answer["text"])
    await expect(screen.last.locator(".rich strong").last).to_be_attached()
    await screen.page.locator("#scroller").evaluate("(s) => s.scrollTo(0, s.scrollHeight / 2)")
    await screen.page.wait_for_timeout(300)
    assert await screen.longest_freeze() < FREEZE_MS
    await screen.page.reload()
    await expect(screen.last.locator(".rich strong").last).to_be_attached()
    assert await screen.longest_freeze() < FREEZE_MS


async def test_an_answer_of_one_endless_paragraph_streams(fleet: Fleet, someone: Person) -> None:
    screen = await someone.open(fleet.one.url, FREEZES)
    await screen.send("100000 in one paragraph", "big")
    await expect(screen.page.locator(".message.assistant[aria-busy=false]")).to_have_count(1, timeout=60_000)
    await streamed_whole(screen, (await screen.messages())[1]["text"])
    assert await screen.longest_freeze() < FREEZE_MS
