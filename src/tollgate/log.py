"""Structured logs on standard error.

Callers' parameters, results, tokens and paths are never logged, and known secrets (`hide`) are taken out of each
line. Lines are rate-limited, since callers can cause them: a process writes at most `MAX_LINES` of one message a
minute, and then how many it left out.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

# structlog loads rich where it finds it, for tracebacks that are not ours: 3 MB in every process.
_modules: dict[str, Any] = sys.modules
_rich = _modules.setdefault("rich", None)
import structlog  # noqa: E402

if _rich is None:
    del _modules["rich"]

# Of one message, in one process. Upstreams that change their state together are to be seen one by one.
MAX_LINES, WINDOW_SECONDS = 100, 60.0
# Messages that are remembered: ours are constants, those of libraries may not be.
MAX_MESSAGES = 500
_MAX_CAUSES = 16
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


_hidden: Callable[[str], str] | None = None


def hide(mask: Callable[[str], str]) -> None:
    """Take secrets out of each line of this process and of those it forks."""
    global _hidden  # noqa: PLW0603 - as the configuration of structlog: one for the process
    _hidden = mask


class _MaskedStream:
    """Where lines go."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.flush = stream.flush

    def write(self, line: str) -> None:
        self._stream.write(line if _hidden is None else _hidden(line))


def one_line(error: object) -> str:
    """An error that is foreseen, such as a slow store, in one line; empty: it deserves its traceback.

    Such an error has an attribute `one_line`; it may be in a group, or the cause of another.
    """
    for _ in range(_MAX_CAUSES):
        if not isinstance(error, BaseException):
            break
        if getattr(error, "one_line", False):
            return f"{type(error).__name__}: {error}"
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__
    return ""


def _shortened(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Write a foreseen error of ours as one line: a processor of structlog."""
    error = event.get("exc_info")
    if error is True:
        error = sys.exc_info()[1]
    line = one_line(error[1] if isinstance(error, tuple) else error)
    return {**{name: each for name, each in event.items() if name != "exc_info"}, "error": line} if line else event


def _shorten(record: logging.LogRecord) -> bool:
    """Write a foreseen error in a line of a library as one line, such as a server's: a filter."""
    line = one_line(record.exc_info[1]) if record.exc_info else ""
    if line:
        record.msg, record.args = f"{record.getMessage().strip()}: {line}", ()
        record.exc_info = record.exc_text = None
    return True


class Ration:
    """How many lines of each message may still be written."""

    def __init__(
        self,
        max_lines: int = MAX_LINES,
        seconds: float = WINDOW_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_lines = max_lines
        self._seconds = seconds
        self._now = now
        self._windows: dict[str, tuple[float, int, int]] = {}
        """By message: when its window started, how many came in it, and how many the one before left out."""

    def take(self, message: str) -> int | None:
        """Count a line; how many were left out before it, or None where it is left out itself."""
        now = self._now()
        if len(self._windows) >= MAX_MESSAGES and message not in self._windows:
            self._windows.clear()
        started, count, left_out = self._windows.get(message, (-self._seconds, 0, 0))
        if now - started >= self._seconds:
            started, count, left_out = now, 0, max(0, count - self._max_lines)
        self._windows[message] = (started, count + 1, left_out)
        if count >= self._max_lines:
            return None
        return left_out if count == 0 else 0

    def of_ours(
        self, _logger: object, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        """Drop a line of ours, or add how many were dropped: a processor of structlog."""
        left_out = self.take(f"{event.get('part')} {event.get('event')}")
        if left_out is None:
            raise structlog.DropEvent
        return {**event, "left_out": left_out} if left_out else event

    def of_libraries(self, record: logging.LogRecord) -> bool:
        """Drop a line of a library, or add how many were dropped: a filter of the standard library."""
        left_out = self.take(f"{record.name} {record.msg}")
        if left_out:
            record.msg = f"{record.msg} ({left_out} such lines were left out)"
        return left_out is not None


def configure(level: str, style: str, stream: TextIO | None = None) -> None:
    """Set up logging for this process and the processes it forks."""
    stream = stream or sys.stderr
    as_text = style == "text" or (style == "auto" and stream.isatty())
    ration, masked = Ration(), _MaskedStream(stream)
    structlog.configure(
        processors=[
            ration.of_ours,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _shortened,
            *([] if as_text else [structlog.processors.format_exc_info]),
            # The plain traceback: the one that rich draws shows local variables, secrets among them.
            structlog.dev.ConsoleRenderer(
                colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
            if as_text
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=masked),  # type: ignore[arg-type] # all that it uses
        cache_logger_on_first_use=False,
    )
    # Libraries log through the standard library: warnings and errors only.
    logging.basicConfig(level=max(_LEVELS[level], logging.WARNING), stream=masked, force=True)
    for handler in logging.root.handlers:
        handler.addFilter(ration.of_libraries)
        handler.addFilter(_shorten)
        if not as_text:
            handler.setFormatter(_JsonLine())


class _JsonLine(logging.Formatter):
    """A line of a library as ours are: one object, whatever is in its message."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")
        line = {"part": record.name, "event": record.getMessage(), "level": record.levelname.lower()}
        failure = {"exception": self.formatException(record.exc_info)} if record.exc_info else {}
        return json.dumps({**line, "timestamp": at, **failure})


def get(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return the logger of a part of the service."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(part=name)
    return logger
