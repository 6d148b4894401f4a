"""The languages of the page: one catalogue of words each, with the same names in both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent / "words"
DEFAULT = "en"

Words = Mapping[str, str]


def load() -> dict[str, Words]:
    """By language tag."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))}


def choose(header: str | None, known: Mapping[str, Words]) -> str:
    """The language that an Accept-Language header asks for first, among those there are."""
    wishes: list[tuple[float, int, str]] = []
    for place, part in enumerate((header or "")[:500].split(",")):
        tag, _, weight = part.strip().partition(";")
        wishes.append((-_quality(weight), place, tag.strip().lower().partition("-")[0]))
    for quality, _, tag in sorted(wishes):
        if quality < 0 and tag in known:
            return tag
    return DEFAULT


def _quality(weight: str) -> float:
    name, _, value = weight.strip().partition("=")
    if name.strip().lower() != "q":
        return 1.0
    try:
        return min(max(float(value), 0.0), 1.0)
    except ValueError:
        return 0.0
