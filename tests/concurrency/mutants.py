"""Faults put into the SQL on purpose, as edits of the functions' text. The fuzz must catch each of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import asyncpg

FUNCTIONS = Path(__file__).resolve().parent.parent.parent / "sql" / "functions"


@dataclass(frozen=True, slots=True)
class Edit:
    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    edits: tuple[Edit, ...]
    caught_as: tuple[str, ...]  # a fault's text begins with, or a violated invariant is, one of these

    def functions(self) -> list[str]:
        """The changed files. Fails where a text to change is not there exactly once: then the mutant says nothing."""
        texts: dict[str, str] = {}
        for edit in self.edits:
            text = texts.get(edit.file) or (FUNCTIONS / edit.file).read_text("utf-8")
            assert text.count(edit.old) == 1, f"{edit.file} has {text.count(edit.old)} times: {edit.old}"
            texts[edit.file] = text.replace(edit.old, edit.new)
        return list(texts.values())

    async def apply(self, dsn: str) -> None:
        connection = await asyncpg.connect(dsn)
        try:
            for text in self.functions():
                await connection.execute(text)
        finally:
            await connection.close()


MUTANTS = [
    # Cancel locks the job, then what an ending locks: the thread after a job, where everybody else has it before.
    Mutant(
        "job-first cancel",
        (
            Edit(
                "070_commands.sql",
                "    v_job := corevo.lock_for_end(p_job);\n",
                "    perform 1 from corevo.jobs j where j.id = p_job for no key update;\n"
                "    v_job := corevo.lock_for_end(p_job);\n",
            ),
        ),
        ("DEADLOCK",),
    ),
    # Append looks whether the execution is open instead of locking it; ON CONFLICT is still there.
    Mutant(
        "a look instead of the lock in append",
        (
            Edit(
                "050_events.sql",
                "      order by x.id\n      for no key update of x skip locked);\n",
                "      order by x.id);\n",
            ),
        ),
        ("I2", "append waited", "ghost waited", "DEADLOCK"),
    ),
    # An ending locks its own job and not the thread's others. While every ending of the thread also locks the thread,
    # that alone does no harm; so the ending of a next job, "which does not touch the thread", leaves that lock out too.
    Mutant(
        "endings without the thread's other jobs",
        (
            Edit(
                "020_end.sql",
                "  else\n"
                "    perform 1 from corevo.threads t where t.id = v_job.thread_id for no key update;\n"
                "  end if;\n"
                "  perform 1 from corevo.jobs j\n"
                "    where j.thread_id = v_job.thread_id and j.state in ('queued', 'running')\n"
                "    order by j.id for no key update;\n",
                "  elsif v_job.blocked_by is null then\n"
                "    perform 1 from corevo.threads t where t.id = v_job.thread_id for no key update;\n  end if;\n"
                "  perform 1 from corevo.jobs j where j.id = p_job for no key update;\n",
            ),
            Edit(
                "060_finish.sql",
                "    where j.thread_id = any (v_threads) and j.state in ('queued', 'running')\n",
                "    where j.id = any (v_jobs)\n",
            ),
        ),
        ("I14", "S2", "DEADLOCK"),
    ),
]
