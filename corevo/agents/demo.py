"""A demo agent. It thinks nothing: it streams a fixed answer at a set pace, so that everything else can be tried.

What the message says decides what it does: `long`, `fail`, `slow`, `echo …` or `markdown`; anything else gets a short
answer.
`pace=0.01` anywhere in the message sets the seconds between two words.
"""

from __future__ import annotations

import asyncio
import re

from corevo import Run, agent

PACE_SECONDS = 0.04
WORD = re.compile(r"\S+\s*|\s+")
PACE = re.compile(r"\bpace=(\d+(?:\.\d+)?)\b")

SHORT = (
    "This is the demo agent; no model is behind it. You wrote {n} characters. "
    "Say `long`, `slow`, `fail`, `markdown` or `echo something` to see more of what a run can do."
)

MARKDOWN = """## What a run looks like

This is the demo agent; no model is behind it. Its answer has **bold** and *italic* words, `code`, and:

1. a list,
2. with a [link](https://www.postgresql.org/),
3. and a table:

| state | meaning |
|---|---|
| queued | waits for a worker |
| running | a worker has it |
| completed | done |

```python
from corevo import Run, agent

@agent("hello")
async def hello(run: Run) -> None:
    await run.say("Hello!")
```
"""

SENTENCE = "Sentence {n} of a long demo answer: every word of it was stored in Postgres before you saw it. "


class DemoFailure(Exception):
    """What the demo raises when it is asked to fail."""


@agent("demo", timeout_seconds=300)
async def demo(run: Run) -> None:
    text = run.messages[-1].text if run.messages else ""
    wish = text.strip().lower()
    found = PACE.search(wish)
    pace = min(float(found.group(1)), 10.0) if found else PACE_SECONDS
    if wish.startswith("fail"):
        await _stream(run, "The demo was asked to fail, and does so in the middle of ", pace)
        raise DemoFailure("this failure was asked for")
    if wish.startswith("slow"):
        await run.status("thinking slowly, for 10 seconds")
        await asyncio.sleep(10)
        await _stream(run, "That was slow.", pace)
    elif wish.startswith("long"):
        await _stream(run, "".join(SENTENCE.format(n=n) for n in range(1, 201)), pace)
    elif wish.startswith("markdown"):
        await _stream(run, MARKDOWN, pace)
    elif wish.startswith("echo"):
        await _stream(run, text.strip()[4:].strip() or "(nothing to echo)", pace)
    else:
        await _stream(run, SHORT.format(n=len(text)), pace)


async def _stream(run: Run, text: str, pace_seconds: float) -> None:
    for word in WORD.findall(text):
        await run.say(word)
        await asyncio.sleep(pace_seconds)
