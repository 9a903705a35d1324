"""What all tests share: how hypothesis searches, and the event loops that run coroutines."""

import asyncio
import logging
import os
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from hypothesis import settings

# No deadline: the machines of CI are slow now and then. In CI a failure must be found again by running again.
settings.register_profile("tollgate", deadline=None)
settings.register_profile("tollgate-fast", deadline=None, max_examples=12)
settings.register_profile("tollgate-ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("tollgate-ci" if os.environ.get("CI") else "tollgate")


# As the service's own: it refuses a data folder that others can read.
os.umask(0o077)

_TOKEN = re.compile(r"tg[a-z]?_\w{30,}", re.IGNORECASE)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Leave random tokens out of the names of tests: processes that share them must find the same names."""
    return _TOKEN.sub("TOKEN", val) if isinstance(val, str) and _TOKEN.search(val) else None


NewLoop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture
def new_loop() -> NewLoop:
    """Makes the loop that runs a test that is a coroutine, and its fixtures; folders and modules have others."""
    return asyncio.new_event_loop


@pytest.fixture
def own_logging() -> Iterator[None]:
    """For tests that configure logging: afterwards it is as it was."""
    handlers = logging.root.handlers[:]
    yield
    structlog.reset_defaults()
    logging.root.handlers[:] = handlers


@pytest.fixture
def anyio_backend(new_loop: NewLoop) -> Iterator[tuple[str, dict[str, Any]]]:
    """An error on the loop of a test that is not handled fails the test."""
    unhandled: list[dict[str, Any]] = []

    def watched() -> asyncio.AbstractEventLoop:
        loop = new_loop()
        handle = loop.call_exception_handler

        def note(context: dict[str, Any]) -> None:
            unhandled.append(context)
            handle(context)

        loop.call_exception_handler = note  # type: ignore[method-assign]
        return loop

    yield "asyncio", {"loop_factory": watched}
    assert not unhandled, unhandled


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    """One event loop for a test that awaits more than once."""
    with asyncio.Runner() as runner:
        yield runner


# A shell that runs the tests in its background lets them ignore Ctrl-C, and so every program that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
