"""What the API's tests are given: the API over a control plane."""

from collections.abc import Iterator

import pytest
from tests.control.api.caller import Api
from tests.control.services.harness import Harness


@pytest.fixture
def api(harness: Harness) -> Iterator[Api]:
    opened = Api(harness)
    yield opened
    opened.close()
