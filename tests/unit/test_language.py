"""The page's words: the same in each language, all used, and the language that was asked for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from corevo.control import language

WORDS = language.load()
CONTROL = Path(language.__file__).parent
TEXT = "\n".join(
    path.read_text("utf-8") for folder in ("static", "templates") for path in sorted((CONTROL / folder).iterdir())
)


def test_every_language_has_the_same_words_and_the_same_places_in_them() -> None:
    assert set(WORDS) == {"en", "zh"}

    def places(tag: str) -> dict[str, list[str]]:
        return {name: sorted(re.findall(r"\{\w+\}", text)) for name, text in WORDS[tag].items()}

    assert places("en") == places("zh")
    assert all(text.strip() for words in WORDS.values() for text in words.values())


def test_every_word_that_the_page_names_exists_and_every_one_that_exists_is_named() -> None:
    named = set(re.findall(r"""[\["`(]((?:[a-z]+)\.[a-z_.]+)["`\]]""", TEXT)) & set(WORDS["en"])
    missing = {
        name
        for name in re.findall(r"""\bt\("([^"$]+)\"""", TEXT) + re.findall(r"""words\["([^"]+)"\]""", TEXT)
        if name not in WORDS["en"]
    }
    assert missing == set()
    made = r"state\.(queued_place\.|failed_|lost|interrupted|timed_out|expired)|refused\.|work\.(step_|summary\.)"
    unused = {
        name for name in WORDS["en"] if name not in named and not re.match(made, name) and f'"{name}"' not in TEXT
    }
    assert unused == set()


@pytest.mark.parametrize(
    ("header", "tag"),
    [
        (None, "en"),
        ("", "en"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("zh-Hant-TW", "zh"),
        ("en-US,en;q=0.9,zh;q=0.8", "en"),
        ("de,fr;q=0.9,zh;q=0.1", "zh"),
        ("de,fr", "en"),
        ("en;q=0.2, zh ; q=0.7", "zh"),
        ("zh;q=0, en;q=0.1", "en"),
        ("zh;q=x", "en"),
        ("*" * 100_000 + ",zh", "en"),
    ],
)
def test_the_language_is_the_first_wish_that_can_be_met(header: str | None, tag: str) -> None:
    assert language.choose(header, WORDS) == tag
