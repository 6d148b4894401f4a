"""Every setting, error code and metric is documented where its user looks, and nothing else is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from aioprometheus.collectors import REGISTRY

from corevo import errors, metrics
from corevo.openai import failures
from corevo.openai import settings as model
from corevo.settings import Settings, variable_of

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text("utf-8")
OPERATIONS = (ROOT / "ops" / "README.md").read_text("utf-8")


def table_names(text: str, heading: str) -> set[str]:
    """Names in backticks in the first column of the tables below a heading."""
    section = re.split(r"^## ", text.split(heading, 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    names: set[str] = set()
    for line in section.splitlines():
        if line.startswith("| `"):
            names |= set(re.findall(r"`([^`]+)`", line.split("|")[1]))
    return names


def test_every_setting_is_in_the_readme() -> None:
    assert table_names(README, "## Settings") == {variable_of(name) for name in Settings.model_fields}


def test_every_setting_of_the_model_agent_is_in_the_readme() -> None:
    fields = model.OpenAISettings.model_fields
    assert table_names(README, "## A real model") == {model.variable_of(name) for name in fields}


def test_every_failure_of_the_model_agent_is_in_the_readme() -> None:
    section = README.split("## Errors", 1)[1].partition("The model agent's:")[2].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", section)) == set(get_args(failures.Code))


def test_every_error_code_is_in_the_readme() -> None:
    def tree(base: type[errors.CorevoError]) -> set[type[errors.CorevoError]]:
        return {base} | {cls for child in base.__subclasses__() for cls in tree(child)}

    seen_by_clients = {cls.code for cls in tree(errors.Refused) | tree(errors.Unavailable)} | {"internal"}
    assert seen_by_clients - {"refused"} <= table_names(README, "## Errors")


def test_every_metric_is_in_the_operations_guide() -> None:
    metrics.prepare()
    assert table_names(OPERATIONS, "## Metrics") == {collector.name for collector in REGISTRY.get_all()}
