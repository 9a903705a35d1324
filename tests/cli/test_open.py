"""`tollgate open`: the address of a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Api, Tool


@pytest.mark.parametrize(
    ("page", "path"),
    [
        ((), "/console/teams/acme"),
        (("logs",), "/console/teams/acme/logs"),
        (("account",), "/console/account"),
        (("docs",), "/api/v1/docs"),
    ],
)
def test_page_is_printed_with_its_address(api: Api, acme: Tool, page: tuple[str, ...], path: str) -> None:
    ran = acme.run("open", *page)
    assert ran.code == 0, ran.err
    assert ran.out.endswith(f"{path}\n")
    assert ran.out.startswith("http")
    assert api.requests == []


def test_unknown_page_is_wrong_usage(acme: Tool) -> None:
    assert acme.run("open", "nowhere").code == 2
