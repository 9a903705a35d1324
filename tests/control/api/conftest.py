"""What the API's tests are given: a house each, and the API over it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.control.api.caller import Api
from tests.control.services.house import House, make_template, settings


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def house(template: Path, tmp_path: Path, loop: asyncio.Runner) -> Iterator[House]:
    built = House(template, tmp_path, loop, settings())
    yield built
    built.close()


@pytest.fixture
def api(house: House) -> Iterator[Api]:
    opened = Api(house)
    yield opened
    opened.close()
