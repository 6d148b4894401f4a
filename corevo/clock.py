"""The clock that measures durations in a process. Moments that two processes compare are the database's alone."""

from __future__ import annotations

import time

if hasattr(time, "CLOCK_BOOTTIME"):

    def seconds() -> float:
        """Seconds since boot, going on in sleep: a suspended laptop must notice how long it was away."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)
else:

    def seconds() -> float:
        """Monotonic seconds; this platform has no clock that counts sleep."""
        return time.monotonic()
