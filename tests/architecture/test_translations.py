"""The Chinese README says what the English one says."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENGLISH = (ROOT / "README.md").read_text("utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text("utf-8")


def outline(text: str) -> list[str]:
    """Levels of headings, kinds of blocks and images, in order."""
    found = re.findall(r"^(#+ |```\w*|!\[[^\]]*\]\([^)]*\)|\|---)", text, re.MULTILINE)
    return [re.sub(r"!\[[^\]]*\]", "!", item) for item in found]


def code_blocks(text: str) -> list[str]:
    return re.findall(r"^```\w*\n.*?^```", text, re.MULTILINE | re.DOTALL)


def names(text: str) -> list[str]:
    """Everything in backticks outside of blocks: settings, commands, codes, functions."""
    prose = re.sub(r"^```\w*\n.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return sorted(re.sub(r"\s+", " ", name) for name in re.findall(r"`([^`]+)`", prose))


def first_columns(text: str) -> list[str]:
    return [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| `")]


def test_both_have_the_same_headings_blocks_and_pictures() -> None:
    assert outline(CHINESE) == outline(ENGLISH)


def test_both_show_the_same_commands_and_code() -> None:
    assert code_blocks(CHINESE) == code_blocks(ENGLISH)


def test_both_list_the_same_settings_and_codes_in_the_same_order() -> None:
    assert first_columns(CHINESE) == first_columns(ENGLISH)


def test_both_name_the_same_things() -> None:
    assert names(CHINESE) == names(ENGLISH)


def test_both_link_to_the_same_files() -> None:
    def links(text: str) -> list[str]:
        return sorted(re.findall(r"\]\(([^)]+)\)", text))

    ours = {"README.md", "README.zh-CN.md"}
    assert [x for x in links(CHINESE) if x not in ours] == [x for x in links(ENGLISH) if x not in ours]
