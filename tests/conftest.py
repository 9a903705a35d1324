"""What all tests share: how hypothesis searches, and a loop to drive coroutines with."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# No deadline: the machines of CI are slow now and then. In CI a failure must be found again by running again.
settings.register_profile("tollgate", deadline=None)
settings.register_profile("tollgate-ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("tollgate-ci" if os.environ.get("CI") else "tollgate")


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    """One event loop for a test that awaits more than once."""
    with asyncio.Runner() as runner:
        yield runner


# A shell that runs the tests in its background lets them ignore Ctrl-C, and so every program that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
