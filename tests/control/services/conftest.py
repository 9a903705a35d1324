"""What the services' tests are given: a control plane each, or one in which everything was done."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.control.services.everything import Everything
from tests.control.services.harness import Harness, settings

from tollgate.control.plane import ControlPlane


@pytest.fixture
def plane(harness: Harness) -> ControlPlane:
    return harness.plane


@pytest.fixture(scope="session")
def everything(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    """A control plane in which everything was done once; to be looked at, not changed."""
    with asyncio.Runner() as runner:
        built = Harness(template, tmp_path_factory.mktemp("everything"), runner, settings())
        walked = Everything(built)
        walked.walk()
        yield walked
        built.close()
