"""One line a record: time, level, what happened, key=value. Exceptions are one line too; locals are never shown."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import MutableMapping
from typing import Any

import structlog

FRAMES = 6
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def configure() -> None:
    """Sends structlog's and the libraries' records to standard error in the same form."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _exception_in_line,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LineFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def _exception_in_line(logger: Any, name: str, record: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    error = record.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()[1]
    if isinstance(error, BaseException):
        record["error"] = _words(error)
        frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
        record["at"] = " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames))
    return record


def _words(error: BaseException) -> str:
    try:
        return CONTROL.sub(lambda found: repr(found[0])[1:-1], f"{type(error).__name__}: {error}"[:2000])
    except Exception:
        return type(error).__name__


class _LineFormatter(logging.Formatter):
    """Records of libraries that use the standard logging module."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{self.formatTime(record)} level={record.levelname.lower()} logger={record.name} {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            line += f" error={_words(record.exc_info[1])!r}"
        return line.replace("\n", "\\n")
