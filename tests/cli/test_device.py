"""The polling of the device login, step by step with a manual clock; then its driver on a scripted server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tollgate.cli.device import machine_name, polling, start, wait_for_approval
from tollgate.cli.failures import Failure, Lost, NoServer, NotTollgate, OAuthRefusal, TooSlow
from tollgate.cli.shapes import DeviceGrant, TokenResponse
from tollgate.cli.transport import Transport

if TYPE_CHECKING:
    from tests.cli.conftest import Api

TOKENS = TokenResponse("tga_one", "tgr_one", 3600)
GRANT = DeviceGrant("tgd_code", "WDJB-MJHT", "https://t.example.com/device", expires_in=900, interval=5)
GRANT_TYPE = "urn:ietf:params:oauth:grant-type:device_code"


def refusal(reason: str) -> Failure:
    return OAuthRefusal("words", reason=reason)


class PendingLogin:
    """Drives the generator: each answer is received at the moment its wait has passed."""

    def __init__(self, interval: float = 5, expires_in: float = 900) -> None:
        self.now = 1_000.0
        self._steps = polling(interval, expires_in, self.now)
        self.pauses = [next(self._steps)]

    def answer(self, response: TokenResponse | Failure, took: float = 0) -> float:
        self.now += self.pauses[-1] + took
        self.pauses.append(self._steps.send((response, self.now)))
        return self.pauses[-1]

    def end(self, response: TokenResponse | Failure) -> TokenResponse:
        with pytest.raises(StopIteration) as stopped:
            self.answer(response)
        tokens: TokenResponse = stopped.value.value
        return tokens


def test_it_waits_for_the_interval_before_it_polls_at_all() -> None:
    assert PendingLogin(interval=7).pauses == [7]


def test_it_polls_at_the_interval_while_the_login_is_pending() -> None:
    login = PendingLogin()
    for _ in range(3):
        login.answer(refusal("authorization_pending"))
    assert login.pauses == [5, 5, 5, 5]
    assert login.end(TOKENS) == TOKENS


def test_slow_down_adds_five_seconds_for_good() -> None:
    login = PendingLogin()
    assert login.answer(refusal("slow_down")) == 10
    assert login.answer(refusal("authorization_pending")) == 10
    assert login.answer(refusal("slow_down")) == 15
    assert login.answer(refusal("authorization_pending")) == 15


@pytest.mark.parametrize(
    "failure",
    [
        NoServer("x"),
        Lost("x"),
        TooSlow("x"),
        Failure("x", reason="store_unavailable"),
        Failure("x", reason="too_many_attempts"),
        Failure("x", reason="internal_error"),
        Failure("x", reason="unavailable"),
    ],
)
def test_a_server_that_is_away_is_called_less_and_less_often_and_then_as_before(failure: Failure) -> None:
    login = PendingLogin()
    assert [login.answer(failure) for _ in range(6)] == [10, 20, 40, 60, 60, 60]
    assert login.answer(refusal("authorization_pending")) == 5
    assert login.answer(failure) == 10


def test_a_server_that_stays_away_is_given_up_when_the_code_has_expired() -> None:
    login = PendingLogin(expires_in=30)
    assert [login.answer(NoServer("x")) for _ in range(2)] == [10, 15]
    with pytest.raises(Failure, match=r"^The code has expired\. Run tollgate auth login again\.$"):
        login.answer(NoServer("x"))


def test_the_last_wait_ends_with_the_code() -> None:
    login = PendingLogin(expires_in=12)
    login.answer(refusal("authorization_pending"))
    assert login.answer(refusal("authorization_pending")) == 2


def test_tokens_that_come_at_the_last_moment_count() -> None:
    login = PendingLogin(expires_in=5)
    assert login.end(TOKENS) == TOKENS


def test_slow_answers_do_not_make_a_wait_negative() -> None:
    login = PendingLogin(expires_in=12)
    login.answer(refusal("authorization_pending"))
    with pytest.raises(Failure, match="expired"):
        login.answer(refusal("authorization_pending"), took=40)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("access_denied", "The login was denied in the browser."),
        ("expired_token", "The code has expired. Run tollgate auth login again."),
        ("invalid_grant", "The login failed: words (invalid_grant). Run tollgate auth login again."),
        ("invalid_client", "The login failed: words (invalid_client). Run tollgate auth login again."),
    ],
)
def test_a_final_answer_ends_it(reason: str, words: str) -> None:
    with pytest.raises(Failure) as caught:
        PendingLogin().answer(refusal(reason))
    assert (str(caught.value), caught.value.exit_code) == (words, 1)


def test_an_answer_of_another_service_ends_it() -> None:
    with pytest.raises(NotTollgate):
        PendingLogin().answer(NotTollgate("not a Tollgate"))


# ---- the driver


def pending(api: Api, reason: str) -> None:
    api.on("POST", "oauth/token", {"error": reason, "error_description": "words"}, status=400)


def test_the_driver_sleeps_as_instructed_and_sends_the_code_until_there_are_tokens(api: Api) -> None:
    pending(api, "authorization_pending")
    pending(api, "slow_down")
    api.on("POST", "oauth/token", drop=True)
    api.on("POST", "oauth/token", status=503, body=b"<html>", headers={"Content-Type": "text/html"})
    api.on("POST", "oauth/token", {"access_token": "tga_one", "token_type": "Bearer", "expires_in": 60})
    slept: list[float] = []
    with Transport(api.url) as transport:
        tokens = wait_for_approval(transport, GRANT, sleep=slept.append, clock=lambda: sum(slept))
    assert tokens == TokenResponse("tga_one", None, 60)
    assert slept == [5, 5, 10, 20, 40]
    assert {tuple(sorted(request.form.items())) for request in api.requests} == {
        (("client_id", "tollgate-cli"), ("device_code", "tgd_code"), ("grant_type", GRANT_TYPE))
    }


def test_a_denial_reaches_the_caller(api: Api) -> None:
    pending(api, "access_denied")
    with Transport(api.url) as transport, pytest.raises(Failure, match="denied in the browser"):
        wait_for_approval(transport, GRANT, sleep=lambda _: None, clock=lambda: 0)


def test_starting_shows_which_machine_logs_in(api: Api) -> None:
    answer = {
        "device_code": "tgd_x",
        "user_code": "A-B",
        "verification_uri": "https://t/device",
        "expires_in": 900,
    }
    api.on("POST", "oauth/device_authorization", answer)
    with Transport(api.url) as transport:
        grant = start(transport, "ann@laptop")
    assert (grant.interval, grant.user_code) == (5, "A-B")
    assert api.requests[0].form == {"client_id": "tollgate-cli", "machine": "ann@laptop"}


@pytest.mark.parametrize("page", ["file:///etc/passwd", "javascript:alert(1)", "", "-x", "https://a/\x1b[2J"])
def test_an_invalid_url_is_never_opened_in_a_browser(api: Api, page: str) -> None:
    answer = {"device_code": "x", "user_code": "y", "verification_uri": page, "expires_in": 900}
    api.on("POST", "oauth/device_authorization", answer)
    with Transport(api.url) as transport, pytest.raises(NotTollgate, match="gives no page"):
        start(transport, "ann@laptop")


def test_the_machines_name_is_short_and_printable() -> None:
    name = machine_name()
    assert 2 <= len(name) <= 100
    assert "@" in name
    assert name.isprintable()


def test_codes_and_tokens_stay_out_of_reprs() -> None:
    assert "tgd_code" not in repr(GRANT)
    assert "tga_one" not in repr(TOKENS)
