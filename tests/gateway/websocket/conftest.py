"""A worker that serves WebSockets, and a client of it."""

from collections.abc import AsyncIterator

import pytest
from tests.gateway.websocket.asgi_clients import SocketServer, open_server
from tests.gateway.websocket.raw_clients import Caller, open_caller


@pytest.fixture
async def server() -> SocketServer:
    return await open_server()


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    async with open_caller() as opened:
        yield opened
