"""GET and PATCH /teams/{team}/billing."""

from __future__ import annotations

from typing import Any

import pytest
from tests.control.api.caller import Api, reason
from tests.control.metering import DOLLAR

HOOK = "https://app.example.com/hook"
NOTHING: dict[str, Any] = {
    "spending_cap_micros": None,
    "alert_webhook": None,
    "alert_emails": True,
    "buyer": "",
    "tax_number": "",
    "previous_secret_until": None,
}


def change(api: Api, body: object, **more: Any) -> Any:
    return api.request("PATCH", "/teams/acme/billing", json=body, **more)


def test_settings_are_shown_and_the_secret_once(api: Api) -> None:
    assert api.get("/teams/acme/billing") == NOTHING
    answer = change(api, {"spending_cap_micros": 25 * DOLLAR, "alert_webhook": HOOK, "alert_emails": False})
    assert answer.status_code == 200
    body = answer.json()
    secret = body.pop("webhook_secret")
    assert secret.startswith("tgw_")
    chosen = {**NOTHING, "spending_cap_micros": 25 * DOLLAR, "alert_webhook": HOOK, "alert_emails": False}
    assert body == chosen
    assert api.get("/teams/acme/billing") == chosen
    again = change(api, {"alert_emails": True})
    assert again.json() == {**chosen, "alert_emails": True, "webhook_secret": None}
    assert secret not in again.text


def test_null_removes_a_setting_and_an_empty_object_changes_nothing(api: Api) -> None:
    change(api, {"spending_cap_micros": 5, "alert_webhook": HOOK})
    assert change(api, {}).json()["spending_cap_micros"] == 5
    assert change(api, {"spending_cap_micros": None, "alert_webhook": None}).json() == {
        **NOTHING,
        "webhook_secret": None,
    }


@pytest.mark.parametrize(
    ("body", "field", "accepted"),
    [
        ({"spending_cap_micros": -1}, "spending_cap_micros", "from 0 to 1000000000000000"),
        ({"spending_cap_micros": 10**18}, "spending_cap_micros", "from 0 to 1000000000000000"),
        ({"spending_cap_micros": 10**30}, "spending_cap_micros", "from 0 to 1000000000000000"),
        ({"spending_cap_micros": 1.5}, "spending_cap_micros", "a whole number from 0 to"),
        ({"spending_cap_micros": "25.00"}, "spending_cap_micros", "a whole number from 0 to"),
        ({"alert_webhook": "http://app.example.com/"}, "alert_webhook", "https://"),
        ({"alert_webhook": "https://127.0.0.1/"}, "alert_webhook", "of a named host"),
        ({"alert_webhook": ""}, "alert_webhook", "https://"),
        ({"alert_webhook": 7}, "alert_webhook", "a text of"),
        ({"alert_emails": None}, "alert_emails", "true or false"),
        ({"alert_emails": "yes"}, "alert_emails", "true or false"),
        ({"cap": 5}, "cap", "`spending_cap_micros`, `alert_webhook`, `alert_emails`"),
    ],
)
def test_invalid_member_is_refused_by_name(api: Api, body: dict[str, Any], field: str, accepted: str) -> None:
    answer = change(api, body)
    assert reason(answer) == (400, "invalid_request")
    assert answer.json()["field"] == field
    assert accepted in answer.json()["detail"]
    assert api.get("/teams/acme/billing") == NOTHING


def test_an_outdated_version_is_refused(api: Api) -> None:
    tag = api.request("GET", "/teams/acme/billing").headers["ETag"]
    changed = change(api, {"spending_cap_micros": 5}, headers={"If-Match": tag})
    assert changed.status_code == 200
    assert reason(change(api, {"spending_cap_micros": 6}, headers={"If-Match": tag})) == (412, "changed_meanwhile")
    assert changed.headers["ETag"] == api.request("GET", "/teams/acme/billing").headers["ETag"] != tag
    for good in (changed.headers["ETag"], f'"other", {changed.headers["ETag"]}', "*"):
        assert change(api, {"spending_cap_micros": 5}, headers={"If-Match": good}).status_code == 200


def test_another_secret_of_the_same_webhook_is_another_version(api: Api) -> None:
    wanted = {"alert_webhook": "https://hooks.example/x"}
    tag = change(api, wanted).headers["ETag"]
    assert change(api, wanted, headers={"If-Match": tag}).status_code == 200
    rolled = api.request("POST", "/teams/acme/billing/roll")
    assert (rolled.status_code, rolled.headers["ETag"] != tag) == (201, True)
    assert reason(change(api, wanted, headers={"If-Match": tag})) == (412, "changed_meanwhile")


def test_roll_shows_the_new_secret_once_and_the_end_of_the_old_one(api: Api) -> None:
    first = change(api, {"alert_webhook": HOOK}).json()["webhook_secret"]
    assert change(api, {"alert_webhook": HOOK}).json()["webhook_secret"] is None
    key = {"Idempotency-Key": "key"}
    one, two = (
        api.request("POST", "/teams/acme/billing/roll", json={"overlap_seconds": 3_600}, headers=key)
        for _ in range(2)
    )
    assert one.json()["secret"] not in (None, first)
    assert two.json() == {**one.json(), "secret": None}
    assert api.get("/teams/acme/billing")["previous_secret_until"] == one.json()["previous_secret_until"]


@pytest.mark.parametrize("given", ['"other"', "W/{}", "nonsense", '""'])
def test_an_outdated_version_changes_nothing(api: Api, given: str) -> None:
    tag = api.request("GET", "/teams/acme/billing").headers["ETag"]
    wanted = {"spending_cap_micros": 5, "alert_webhook": HOOK}
    answer = change(api, wanted, headers={"If-Match": given.replace("{}", tag)})
    assert reason(answer) == (412, "changed_meanwhile")
    assert api.get("/teams/acme/billing") == NOTHING


def test_a_change_creates_nothing_so_that_no_key_replays_its_secret(api: Api) -> None:
    key = {"Idempotency-Key": "key"}
    one, two = (change(api, {"alert_webhook": each}, headers=key) for each in (HOOK, f"{HOOK}/2"))
    assert "Idempotency-Replayed" not in two.headers
    assert one.json()["webhook_secret"] != two.json()["webhook_secret"]


@pytest.mark.parametrize("who", ["developer", "viewer"])
def test_other_roles_are_refused_with_the_roles_that_may(api: Api, who: str) -> None:
    for answer in (change(api, {}, who=who), api.request("GET", "/teams/acme/billing", who=who)):
        assert reason(answer) == (403, "role_needed")
        assert answer.json()["roles"] == ["owner", "admin", "billing"]
