"""The gateway's tests run on a loop without sockets."""

from collections.abc import Iterator

import pytest
from tests.conftest import NewLoop
from tests.gateway.fake_gateway import OPENED, FakeGateway, open_gateway
from tests.gateway.fakes import ScriptedLoop


@pytest.fixture
def new_loop() -> NewLoop:
    """A loop without sockets."""
    return ScriptedLoop


@pytest.fixture
async def gateway() -> FakeGateway:
    """A gateway with two upstreams, the first one preferred."""
    return await open_gateway()


@pytest.fixture(autouse=True)
def upstream_counts() -> Iterator[None]:
    """No upstream's calls in flight are counted down twice."""
    OPENED.clear()
    yield
    assert all(upstream.in_flight >= 0 for gateway in OPENED for upstream in gateway.exchange.upstreams)
