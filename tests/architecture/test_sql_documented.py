"""sql/README.md knows every function and every refusal of sql/functions/, and none that is not there."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from tests import protocol

SQL = Path(__file__).resolve().parent.parent.parent / "sql"
README = (SQL / "README.md").read_text("utf-8")
FILES = {path.name: path.read_text("utf-8") for path in sorted((SQL / "functions").glob("*.sql"))}
TEXT = "\n".join(FILES.values())
DEFINED = re.findall(r"^create or replace function corevo\.(\w+)\(", TEXT, re.MULTILINE)
RAISED = set(re.findall(r"corevo\.refuse\('(\w{5})', '(\w+)'", TEXT))


def section(title: str) -> str:
    return README.split(f"## {title}\n")[1].split("\n## ")[0]


def first_cells(title: str) -> list[str]:
    return [line.split("|")[1] for line in section(title).splitlines() if line.startswith("|")]


def test_every_function_stands_in_the_table_once_and_no_other_does() -> None:
    documented = [name for cell in first_cells("Functions") for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(documented) == sorted(DEFINED)


def test_every_function_is_defined_once_and_opens_with_a_comment() -> None:
    assert len(DEFINED) == len(set(DEFINED))
    created = re.findall(r"(?:^(--.*|create table.*)\n)?^create or replace function corevo\.(\w+)", TEXT, re.MULTILINE)
    assert len(created) == len(DEFINED)
    plain = {"create_thread", "read_thread", "read_job"}  # the name says it all
    assert {name for comment, name in created if not comment} <= plain


def test_every_sqlstate_that_is_raised_stands_in_the_table_with_its_code() -> None:
    table = set(re.findall(r"^\| `(RV\w{3})` \| `(\w+)` \|", section("Refusals"), re.MULTILINE))
    assert table == RAISED


def test_the_tests_name_every_sqlstate() -> None:
    named = {value for value in vars(protocol).values() if isinstance(value, str) and re.fullmatch(r"RV\d{3}", value)}
    assert named == {state for state, _ in RAISED}


def test_nothing_raises_but_through_refuse() -> None:
    raising = [name for name, text in FILES.items() if re.search(r"\braise\s+exception", text)]
    assert raising == ["010_time.sql"]


def test_functions_that_lock_say_so() -> None:
    """One function after the other, with the comment above it."""
    parts = re.split(r"^(?=create or replace function)", TEXT, flags=re.MULTILINE)
    for comment, body in itertools.pairwise(parts):
        if "for no key update" in body.split("$$;")[0] and not body.startswith(
            "create or replace function corevo.release"
        ):
            name = body[: body.index("(")].rsplit(".", 1)[1]
            assert re.search(r"^-- (Locks|Needs): ", comment.rsplit("$$;", 1)[-1], re.MULTILINE), name


def test_states_are_literals() -> None:
    """A parameter instead of a literal state can miss the partial indexes."""
    assert not re.search(r"\bstate\s*(=|<>)\s*(any\b|p_|v_)", re.sub(r"set\s+state = \w+", "", TEXT))
