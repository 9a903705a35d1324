"""How long an answer takes does not show who has an account."""

from collections.abc import Coroutine
from typing import Any

import pytest
from tests.control.services.harness import PEOPLE, VISIT, Harness

from tollgate.control import service_context
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import WrongPassword

# So long that no machine is slower.
LONG = 10_000.0


def forgotten(plane: ControlPlane, email: str) -> Coroutine[Any, Any, Any]:
    return plane.accounts.forgot(VISIT, email)


def signed_up(plane: ControlPlane, email: str) -> Coroutine[Any, Any, Any]:
    return plane.invitations.request_link(VISIT, email)


async def failed(plane: ControlPlane, email: str) -> None:
    with pytest.raises(WrongPassword):
        await plane.accounts.check_password(VISIT, email, "not the password")


@pytest.mark.parametrize("work", [forgotten, signed_up, failed])
def test_answer_takes_the_same_time_with_and_without_an_account(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, work: Any
) -> None:
    plane = harness.choose(sign_up="open")
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(service_context, "CONSTANT_SECONDS", LONG)
    monkeypatch.setattr(service_context, "sleep", sleep)
    for email in (PEOPLE["owner"], "unknown@x.example"):
        harness.do(work(plane, email))
    assert len(waited) == 2
    assert all(LONG / 2 < seconds <= LONG for seconds in waited)


def test_work_that_takes_longer_is_not_delayed_further(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_context, "CONSTANT_SECONDS", -LONG)
    harness.do(forgotten(harness.plane, PEOPLE["owner"]))
    assert [to for to, _, _ in harness.post.posted] == [PEOPLE["owner"]]
