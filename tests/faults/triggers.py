"""When a fault strikes: before a statement is sent or after it committed, at a named function or the n-th of all.

Written FAULT@WHEN:POINT[#N][/SEEN], as in `kill@after:start`, `stop@before:*#17`, `reset@after:beat#1/append_events`:
POINT is a function of schema corevo or `*`, N counts from 1; what comes before the first call of SEEN does not count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

When = Literal["before", "after"]

FORM = re.compile(r"(?P<fault>\w+)@(?P<when>before|after):(?P<point>\w+|\*)(#(?P<number>\d+))?(/(?P<seen>\w+))?")
FUNCTION = re.compile(r"corevo\.(\w+)\(")


def functions_of(sql: str) -> list[str]:
    return FUNCTION.findall(sql)


@dataclass
class Trigger:
    """Meets at most one statement in its life."""

    fault: str
    when: When
    point: str
    number: int = 1
    seen: str | None = None
    count: int = 0
    met: bool = False

    @classmethod
    def parse(cls, text: str) -> Trigger:
        found = FORM.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no plan: FAULT@before|after:POINT[#N][/SEEN]")
        return cls(found["fault"], cast(When, found["when"]), found["point"], int(found["number"] or 1), found["seen"])

    def __str__(self) -> str:
        return f"{self.fault}@{self.when}:{self.point}#{self.number}" + (f"/{self.seen}" if self.seen else "")

    def meets(self, when: When, sql: str) -> bool:
        """To be told of every statement, before and after it."""
        names = functions_of(sql)
        if self.seen is not None:
            if when == "after" and self.seen in names:
                self.seen = None
            return False
        if self.met or when != self.when or (self.point != "*" and self.point not in names):
            return False
        self.count += 1
        self.met = self.count == self.number
        return self.met
