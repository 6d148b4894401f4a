"""The walls of the house: what may stand where. (Imports between layers are checked by import-linter.)"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "corevo"
MODULES = sorted(PACKAGE.rglob("*.py"))
ROLES = ["gateway.py", "worker.py", "janitor.py", "solo.py"]

SQL_TEXT = re.compile(r"\b(select|insert into|update|delete from)\s+[\w.*('\"]", re.IGNORECASE)


def strings_of(path: Path) -> list[str]:
    """String constants of a module, but for its docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings.add(id(first.value))
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]


@pytest.mark.parametrize("name", ROLES)
def test_a_role_is_one_file_below_300_lines(name: str) -> None:
    assert len((PACKAGE / name).read_text("utf-8").splitlines()) < 300


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_sql_text_stands_in_the_store_and_the_pulse_only(path: Path) -> None:
    if path.parent.name == "store" or path.name == "pulse.py" or path.name == "embedded.py":
        return
    assert [text for text in strings_of(path) if SQL_TEXT.search(text) and "corevo." in text] == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_migrations_open_a_transaction(path: Path) -> None:
    """A client-side BEGIN around protocol calls would pin locks when the client freezes."""
    if path.name == "migrations.py":
        return
    text = path.read_text("utf-8")
    assert ".transaction(" not in text
    assert not any(re.search(r"\b(begin|start transaction)\b\s*;?\s*$", s.lower()) for s in strings_of(path))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_is_called_utils_or_helpers(path: Path) -> None:
    assert not {"utils.py", "helpers.py", "common.py", "manager.py"} & {path.name}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_waits_with_wait_for(path: Path) -> None:
    """Before Python 3.12 `asyncio.wait_for` swallows a cancellation that comes with the result; use asyncio.timeout."""
    assert "wait_for(" not in re.sub(r"def \w*wait_for\w*\(", "", path.read_text("utf-8")).replace("_wait_for", "")


def test_no_import_contract_has_an_exception() -> None:
    assert "\nignore_imports" not in (ROOT / "pyproject.toml").read_text("utf-8")


@pytest.mark.parametrize("path", sorted((ROOT / "sql" / "functions").glob("*.sql")), ids=lambda path: path.name)
def test_functions_name_their_columns(path: Path) -> None:
    """`select *` would break the older release while a newer schema is being rolled out."""
    text = re.sub(r"--.*", "", path.read_text("utf-8"))
    assert not re.search(r"select\s+\*", text)
