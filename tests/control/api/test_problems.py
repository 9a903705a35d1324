"""Every reason of the contract's table that the API can give, with its status and members."""

from collections.abc import Callable

import httpx
import pytest
from tests.control.api.caller import Api, reason
from tests.control.services.harness import ACME, PASSWORD, RIVAL, Harness, member_id

from tollgate.control.api.errors import API_PROBLEMS
from tollgate.control.problems import ALL_PROBLEMS

KEY = {"Idempotency-Key": "key"}
Scene = Callable[[Api], httpx.Response]


def invalid_request(api: Api) -> httpx.Response:
    return api.request("POST", "/teams", json={"name": "A"})


def not_logged_in(api: Api) -> httpx.Response:
    return api.request("GET", "/me", who=None)


def login_expired(api: Api) -> httpx.Response:
    secret = api.secrets("owner").access
    api.harness.clock.advance(3_600)
    return api.request("GET", "/me", token=secret)


def wrong_password(api: Api) -> httpx.Response:
    return api.request("POST", "/me/password", json={"current": "wrong", "new": "another good one"})


def no_such_team(api: Api) -> httpx.Response:
    return api.request("GET", "/teams/acne")


def role_needed(api: Api) -> httpx.Response:
    return api.request("POST", "/teams/acme/tokens", who="viewer", json={"name": "ci"})


def personal_token_refused(api: Api) -> httpx.Response:
    return api.request("POST", "/me/tokens", token=api.harness.program("owner")[1], json={"name": "ci"})


def log_in_again(api: Api) -> httpx.Response:
    api.request("GET", "/me")
    api.harness.clock.advance(901)
    return api.request("POST", "/me/factors/totp")


def invitation_for_other(api: Api) -> httpx.Response:
    made = api.make("/teams/acme/invitations", {"email": "other@x.example", "role": "viewer"})
    return api.request("POST", "/invitations/accept", who="loner", json={"link": made["link"]})


def not_found(api: Api) -> httpx.Response:
    return api.request("GET", "/teams/acme/tokens/tok_none")


def method_not_allowed(api: Api) -> httpx.Response:
    return api.request("PUT", "/me")


def name_taken(api: Api) -> httpx.Response:
    return api.request("POST", "/teams", json={"name": "rival"})


def domain_taken(api: Api) -> httpx.Response:
    api.make("/teams/rival/domains", {"domain": "example.com"}, who="outsider")
    return api.request("POST", "/teams/acme/domains", json={"domain": "example.com"})


def domain_verified(api: Api) -> httpx.Response:
    made = api.make("/teams/rival/domains", {"domain": "example.com"}, who="outsider")
    api.harness.proofs.proven |= {("example.com", RIVAL.id), ("example.com", ACME.id)}
    api.request("POST", f"/teams/rival/domains/{made['id']}/verify", who="outsider")
    return api.request("POST", "/teams/acme/domains", json={"domain": "example.com", "take_over": True})


def not_proven(api: Api) -> httpx.Response:
    made = api.make("/teams/acme/domains", {"domain": "example.com"})
    return api.request("POST", f"/teams/acme/domains/{made['id']}/verify")


def last_owner(api: Api) -> httpx.Response:
    return api.request("DELETE", f"/teams/acme/members/{member_id('owner')}")


def already_member(api: Api) -> httpx.Response:
    return api.request("POST", "/teams/acme/invitations", json={"email": "viewer@acme.example", "role": "viewer"})


def limit_reached(api: Api) -> httpx.Response:
    for number in range(19):
        api.make("/teams", {"name": f"team-{number}"})
    return api.request("POST", "/teams", json={"name": "one-too-many"})


def request_running(api: Api) -> httpx.Response:
    body = b'{"name":"lovelace"}'
    replay = api.harness.plane.replays.begin(api.harness.actor("owner"), "POST /api/v1/teams", "key", body)
    api.harness.do(replay)
    return api.request("POST", "/teams", content=body, headers={"Content-Type": "application/json", **KEY})


def changed_meanwhile(api: Api) -> httpx.Response:
    return api.request("PATCH", "/teams/acme", json={"name": "other"}, headers={"If-Match": '"x"'})


def body_too_large(api: Api) -> httpx.Response:
    return api.request("POST", "/teams", json={"name": "x" * 300_000})


def unsupported_media_type(api: Api) -> httpx.Response:
    return api.request("POST", "/teams", content=b"name=acme", headers={"Content-Type": "text/plain"})


def key_reused(api: Api) -> httpx.Response:
    api.request("POST", "/teams", json={"name": "one"}, headers=KEY)
    return api.request("POST", "/teams", json={"name": "two"}, headers=KEY)


def not_a_root_domain(api: Api) -> httpx.Response:
    return api.request("POST", "/teams/acme/domains", json={"domain": "app.example.com"})


def too_many_attempts(api: Api) -> httpx.Response:
    for _ in range(5):
        wrong_password(api)
    return api.request("POST", "/me/password", json={"current": PASSWORD, "new": "another good one"})


def rate_limited(api: Api) -> httpx.Response:
    api.limit(credential=3)
    for _ in range(3):
        api.request("GET", "/me")
    return api.request("GET", "/me")


def internal_error(api: Api) -> httpx.Response:
    api.harness.plane.audit = None  # type: ignore[assignment]
    return api.request("GET", "/me/audit")


PROOF = {"domain", "dns_name", "dns_value", "well_known_url"}
# Status, the members beside those of every problem, and how to come by it.
TABLE: dict[str, tuple[int, set[str], Scene]] = {
    "invalid_request": (400, {"field", "errors"}, invalid_request),
    "not_logged_in": (401, set(), not_logged_in),
    "login_expired": (401, set(), login_expired),
    "wrong_password": (401, set(), wrong_password),
    "no_such_team": (403, {"team", "suggestion"}, no_such_team),
    "role_needed": (403, {"role", "roles"}, role_needed),
    "personal_token_refused": (403, set(), personal_token_refused),
    "log_in_again": (403, set(), log_in_again),
    "invitation_for_other": (403, set(), invitation_for_other),
    "not_found": (404, set(), not_found),
    "method_not_allowed": (405, set(), method_not_allowed),
    "name_taken": (409, {"field", "errors"}, name_taken),
    "domain_taken": (409, PROOF, domain_taken),
    "domain_verified": (409, {"domain"}, domain_verified),
    "not_proven": (409, PROOF | {"problems"}, not_proven),
    "last_owner": (409, set(), last_owner),
    "already_member": (409, set(), already_member),
    "limit_reached": (409, {"limit"}, limit_reached),
    "request_running": (409, set(), request_running),
    "changed_meanwhile": (412, set(), changed_meanwhile),
    "body_too_large": (413, set(), body_too_large),
    "unsupported_media_type": (415, set(), unsupported_media_type),
    "key_reused": (422, set(), key_reused),
    "not_a_root_domain": (422, {"domain", "suggestion"}, not_a_root_domain),
    "too_many_attempts": (429, {"retry_after"}, too_many_attempts),
    "rate_limited": (429, {"retry_after", "limit"}, rate_limited),
    "internal_error": (500, set(), internal_error),
}
# Signing up is a matter of the console; addresses, the store and the passwords have tests of their own.
ELSEWHERE = {"sign_up_closed", "address_unproved", "store_unavailable", "busy"}


def test_table_has_every_problem_there_is() -> None:
    known = {problem.reason: problem.status for problem in (*ALL_PROBLEMS, *API_PROBLEMS)}
    assert set(known) == set(TABLE) | ELSEWHERE
    assert all(known[name] == status for name, (status, _, _) in TABLE.items())


@pytest.mark.parametrize("name", TABLE)
def test_problem_is_reported_as_the_table_specifies(api: Api, harness: Harness, name: str) -> None:
    status, members, provoke = TABLE[name]
    answer = provoke(api)
    assert reason(answer) == (status, name)
    assert set(answer.json()) - {"type", "title", "status", "detail", "reason", "request_id"} == members
    assert ("Retry-After" in answer.headers) == (status in {429, 503})
    assert ("WWW-Authenticate" in answer.headers) == (status == 401)
