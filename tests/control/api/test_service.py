"""Public endpoints, and what answers have in common."""

import gc
import io
import sqlite3
from contextlib import AbstractAsyncContextManager, closing

import pytest
from structlog.testing import capture_logs
from tests.control.api.caller import BASE, REQUEST_ID, Api, reason
from tests.control.services.harness import BASE_URL, Harness

from tollgate import __version__, log
from tollgate.store import sqlite
from tollgate.store.base import Repositories, StoreUnavailable


def test_service_shows_what_it_is(api: Api) -> None:
    assert api.get("/service", who=None) == {
        "name": "tollgate",
        "version": __version__,
        "sign_up": "invited",
        "oidc": None,
        "console_url": f"{BASE_URL}/console",
        "device_login": True,
    }


def test_service_shows_who_may_sign_up(harness: Harness) -> None:
    harness.choose(sign_up="open")
    api = Api(harness)
    assert api.get("/service", who=None)["sign_up"] == "open"
    api.close()


def test_metadata_names_the_endpoints_of_oauth(api: Api) -> None:
    metadata = api.request("GET", "/.well-known/oauth-authorization-server", who=None).json()
    assert metadata["issuer"] == BASE_URL
    assert metadata["device_authorization_endpoint"] == f"{BASE_URL}{BASE}/oauth/device_authorization"
    assert metadata["token_endpoint"] == f"{BASE_URL}{BASE}/oauth/token"
    assert metadata["revocation_endpoint"] == f"{BASE_URL}{BASE}/oauth/revoke"
    assert metadata["grant_types_supported"] == ["urn:ietf:params:oauth:grant-type:device_code", "refresh_token"]


def test_unknown_path_names_the_documentation(api: Api) -> None:
    for path in ("", "/nothing", "/teams/acme/nothing", "/me/logins/a/b"):
        answer = api.request("GET", path)
        assert reason(answer) == (404, "not_found")
        assert "/api/v1/docs" in answer.json()["detail"]


def test_unknown_method_is_shown_the_known_ones(api: Api) -> None:
    answer = api.request("PUT", "/teams")
    assert reason(answer) == (405, "method_not_allowed")
    assert {"GET", "POST"} <= set(answer.headers["Allow"].split(", "))


def test_only_the_documentation_may_be_stored(api: Api) -> None:
    assert api.request("GET", "/me").headers["Cache-Control"] == "no-store"
    assert api.request("GET", "/openapi.json", who=None).headers["Cache-Control"] == "public, max-age=300"


def test_request_id_of_the_worker_is_on_every_answer(api: Api) -> None:
    for method, path in (("GET", "/me"), ("GET", "/nothing"), ("PUT", "/me"), ("OPTIONS", "/me")):
        assert api.request(method, path).headers["X-Request-Id"] == REQUEST_ID


def test_answer_names_the_caller_of_a_valid_credential_to_the_worker(api: Api) -> None:
    assert api.request("GET", "/me").headers["X-Tollgate-Known"] == "1"
    assert api.request("GET", "/teams/unknown").headers["X-Tollgate-Known"] == "1"
    for answer in (
        api.request("GET", "/me", who=None),
        api.request("GET", "/me", token="tgp_guess"),
        api.request("GET", "/openapi.json"),
        api.request("GET", "/nothing"),
    ):
        assert "X-Tollgate-Known" not in answer.headers


def test_unknown_path_of_any_text_is_refused(api: Api) -> None:
    for part in ("%00", "%FF%FE", "a" * 5_000, "%F0%9F%92%A9", "%2e%2e", "team_%00", "{team}", "'--", "%0d%0aX:1"):
        for method in ("GET", "PATCH"):
            answer = api.request(method, f"/teams/{part}", json={"name": "other"} if method == "PATCH" else None)
            assert reason(answer) == (403, "no_such_team"), part
        assert reason(api.request("GET", f"/teams/acme/tokens/{part}")) == (404, "not_found"), part
        assert reason(api.request("DELETE", f"/teams/acme/domains/{part}")) == (404, "not_found"), part
        assert reason(api.request("DELETE", f"/me/logins/{part}")) == (404, "not_found"), part


def test_defect_is_logged_under_the_request_id_and_reveals_nothing(api: Api, harness: Harness) -> None:
    harness.plane.teams = None  # type: ignore[assignment]
    with capture_logs() as logs:
        answer = api.request("GET", "/teams")
    assert reason(answer) == (500, "internal_error")
    assert not any(word in answer.text for word in ("NoneType", "Traceback", ".py"))
    [line] = logs
    assert (line["event"], line["request_id"]) == ("a request failed", REQUEST_ID)
    assert isinstance(line["exc_info"], AttributeError)


class Away:
    """A store that cannot be reached."""

    def reading(self) -> AbstractAsyncContextManager[Repositories]:
        raise StoreUnavailable("away")

    changing = reading

    async def close(self) -> None:
        """Nothing to give back."""


def test_unavailable_store_is_reported_with_retry_after(api: Api, harness: Harness) -> None:
    secret = api.secrets("owner").access
    harness.plane.context.store = Away()
    for answer in (api.request("GET", "/teams", token=secret), api.form("/oauth/revoke", token="x")):
        assert reason(answer) == (503, "store_unavailable")
        assert answer.headers["Retry-After"] == "2"
    harness.plane.context.store = harness.store


@pytest.mark.usefixtures("own_logging")
def test_slow_store_leaves_no_traceback_in_the_log(api: Api, harness: Harness) -> None:
    """Locked for longer than a request waits, with connections that were lent when the time was over."""
    secret = api.secrets("owner").access
    output = io.StringIO()
    log.configure("info", "json", output)
    harness.plane.context.store = slow = sqlite.open_store(sqlite.store_url("", harness.folder), deadline=0.05)
    with closing(sqlite3.connect(harness.folder / "control.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for method, path, body in (
            ("GET", "/teams", None),
            ("POST", "/teams/acme/tokens", {"name": "ci"}),
            ("GET", "/teams/acme/audit", None),
        ):
            answer = api.request(method, path, token=secret, json=body)
            assert reason(answer) == (503, "store_unavailable")
        other.execute("ROLLBACK")
    harness.plane.context.store = harness.store
    harness.do(slow.close())
    gc.collect()
    assert "Traceback" not in output.getvalue()
