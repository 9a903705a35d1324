"""How the gateway's tests run: on a loop without sockets, on a worker and its upstreams where requested."""

from collections.abc import AsyncIterator

import pytest
from tests.conftest import NewLoop
from tests.gateway.fakes import ScriptedLoop
from tests.gateway.scene import Scene, open_scene
from tests.gateway.worker import Worker, open_worker


@pytest.fixture
def new_loop() -> NewLoop:
    """A loop without sockets."""
    return ScriptedLoop


@pytest.fixture
async def worker() -> Worker:
    return await open_worker()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """A worker with two equal upstreams."""
    async with open_scene() as opened:
        yield opened
