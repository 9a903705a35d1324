"""A team can never see, change or guess another team's things: every route is walked with the wrong credentials.

The routes come from the OpenAPI document. A new one is walked by itself where it names a team; where it does not,
or brings a kind of id that is not known here, a test fails until it is taught how.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
from msgspec import Struct
from tests.control.api.caller import Api, Json, reason
from tests.control.services.harness import ACME, PEOPLE, RIVAL, ROLES, Harness, member_id
from tests.store.account_rows import BEFORE, MONTH, Books, calls

from tollgate.core.months import start_of

# Operations that name no team, with the paths and bodies that an intruder would try, and the statuses allowed.
TEAMLESS: dict[str, tuple[Json | None, set[int]]] = {
    "getService": (None, {200}),
    "getOpenApi": (None, {200}),
    "getDocs": (None, {200}),
    "startDeviceLogin": ({"client_id": "tollgate-cli", "machine": "{token}"}, {200}),
    "getAccessToken": (
        {"client_id": "tollgate-cli", "grant_type": "refresh_token", "refresh_token": "{login}"},
        {400},
    ),
    "revokeLogin": ({"token": "{login}"}, {200}),
    "getOAuthMetadata": (None, {200}),
    "getSelf": (None, {200}),
    "updateSelf": ({"name": "Intruder"}, {200}),
    "deleteSelf": (None, {204, 403}),
    "changeEmail": ({"email": "intruder@nowhere.example", "password": ""}, {200, 403}),
    "confirmEmail": ({"link": "nothing"}, {403, 404}),
    "changePassword": ({"current": "", "new": "an intruder's word"}, {204, 403}),
    "listLogins": (None, {200}),
    "endLogin": (None, {404}),
    "createPersonalToken": ({"name": "intruder"}, {201, 403}),
    "listOwnAudit": (None, {200}),
    "getFactors": (None, {200}),
    "beginTotp": ({}, {200, 403}),
    "confirmTotp": ({"code": "123456"}, {400, 403}),
    "endTotp": ({"code": "123456"}, {401, 403}),
    "beginPasskey": ({}, {200, 403}),
    "addPasskey": (
        {"ticket": "1.x.y", "credential": {"id": "{login}", "rawId": "x", "type": "public-key", "response": {}}},
        {401, 403},
    ),
    "removePasskey": (None, {403, 404}),
    "listNetworks": (None, {200}),
    "listUpstreams": (None, {403}),
    "listUpstreamHistory": (None, {403}),
    "getProcesses": (None, {403}),
    "listNodes": (None, {403}),
    "runChecks": (None, {403}),
    "listAllTeams": (None, {403}),
    "setTerms": ({"suspended": True}, {403}),
    "getAnyTeam": (None, {403}),
    "getUsageOfAnyTeam": (None, {403}),
    "getServiceUsage": (None, {403}),
    "createTeam": ({"name": "{team}"}, {409}),
    "listTeams": (None, {200}),
    "acceptInvitation": ({"link": "{invitation}"}, {404}),
}
# Through the intruder's own team, with bodies that name the first team's things.
THROUGH_OWN: dict[str, Json] = {
    "updateTeam": {"name": "{team}"},
    "createInvitation": {"email": "owner@acme.example", "role": "viewer"},
    "createToken": {"name": "{token_name}"},
    "addDomain": {"domain": "{domain_name}", "take_over": True},
    "updateBilling": {"alert_webhook": "{webhook}"},
}
# What a list or report is requested with: so that the owner is always shown the first team's things.
QUERY = {"origin": "https://first-domain.com", "limit": "1000", "by": "token"}
# Calls of the first team in the previous month and in this one.
CALLS, CALLS_NOW = 7_654_321, 6_543_217


class Things(Struct, frozen=True):
    """What the first team has: by the names of path parameters, and what must not be shown of it."""

    ids: dict[str, str]
    names: dict[str, str]
    etags: dict[str, str]
    key: str

    def filled(self, value: Any) -> Any:
        """A body or path with the first team's things in it."""
        if isinstance(value, dict):
            return {name: self.filled(each) for name, each in value.items()}
        return value.format(**self.ids, **self.names) if isinstance(value, str) else value

    def guarded(self, harness: Harness) -> set[str]:
        """Words that no answer may have, unless the question had them."""
        logins = harness.write(
            lambda records: records.logins.page(100, account_id=tuple(f"acc_{r}" for r in ROLES))
        )
        people = {f"acc_{role}" for role in ROLES} | {member_id(role) for role in ROLES}
        emails = {PEOPLE[role] for role in ROLES}
        # A month is the same for all teams.
        ids = {thing for kind, thing in self.ids.items() if kind not in {"month", "format", "factor"}}
        return {*ids, *self.names.values(), *(row.id for row in logins), *people, *emails, ACME.id}


@pytest.fixture
def things(api: Api) -> Things:
    """Fill the first team."""
    key = "key-of-the-owner"
    header = {"Idempotency-Key": key}
    token = api.request("POST", "/teams/acme/tokens", json={"name": "first-secret"}, headers=header)
    domain = api.request("POST", "/teams/acme/domains", json={"domain": "first-domain.com"}, headers=header)
    guest = {"email": "guest@first.example", "role": "viewer"}
    invitation = api.make("/teams/acme/invitations", guest)
    webhook = "https://first-hook.com/path-of-the-first"
    billing = api.request("PATCH", "/teams/acme/billing", json={"alert_webhook": webhook})
    called(api.harness, token.json()["id"])
    return Things(
        ids={
            "team": "acme",
            "token": token.json()["id"],
            "domain": domain.json()["id"],
            "invitation": invitation["id"],
            "member": member_id("viewer"),
            "login": api.login_id("owner"),
            "month": BEFORE,
            "entry": api.get("/teams/acme/logs")["items"][0]["id"],
            "format": "csv",
            "factor": "fac_0",
            "name": "acme",
        },
        names={
            "token_name": "first-secret",
            "token_prefix": token.json()["prefix"],
            "domain_name": "first-domain.com",
            "guest": guest["email"],
            "webhook": webhook,
            "webhook_secret": billing.json()["webhook_secret"],
            "log": api.get("/teams/acme/logs")["items"][0]["id"],
            "method": "first_method",
            "usage": str(CALLS_NOW),
            "billed": str(CALLS),
            "invoice": api.get(f"/teams/acme/invoices/{BEFORE}")["number"],
            "draft": api.get(f"/teams/acme/invoices/{MONTH}")["number"],
        },
        etags={"token": token.headers["ETag"], "domain": domain.headers["ETag"]},
        key=key,
    )


def called(harness: Harness, token_id: str) -> None:
    """Let the first team have called: in the month before, whose invoice is final, and in this one."""
    with closing(Books(harness.folder)) as books:
        books.commit(calls(CALLS, start_of(BEFORE), source=token_id, method="first_method"))
        harness.do(harness.plane.invoices.close_due())
        books.commit(calls(CALLS_NOW, source=token_id, method="first_method"))


def query_of(operation: Json) -> dict[str, str]:
    """The parameters of `QUERY` that an operation accepts."""
    schemas = {each["name"]: each["schema"] for each in operation.get("parameters", []) if each["in"] == "query"}
    return {
        name: value
        for name, value in QUERY.items()
        if name in schemas and value in schemas[name].get("enum", [value])
    }


def operations(api: Api) -> Iterator[tuple[str, str, Json]]:
    """All of them. Those that read come first, before the intruder has changed anything of the first team's."""
    for reading in (True, False):
        for path, methods in api.document["paths"].items():
            for method, operation in methods.items():
                if (method == "get") == reading:
                    yield path, method.upper(), operation


def snapshot(harness: Harness) -> dict[str, set[tuple[object, ...]]]:
    """Every row of the store and the ledger that is not the intruder's own."""
    rows: dict[str, list[tuple[object, ...]]] = {}
    for file in ("control.db", "ledger.db"):
        with closing(sqlite3.connect(harness.folder / file)) as connection:
            tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            for (name,) in connection.execute(tables).fetchall():
                # Changes of accounts advance the service's own chain.
                if name == "audit_chains":
                    others = "SELECT * FROM audit_chains WHERE id != 'service'"
                    rows[name] = connection.execute(others).fetchall()
                    continue
                rows[f"{file} {name}"] = connection.execute(f"SELECT * FROM {name}").fetchall()
    walkers = ("acc_outsider", "acc_loner", "acc_viewer")
    return {
        name: {row for row in each if not any(intruder in row for intruder in walkers)}
        for name, each in rows.items()
    }


class Intruder:
    """A person who belongs to another team, or to none, and tries everything."""

    def __init__(self, api: Api, things: Things, who: str, token: str) -> None:
        self.api = api
        self.things = things
        self.token = token
        self.guarded = things.guarded(api.harness)
        self.before = snapshot(api.harness)
        logins = {row["id"] for row in api.get("/me/logins", who=who)["items"]}
        self.own = logins | {f"acc_{who}", member_id(who), PEOPLE[who]}
        self.walked: set[str] = set()

    def request(self, path: str, method: str, operation: Json, body: Json | None = None) -> httpx.Response:
        """Send all that the owner's own requests had, and see that nothing is shown."""
        self.walked.add(operation["operationId"])
        headers = {"Idempotency-Key": self.things.key, "If-Match": ", ".join(self.things.etags.values())}
        content = operation.get("requestBody", {}).get("content", {})
        if body is None:
            body = next((each["example"] for each in content.values()), None)
        form = "application/x-www-form-urlencoded" in content
        params = query_of(operation)
        target = path.removeprefix("/api/v1")
        sent: dict[str, Any] = {"params": params, "data" if form else "json": body}
        answer = self.api.request(method, target, token=self.token, headers=headers, **sent)
        assert answer.status_code < 500, (method, path, answer.text)
        assert "Idempotency-Replayed" not in answer.headers, (method, path)
        question = f"{path} {body} {params}"
        text = answer.text
        for word in self.own:
            text = text.replace(word, "")
        leaked = {word for word in self.guarded if word in text and word not in question}
        assert not leaked, (method, path, leaked)
        return answer

    def nothing_changed(self) -> None:
        """Check that no row changed, and that no new one belongs to the first team."""
        after = snapshot(self.api.harness)
        for table, rows in self.before.items():
            assert rows <= after[table], table
            new = after[table] - rows
            assert not any(ACME.id in row for row in new), table


@pytest.fixture(params=["another team", "another team, a personal token", "no team", "removed"])
def intruder(request: pytest.FixtureRequest, api: Api, harness: Harness, things: Things) -> Intruder:
    who = {"no team": "loner", "removed": "viewer"}.get(request.param, "outsider")
    if request.param == "removed":
        assert api.request("DELETE", f"/teams/acme/members/{member_id('viewer')}", who="viewer").status_code == 204
        things.ids["member"] = member_id("billing")
    personal = harness.program(who)[1] if "personal" in request.param else None
    return Intruder(api, things, who, personal or api.secrets(who).access)


def test_every_route_without_a_team_is_listed_above(api: Api) -> None:
    assert set(TEAMLESS) == {each["operationId"] for path, _, each in operations(api) if "{team}" not in path}


def test_owner_is_shown_the_guarded_things_wherever_something_is_read(api: Api, things: Things) -> None:
    guarded, leaked = things.guarded(api.harness), set()
    for path, method, operation in operations(api):
        if "{team}" not in path or method != "GET":
            continue
        filled = path.format(**{**things.ids, "team": ACME.name}).removeprefix("/api/v1")
        params = query_of(operation)
        answer = api.request("GET", filled, params=params)
        assert answer.status_code == 200, (filled, answer.text)
        here = {word for word in guarded if word in answer.text and word not in f"{filled} {params}"}
        assert here, f"{operation['operationId']} would show an intruder nothing, were it open"
        leaked |= here
    assert set(things.names.values()) - leaked == {things.names["webhook_secret"]}


def test_paths_of_the_first_team_are_refused(api: Api, intruder: Intruder) -> None:
    for path, method, operation in operations(api):
        if "{team}" not in path:
            continue
        for team in (ACME.name, ACME.id):
            filled = path.format(**{**intruder.things.ids, "team": team})
            answer = intruder.request(filled, method, operation)
            assert reason(answer) == (403, "no_such_team"), (method, filled)
            assert answer.json()["team"] == team
    intruder.nothing_changed()


def test_things_of_the_first_team_are_not_reached_through_ones_own_team(api: Api, things: Things) -> None:
    intruder = Intruder(api, things, "outsider", api.secrets("outsider").access)
    for path, method, operation in operations(api):
        # Its own team is needed for the rest of the walk.
        if "{team}" not in path or operation["operationId"] == "deleteTeam":
            continue
        filled = path.format(**{**things.ids, "team": RIVAL.name})
        body = things.filled(THROUGH_OWN.get(operation["operationId"]))
        answer = intruder.request(filled, method, operation, body)
        if path.count("{") > 1 and "{format}" not in path:
            assert reason(answer) == (404, "not_found"), (method, filled)
    intruder.nothing_changed()


def test_things_of_the_first_team_are_not_shown_by_routes_without_a_team(api: Api, intruder: Intruder) -> None:
    for path, method, operation in operations(api):
        # After the account is deleted nothing more can be tried.
        if "{team}" in path or operation["operationId"] == "deleteSelf":
            continue
        body, allowed = TEAMLESS[operation["operationId"]]
        answer = intruder.request(
            path.format(**intruder.things.ids), method, operation, intruder.things.filled(body)
        )
        assert answer.status_code in allowed, (method, path, answer.text)
    intruder.nothing_changed()
    assert intruder.walked == set(TEAMLESS) - {"deleteSelf"}


def test_cursors_of_the_first_team_are_refused(api: Api, things: Things) -> None:
    api.make("/teams/acme/tokens", {"name": "second"})
    cursor = api.get("/teams/acme/tokens", params={"limit": 1})["next"]
    for path in ("/teams/rival/tokens", "/teams/rival/audit", "/me/logins"):
        assert reason(api.request("GET", path, who="outsider", params={"after": cursor})) == (
            400,
            "invalid_request",
        )
    for kind in ("logs", "invoices"):
        first = api.get(f"/teams/acme/{kind}", params={"limit": 1})
        cursors = {"after": first["next"], **({"newer": first["newer"]} if kind == "logs" else {})}
        for name, each in cursors.items():
            answer = api.request("GET", f"/teams/rival/{kind}", who="outsider", params={name: each})
            assert reason(answer) == (400, "invalid_request"), name


def test_same_webhook_has_another_secret_in_another_team(api: Api, things: Things) -> None:
    body = things.filled(THROUGH_OWN["updateBilling"])
    answer = api.request("PATCH", "/teams/rival/billing", who="outsider", json=body)
    assert answer.json()["alert_webhook"] == things.names["webhook"]
    assert answer.json()["webhook_secret"] != things.names["webhook_secret"]


def test_token_and_domain_of_the_first_team_find_nothing_in_logs_of_another(api: Api, things: Things) -> None:
    for kind in ("token", "domain"):
        found = api.get("/teams/rival/logs", who="outsider", params={kind: things.ids[kind]})
        assert found["items"] == []
        name = things.names[f"{kind}_name"]
        answer = api.request("GET", "/teams/rival/logs", who="outsider", params={kind: name})
        assert reason(answer) == (404, "not_found")


def test_foreign_and_unknown_ids_answer_alike(api: Api, things: Things) -> None:
    for kind in ("token", "domain"):
        words = [
            api.request("GET", f"/teams/rival/{kind}s/{thing}", who="outsider")
            .json()["detail"]
            .replace(thing, "x")
            for thing in (things.ids[kind], things.ids[kind][:-1] + "0")
        ]
        assert words[0] == words[1]
