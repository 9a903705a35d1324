"""Installations for the tests of pages, and a browser."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.control.console.site import Browser, Site

OpenSite = Callable[..., Site]


@pytest.fixture
def open_site(tmp_path: Path, loop: asyncio.Runner) -> Iterator[OpenSite]:
    """Opens an installation with settings of one's own."""
    opened: list[Site] = []

    def open_one(**settings: Any) -> Site:
        folder = tmp_path / str(len(opened))
        folder.mkdir()
        opened.append(Site(folder, loop, **settings))
        return opened[-1]

    yield open_one
    for site in opened:
        site.close()


@pytest.fixture
def site(open_site: OpenSite) -> Site:
    return open_site()


@pytest.fixture
def browser(site: Site) -> Browser:
    return site.browser()
