"""The device login over HTTP, renewing and ending it: RFC 8628, RFC 6749, RFC 7009."""

import httpx
import pytest
from tests.control.api.caller import Api, Json, reason
from tests.control.services.harness import BASE_URL, DAY, MINUTE, Harness

from tollgate.control.services.devices import MAX_WAITING_FROM_ADDRESS

CLIENT = "tollgate-cli"
FORM = "application/x-www-form-urlencoded"
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


def start(api: Api, **more: str) -> Json:
    answer = api.form("/oauth/device_authorization", client_id=CLIENT, **more)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Cache-Control"] == "no-store"
    started: Json = answer.json()
    return started


def poll(api: Api, device_code: str) -> httpx.Response:
    return api.form("/oauth/token", grant_type=DEVICE_GRANT, client_id=CLIENT, device_code=device_code)


def refresh(api: Api, token: str) -> httpx.Response:
    return api.form("/oauth/token", grant_type="refresh_token", client_id=CLIENT, refresh_token=token)


def error(answer: httpx.Response) -> str:
    assert answer.status_code == 400, answer.text
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Cache-Control"] == "no-store"
    body = answer.json()
    assert set(body) == {"error", "error_description"}
    code: str = body["error"]
    return code


def test_device_login_from_start_to_first_call(api: Api, harness: Harness) -> None:
    started = start(api, machine="ada@laptop")
    assert started["verification_uri"] == f"{BASE_URL}/console/device"
    assert started["verification_uri_complete"].endswith(f"?user_code={started['user_code']}")
    assert (started["expires_in"], started["interval"]) == (900, 5)
    assert error(poll(api, started["device_code"])) == "authorization_pending"
    harness.do(harness.plane.devices.approve(harness.actor("developer"), started["user_code"]))
    harness.clock.advance(5)
    given = poll(api, started["device_code"])
    assert given.status_code == 200
    body = given.json()
    assert body == body | {"token_type": "Bearer", "expires_in": 3600}
    assert body["access_token"].startswith("tga_")
    assert body["refresh_token"].startswith("tgr_")
    me = api.get("/me", token=body["access_token"])
    assert me["email"] == "developer@acme.example"
    assert me["login"]["name"] == "ada@laptop"
    # A code works once.
    assert error(poll(api, started["device_code"])) == "invalid_grant"


def test_tool_that_polls_too_often_is_directed_to_slow_down(api: Api, harness: Harness) -> None:
    started = start(api)
    assert error(poll(api, started["device_code"])) == "authorization_pending"
    assert error(poll(api, started["device_code"])) == "slow_down"
    harness.clock.advance(10)
    assert error(poll(api, started["device_code"])) == "authorization_pending"


def test_denied_login_is_reported_to_the_tool(api: Api, harness: Harness) -> None:
    started = start(api)
    harness.do(harness.plane.devices.deny(harness.actor("owner"), started["user_code"]))
    assert error(poll(api, started["device_code"])) == "access_denied"


def test_expired_code_is_reported_to_the_tool(api: Api, harness: Harness) -> None:
    started = start(api)
    harness.clock.advance(15 * MINUTE)
    assert error(poll(api, started["device_code"])) == "expired_token"


def test_too_many_waiting_logins_of_one_address_are_refused(api: Api) -> None:
    for _ in range(MAX_WAITING_FROM_ADDRESS):
        start(api)
    answer = api.form("/oauth/device_authorization", client_id=CLIENT)
    assert reason(answer) == (429, "too_many_attempts")
    assert answer.headers["Retry-After"] == "60"
    assert answer.json()["retry_after"] == 60


WRONG: list[tuple[dict[str, str], str]] = [
    ({}, "invalid_request"),
    ({"grant_type": DEVICE_GRANT}, "invalid_request"),
    ({"grant_type": DEVICE_GRANT, "client_id": CLIENT}, "invalid_request"),
    ({"grant_type": DEVICE_GRANT, "client_id": CLIENT, "device_code": ""}, "invalid_request"),
    ({"grant_type": "refresh_token", "client_id": CLIENT}, "invalid_request"),
    ({"grant_type": DEVICE_GRANT, "client_id": "other", "device_code": "x"}, "invalid_client"),
    ({"grant_type": "password", "client_id": CLIENT, "password": "x"}, "unsupported_grant_type"),
    ({"grant_type": DEVICE_GRANT, "client_id": CLIENT, "device_code": "tgd_nonsense"}, "invalid_grant"),
    ({"grant_type": "refresh_token", "client_id": CLIENT, "refresh_token": "\0é💩"}, "invalid_grant"),
]


def test_invalid_token_request_is_an_oauth_error(api: Api) -> None:
    for form, expected in WRONG:
        assert error(api.form("/oauth/token", **form)) == expected, form


MALFORMED: list[tuple[bytes, str]] = [
    (b'{"client_id": "tollgate-cli"}', "application/json"),
    (b"client_id=tollgate-cli", ""),
    (b"client_id=tollgate-cli&client_id=tollgate-cli", FORM),
    (b"&".join(b"a%d=1" % number for number in range(100)), FORM),
    (b"client_id=tollgate-cli&machine=" + b"a" * 101, FORM),
    (b"client_id=tollgate-cli&machine=%00", FORM),
    (b"\xff\xfe=%ff", FORM),
    (b"", FORM),
]


def test_malformed_form_is_an_oauth_error(api: Api) -> None:
    for content, media_type in MALFORMED:
        headers = {"Content-Type": media_type} if media_type else {}
        answer = api.request("POST", "/oauth/device_authorization", who=None, content=content, headers=headers)
        assert error(answer) == "invalid_request", content


def test_unknown_parameters_are_ignored_as_the_standard_requires(api: Api) -> None:
    assert start(api, scope="everything", machine="ada@laptop")["user_code"]


def test_form_that_is_too_large_is_refused(api: Api) -> None:
    answer = api.form("/oauth/token", grant_type="a" * 300_000)
    assert reason(answer) == (413, "body_too_large")


def test_login_is_renewed_with_a_new_refresh_token_each_time(api: Api, harness: Harness) -> None:
    secrets = api.logged_in("owner")
    harness.clock.advance(61 * MINUTE)
    assert reason(api.request("GET", "/me", token=secrets.access)) == (401, "login_expired")
    renewed = refresh(api, secrets.refresh)
    assert renewed.status_code == 200
    assert renewed.json()["refresh_token"] != secrets.refresh
    assert api.get("/me", token=renewed.json()["access_token"])["email"] == "owner@acme.example"


def test_old_refresh_token_that_comes_back_late_ends_the_login(api: Api, harness: Harness) -> None:
    secrets = api.logged_in("owner")
    renewed = refresh(api, secrets.refresh).json()
    harness.clock.advance(2 * MINUTE)
    assert error(refresh(api, secrets.refresh)) == "invalid_grant"
    assert reason(api.request("GET", "/me", token=renewed["access_token"])) == (401, "login_expired")


def test_unused_refresh_token_expires(api: Api, harness: Harness) -> None:
    secrets = api.logged_in("owner")
    harness.clock.advance(91 * DAY)
    assert error(refresh(api, secrets.refresh)) == "invalid_grant"


@pytest.mark.parametrize("which", ["access", "refresh"])
def test_revoking_either_token_ends_the_login(api: Api, which: str) -> None:
    secrets = api.logged_in("owner")
    answer = api.form("/oauth/revoke", token=getattr(secrets, which), client_id=CLIENT)
    assert answer.status_code == 200
    assert reason(api.request("GET", "/me", token=secrets.access)) == (401, "login_expired")
    assert error(refresh(api, secrets.refresh)) == "invalid_grant"


def test_revoking_an_unknown_token_is_no_error(api: Api) -> None:
    secrets = api.logged_in("owner")
    for token in ("nonsense", "tga_" + "0" * 38, "\0", secrets.access, secrets.access):
        assert api.form("/oauth/revoke", token=token).status_code == 200


def test_revoking_needs_a_token_and_our_own_client(api: Api) -> None:
    assert error(api.form("/oauth/revoke")) == "invalid_request"
    assert error(api.form("/oauth/revoke", token="x", client_id="other")) == "invalid_client"
