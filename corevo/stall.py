"""What holds the event loop: looked at from the pulse's thread while the main loop does not answer.

High lag alone does not prove blocking I/O. A stall record carries the thread's CPU time and the time spent in garbage
collection beside the stack: little CPU means that it waits for something, much of it that it computes.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import sysconfig
import threading
import time
from dataclasses import dataclass
from types import FrameType

STANDARD_LIBRARY = (sysconfig.get_path("stdlib"), "<frozen")
UNKNOWN = "unknown"


@dataclass(slots=True)
class Stall:
    """One stall of the main loop. `place` is file:line in function of the deepest frame outside the standard library;
    `task` the asyncio task that ran, which names agent and job; times are seconds within the stall."""

    place: str
    task: str
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    gc_seconds: float = 0.0


class StallWatch:
    """Watches one thread. `look` at the first sign of a stall, `done` when it is over."""

    def __init__(self, thread: threading.Thread, loop: asyncio.AbstractEventLoop) -> None:
        self._thread = thread
        self._loop = loop
        self._gc_seconds = 0.0
        self._gc_began = 0.0
        self._cpu_at = 0.0
        self._gc_at = 0.0
        self._stall: Stall | None = None
        gc.callbacks.append(self._on_gc)

    def mark(self) -> None:
        """The moment a stall would begin to count."""
        self._cpu_at = self._cpu_seconds()
        self._gc_at = self._gc_seconds

    def look(self, seconds: float) -> Stall:
        """The stall so far; the first look names the place."""
        if self._stall is None:
            frame = sys._current_frames().get(self._thread.ident or 0)
            self._stall = Stall(place_of(frame), self._task_name())
        self._stall.seconds = seconds
        self._stall.cpu_seconds = self._cpu_seconds() - self._cpu_at
        self._stall.gc_seconds = self._gc_seconds - self._gc_at
        return self._stall

    def done(self, seconds: float) -> Stall | None:
        """The stall that ended, if there was one."""
        if self._stall is None:
            return None
        self.look(seconds)
        stall, self._stall = self._stall, None
        return stall

    def close(self) -> None:
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        if threading.current_thread() is not self._thread:
            return
        if phase == "start":
            self._gc_began = time.perf_counter()
        else:
            self._gc_seconds += time.perf_counter() - self._gc_began

    def _cpu_seconds(self) -> float:
        try:
            return time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident or 0))
        except (AttributeError, OSError):
            return 0.0  # this platform does not tell of other threads

    def _task_name(self) -> str:
        task = asyncio.current_task(self._loop)
        return task.get_name() if task is not None else UNKNOWN


def place_of(frame: FrameType | None) -> str:
    """`file:line in function` of the deepest frame that is not the standard library's; else of the deepest."""
    deepest = frame
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(STANDARD_LIBRARY) or "site-packages" in name:
            return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    if deepest is None:
        return UNKNOWN
    return f"{deepest.f_code.co_filename}:{deepest.f_lineno} in {deepest.f_code.co_name}"
