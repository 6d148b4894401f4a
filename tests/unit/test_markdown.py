"""Markdown becomes HTML that may be shown: a short list of tags, links that lead out, pictures as links."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corevo.contracts import JobId, MessageView
from corevo.control import markdown
from corevo.control.markdown import Renderer, render

TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>]*)([^>]*)>")
PIECES = [
    "<script>", "</script>", "<img src=x onerror=alert(1)>", "<a href='javascript:alert(1)'>", "javascript:", "](",
    "![", "[x]", "`", "```", "\n", "|", "-", ">", "*", "_", "<", "&lt;", "&#x6a;", '"', "'", "https://e.example/",
    "<!--", "]]>", "\\", "~~", "\t", "\u202e", "(", ")", " style=", "<svg onload=x>", "# ",
]  # fmt: skip


def is_inert(html: str) -> None:
    for _, name, attributes in TAG.findall(html):
        assert name in markdown.TAGS, html
        named = re.findall(r'\s([\w-]+)="([^"]*)"', attributes)
        for attribute, value in named:
            assert attribute in {"href", "title", "class", "start", "target", "rel"}, html
            if attribute == "href":
                assert re.match(r"(https?://|mailto:)", value, re.IGNORECASE), html
        assert re.sub(r'\s[\w-]+="[^"]*"', "", attributes).strip() in ("", "/"), html


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_whatever_is_written_only_the_list_comes_out(text: str) -> None:
    is_inert(render(text))


def test_what_people_write_looks_as_meant() -> None:
    assert render("# A\n\nb **c** `d`\ne") == "<h1>A</h1>\n<p>b <strong>c</strong> <code>d</code><br>\ne</p>\n"
    assert '<code class="language-c++">' in render("```c++\nx\n```")
    assert '<td class="align-right">2</td>' in render("| a |\n|--:|\n| 2 |")
    assert render("3. x").startswith('<ol start="3">')
    assert render("<b>x</b> & y") == "<p>&lt;b&gt;x&lt;/b&gt; &amp; y</p>\n"


def test_links_open_elsewhere_and_pictures_are_links() -> None:
    link = render("[a](https://b.example/c)")
    assert 'href="https://b.example/c"' in link and 'target="_blank"' in link and 'rel="noopener noreferrer"' in link
    picture = render("![what it shows](https://b.example/c.png)")
    assert "<img" not in picture and 'class="picture"' in picture and ">what it shows</a>" in picture
    assert ">https://b.example/c.png</a>" in render("![](https://b.example/c.png)")


@pytest.mark.parametrize("target", ["/api/threads", "//b.example", "#x", "x.html", "ftp://b.example", "?q=1"])
def test_a_link_into_this_site_or_of_another_kind_leads_nowhere(target: str) -> None:
    assert "href" not in render(f"[a]({target})")


def message(text: str, role: str = "assistant") -> MessageView:
    now = datetime.now(UTC)
    return MessageView(uuid4(), 1, 2, role, text, JobId(uuid4()), None, None, None, now)


async def test_answers_are_rendered_questions_and_endless_texts_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "LIMIT_CHARACTERS", 10)
    answers = [message("*a*"), message("*b*", "user"), message("*" * 11), message("")]
    assert await Renderer().html(answers) == ["<p><em>a</em></p>\n", None, None, None]


async def test_the_newest_are_kept_and_the_others_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "KEPT_MESSAGES", 2)
    renderer = Renderer()
    messages = [message(str(n)) for n in range(3)]
    assert [html is None for html in await renderer.html(messages)] == [True, False, False]
    assert await renderer.html(messages[:1]) == ["<p>0</p>\n"]


async def test_one_defect_hides_no_text_and_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_on_x(text: str) -> str:
        if text == "x":
            raise RecursionError
        return text

    monkeypatch.setattr(markdown, "render", fail_on_x)
    assert await Renderer().html([message("x"), message("y")]) == [None, "y"]


async def test_nobody_waits_long_and_what_was_begun_is_there_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    gate = threading.Event()

    def slow(text: str) -> str:
        gate.wait(10)
        return text

    monkeypatch.setattr(markdown, "render", slow)
    monkeypatch.setattr(markdown, "WAIT_SECONDS", 0.05)
    renderer = Renderer()
    messages = [message("a"), message("b")]
    assert await renderer.html(messages) == [None, None]
    gate.set()
    monkeypatch.setattr(markdown, "WAIT_SECONDS", 5.0)
    assert await renderer.html(messages) == ["a", "b"]
