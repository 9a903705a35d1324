"""What the services' tests are given: a house each, copied from one that was built once."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.control.services.everything import Everything
from tests.control.services.house import House, make_template, settings

from tollgate.control.plane import ControlPlane


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def house(template: Path, tmp_path: Path, loop: asyncio.Runner) -> Iterator[House]:
    built = House(template, tmp_path, loop, settings())
    yield built
    built.close()


@pytest.fixture
def plane(house: House) -> ControlPlane:
    return house.plane


@pytest.fixture(scope="session")
def everything(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    """A house in which everything was done once; to be looked at, not changed."""
    with asyncio.Runner() as runner:
        built = House(template, tmp_path_factory.mktemp("everything"), runner, settings())
        walked = Everything(built)
        walked.walk()
        yield walked
        built.close()
