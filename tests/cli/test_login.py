"""Renewing an access token: once, under the lock, and never twice by two tools at once."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from tests.samples import sample

from tollgate.api.me import Account, CurrentLogin
from tollgate.cli.credentials import Credential, CredentialStore
from tollgate.cli.failures import LoginNeeded, Lost
from tollgate.cli.login import FixedLogin, KeptLogin
from tollgate.cli.transport import Transport

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Api, Tool

ME = sample(Account, email="ann@example.com", login=sample(CurrentLogin))
NEW = {"access_token": "tga_two", "token_type": "Bearer", "expires_in": 3600, "refresh_token": "tgr_two"}
EXPIRED = "tollgate: Your login has expired. Run: tollgate auth login\n"


def refused(api: Api, reason: str = "invalid_grant") -> None:
    api.on("POST", "oauth/token", {"error": reason, "error_description": "words"}, status=400)


@pytest.mark.parametrize("reason", ["login_expired", "not_logged_in"])
def test_a_refused_access_token_is_renewed_once_and_the_request_sent_again(
    api: Api, acme: Tool, reason: str
) -> None:
    api.problem("GET", "me", 401, reason, "It has run out.")
    api.on("POST", "oauth/token", NEW)
    api.on("GET", "me", ME)
    assert acme.run("account", "show").code == 0
    assert api.requests[1].form == {
        "grant_type": "refresh_token",
        "refresh_token": "tgr_one",
        "client_id": "tollgate-cli",
    }
    assert [request.bearer for request in api.requests] == ["tga_one", "", "tga_two"]
    kept = acme.keep.credential(api.url)
    assert kept is not None
    assert (kept.access, kept.refresh) == ("tga_two", "tgr_two")


def test_one_that_is_about_to_run_out_is_renewed_before_it_is_sent(api: Api, tool: Tool) -> None:
    tool.log_in(expires_at=time.time() + 10)
    api.on("POST", "oauth/token", NEW).on("GET", "me", ME)
    assert tool.run("account", "show").code == 0


def test_one_that_is_good_for_a_while_is_not_renewed(api: Api, tool: Tool) -> None:
    tool.log_in(expires_at=time.time() + 600)
    api.on("GET", "me", ME)
    assert tool.run("account", "show").code == 0


def test_a_refresh_token_that_is_not_replaced_stays(api: Api, tool: Tool) -> None:
    tool.log_in(expires_at=1.0)
    api.on("POST", "oauth/token", {"access_token": "tga_two", "expires_in": 60}).on("GET", "me", ME)
    tool.run("account", "show")
    kept = tool.keep.credential(api.url)
    assert kept is not None
    assert kept.refresh == "tgr_one"


def test_a_refused_renewal_is_an_expired_login(api: Api, acme: Tool) -> None:
    api.problem("GET", "me", 401, "login_expired", "It has run out.")
    refused(api)
    ran = acme.run("account", "show")
    assert (ran.code, ran.err) == (4, EXPIRED)


def test_a_new_token_that_is_refused_too_is_not_renewed_again(api: Api, acme: Tool) -> None:
    api.problem("GET", "me", 401, "login_expired", "It has run out.")
    api.on("POST", "oauth/token", NEW)
    api.problem("GET", "me", 401, "login_expired", "It was revoked.")
    ran = acme.run("account", "show")
    assert (ran.code, ran.err) == (4, EXPIRED)


def test_another_error_of_the_token_endpoint_is_reported_as_it_is(api: Api, acme: Tool) -> None:
    api.problem("GET", "me", 401, "login_expired", "It has run out.")
    refused(api, "invalid_client")
    ran = acme.run("account", "show")
    assert (ran.code, ran.err) == (1, "tollgate: words\n")


def test_a_renewal_that_breaks_changes_nothing_here(api: Api, tool: Tool) -> None:
    tool.log_in(expires_at=1.0)
    api.on("POST", "oauth/token", drop=True)
    assert tool.run("account", "show").code == 1
    kept = tool.keep.credential(api.url)
    assert kept is not None
    assert kept.access == "tga_one"


def test_a_wrong_password_renews_nothing(api: Api, acme: Tool) -> None:
    api.problem("POST", "me/password", 401, "wrong_password", "The password is wrong.")
    ran = acme.run("account", "password", stdin="old\nnew\n")
    assert (ran.code, ran.err) == (1, "tollgate: The password is wrong.\n")


# ---- two tools at once


def kept_login(folder: Path, transport: Transport, credential: Credential) -> KeptLogin:
    return KeptLogin(CredentialStore(folder, keyring=lambda: None), transport, credential, clock=lambda: 1_000.0)


def test_two_tools_at_once_renew_once(api: Api, tmp_path: Path) -> None:
    old = Credential("tool", "tga_old", refresh="tgr_old", expires_at=900.0)
    CredentialStore(tmp_path, keyring=lambda: None).put(api.url, old)
    api.on("POST", "oauth/token", NEW)  # a second one would be a surprise
    secrets: list[str] = []
    at_once = threading.Barrier(2)

    def work() -> None:
        with Transport(api.url) as transport:
            login = kept_login(tmp_path, transport, old)
            at_once.wait(30)
            secrets.append(login.secret())

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert secrets == ["tga_two", "tga_two"]


def test_what_another_tool_has_renewed_is_taken_from_where_it_is_kept(api: Api, tmp_path: Path) -> None:
    CredentialStore(tmp_path, keyring=lambda: None).put(
        api.url, Credential("tool", "tga_theirs", refresh="tgr_theirs")
    )
    with Transport(api.url) as transport:
        login = kept_login(tmp_path, transport, Credential("tool", "tga_old", refresh="tgr_old"))
        assert login.renewed("tga_old") == "tga_theirs"


def test_a_logout_of_another_tool_is_noticed(api: Api, tmp_path: Path) -> None:
    with Transport(api.url) as transport:
        login = kept_login(tmp_path, transport, Credential("tool", "tga_old", refresh="tgr_old"))
        with pytest.raises(LoginNeeded, match="You are not logged in"):
            login.renewed("tga_old")


def test_a_personal_token_that_took_the_place_is_used(api: Api, tmp_path: Path) -> None:
    CredentialStore(tmp_path, keyring=lambda: None).put(api.url, Credential("personal", "tgp_new"))
    with Transport(api.url) as transport:
        login = kept_login(tmp_path, transport, Credential("tool", "tga_old", refresh="tgr_old", expires_at=1.0))
        assert login.secret() == "tgp_new"


def test_the_lock_is_free_again_after_a_failure(api: Api, tmp_path: Path) -> None:
    keep = CredentialStore(tmp_path, keyring=lambda: None)
    old = Credential("tool", "tga_old", refresh="tgr_old", expires_at=1.0)
    keep.put(api.url, old)
    api.on("POST", "oauth/token", drop=True).on("POST", "oauth/token", NEW)
    with Transport(api.url) as transport:
        login = kept_login(tmp_path, transport, old)
        with pytest.raises(Lost):
            login.secret()
        assert login.secret() == "tga_two"


def test_a_fixed_login_has_no_successor() -> None:
    login = FixedLogin("tgp_x", "words")
    assert (login.secret(), login.renewed("tgp_x"), str(login.refusal())) == ("tgp_x", None, "words")
