"""A worker that serves WebSockets, and a client of it."""

from collections.abc import AsyncIterator

import pytest
from tests.gateway.websocket.callers import Caller, open_caller
from tests.gateway.websocket.visitors import Place, open_place


@pytest.fixture
async def place() -> Place:
    return await open_place()


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    async with open_caller() as opened:
        yield opened
