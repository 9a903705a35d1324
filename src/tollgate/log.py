"""What the service says about itself: structured lines on standard error.

Callers' parameters, results, tokens and paths never go in here.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure(level: str, style: str, stream: TextIO | None = None) -> None:
    """Set up logging for this process and the processes it forks."""
    stream = stream or sys.stderr
    as_text = style == "text" or (style == "auto" and stream.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if as_text else [structlog.processors.format_exc_info]),
            # The plain traceback: the one that rich draws shows local variables, secrets among them.
            structlog.dev.ConsoleRenderer(
                colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
            if as_text
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )
    # Libraries that speak through the standard library: only what an operator must hear.
    logging.basicConfig(level=max(_LEVELS[level], logging.WARNING), stream=stream, force=True)


def get(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return the logger of a part of the service."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(part=name)
    return logger
