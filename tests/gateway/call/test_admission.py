"""An admission is used again by requests of a connection that are alike in all that it was made of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tollgate.gateway.call.admission import Admission

CALLER, NETWORK = object(), object()
HEADERS = {b"user-agent": b"curl/8", b"x-forwarded-for": b"192.0.2.1"}


def request(**changes: Any) -> Any:
    given = {"network": NETWORK, "keep_alive": True, "origin": None, "path_token": None, "headers": HEADERS}
    return SimpleNamespace(**{**given, **changes})


def fits(incoming: Any, caller: object = CALLER, epoch: int = 3) -> bool:
    made = SimpleNamespace(
        epoch=3, context=SimpleNamespace(epoch=epoch), caller=CALLER, network=NETWORK, keep_alive=True,
        _request=request(),
    )  # fmt: skip
    return Admission.fits(cast("Admission", made), incoming, cast("Any", caller))


def test_request_that_is_alike_uses_it() -> None:
    assert fits(request())
    assert fits(request(headers=dict(HEADERS)))


@pytest.mark.parametrize(
    "change",
    [
        {"network": object()},
        {"keep_alive": False},
        {"origin": b"https://example.com"},
        {"path_token": b"tg_x"},
        {"headers": {**HEADERS, b"user-agent": b"other"}},
        {"headers": {**HEADERS, b"x-forwarded-for": b"192.0.2.2"}},
        {"headers": {b"user-agent": b"curl/8"}},
    ],
)
def test_request_that_differs_in_one_thing_does_not(change: dict[str, Any]) -> None:
    assert not fits(request(**change))


def test_neither_another_caller_nor_what_was_known_before_a_change_fits() -> None:
    assert not fits(request(), caller=object())
    assert not fits(request(), epoch=4)
