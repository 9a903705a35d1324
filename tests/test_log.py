"""What the service says about itself: a trace never shows what stood in a variable."""

from __future__ import annotations

import io
import logging
from typing import TYPE_CHECKING

import pytest
import structlog

from tollgate import log

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    handlers = logging.root.handlers[:]
    yield
    structlog.reset_defaults()
    logging.root.handlers[:] = handlers


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_trace_has_no_local_variables(style: str) -> None:
    said = io.StringIO()
    log.configure("info", style, said)

    def sign_in(password: str) -> None:
        raise ValueError(len(password))

    try:
        sign_in("correct horse battery")
    except ValueError:
        log.get("test").exception("it failed")
    assert "it failed" in said.getvalue()
    assert "sign_in" in said.getvalue()
    assert "correct horse" not in said.getvalue().replace('sign_in("correct horse battery")', "").replace(
        'sign_in(\\"correct horse battery\\")', ""
    )
