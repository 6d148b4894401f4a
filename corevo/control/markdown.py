"""What an answer looks like: its markdown as HTML that a page may show as it is.

Rendered twice guarded: the parser takes no HTML, and the sanitiser lets only a short list of tags and attributes
through. A picture becomes a link, because loading one tells its server what the text wanted it to know. Rendering
takes up to 25 µs a character, so it happens in a thread, once for each message that is asked for repeatedly.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import nh3
import structlog
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from corevo.contracts import MessageView

log = structlog.get_logger()

#: A longer text is shown as it was written.
LIMIT_CHARACTERS = 300_000
#: Of one answer to a client; what it does not get is rendered meanwhile for the next time it asks.
WAIT_SECONDS = 4.0
KEPT_CHARACTERS, KEPT_MESSAGES = 8_000_000, 5_000

TAGS = {
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s",
    "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
ATTRIBUTES = {"a": {"href", "title", "class"}, "code": {"class"}, "ol": {"start"}, "td": {"class"}, "th": {"class"}}
SCHEMES = {"http", "https", "mailto"}
ABSOLUTE = re.compile(r"(https?://|mailto:)", re.IGNORECASE)
CLASSES = re.compile(r"(language-[\w+#.-]{1,40}|picture|align-(left|right|center))", re.ASCII)


def render(text: str) -> str:
    """Markdown as safe HTML."""
    return nh3.clean(
        _parser.render(text),
        tags=TAGS,
        attributes=ATTRIBUTES,
        attribute_filter=_keep,
        url_schemes=SCHEMES,
        link_rel="noopener noreferrer",
        set_tag_attribute_values={"a": {"target": "_blank"}},
        strip_comments=True,
    )


class Renderer:
    """Renders answers off the loop, one at a time, and keeps the newest. Only its thread writes to what is kept."""

    def __init__(self) -> None:
        self._kept: OrderedDict[UUID, str | None] = OrderedDict()
        self._kept_characters = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="markdown")

    async def html(self, messages: Sequence[MessageView]) -> list[str | None]:
        """The HTML of each answer; None for what is no answer, is too long or did not get ready in time."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_SECONDS):
                for message in messages:
                    if message.role != "assistant" or not message.text or message.id in self._kept:
                        continue
                    if len(message.text) <= LIMIT_CHARACTERS:
                        # one at a time: when the time is over, at most one of ours is under way, and is kept too
                        await loop.run_in_executor(self._thread, self._render, message)
        return [self._kept.get(message.id) for message in messages]

    def _render(self, message: MessageView) -> None:
        if message.id in self._kept:
            return
        try:
            html = render(message.text)
        except Exception:  # a defect of the parser must not hide the text, which is shown as it was written
            log.exception("an answer could not be rendered", message_id=str(message.id))
            html = None
        self._kept[message.id] = html
        self._kept_characters += len(html or "")
        while self._kept_characters > KEPT_CHARACTERS or len(self._kept) > KEPT_MESSAGES:
            self._kept_characters -= len(self._kept.popitem(last=False)[1] or "")


def _keep(tag: str, attribute: str, value: str) -> str | None:
    if attribute == "href":
        return value if ABSOLUTE.match(value) else None  # a relative link would point into this very site
    if attribute == "class":
        return value if CLASSES.fullmatch(value) else None
    return value


def _image(self: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType) -> str:
    """A picture as a link to it, named by its text."""
    token = tokens[at]
    label = self.renderInlineAsText(token.children, options, env) or str(token.attrs.get("src", ""))
    href = _escape(str(token.attrs.get("src", "")))
    return f'<a class="picture" href="{href}">{_escape(label)}</a>'


def _cell(self: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: EnvType) -> str:
    """A cell's alignment as a class: the page's policy allows no style attribute."""
    token = tokens[at]
    style = str(token.attrs.pop("style", ""))
    if style.startswith("text-align:"):
        token.attrs["class"] = "align-" + style.removeprefix("text-align:")
    return self.renderToken(tokens, at, options, env)


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def _make_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    parser.add_render_rule("image", _image)
    for name in ("th_open", "td_open"):
        parser.add_render_rule(name, _cell)
    return parser


_parser = _make_parser()
