"""Request logs over HTTP: what an entry shows, how parts follow each other, and what is refused by name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import jsonschema_rs
import pytest
from tests.control.api.caller import api_app
from tests.control.log_harness import BASE_URL, LogHarness
from tests.store.log_rows import CI, NOON, THEIRS, WEB, entry

from tollgate.control.service_context import ClientInfo

Json = dict[str, Any]
LOGS = "/api/v1/teams/acme/logs"


class Api:
    """A client of the API, in-process; every page of a list is checked against the document."""

    def __init__(self, store: LogHarness) -> None:
        self.store = store
        app, self.document, _ = api_app()
        app.state.plane = store.plane
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(cast("Any", app)), base_url=BASE_URL)
        self._fits = jsonschema_rs.validator_for(
            {"$ref": "#/components/schemas/LogPage", "components": self.document["components"]}
        )
        self._tokens: dict[str, str] = {}

    @property
    def operation(self) -> Json:
        described: Json = self.document["paths"]["/api/v1/teams/{team}/logs"]["get"]
        return described

    def request(self, query: str = "", *, who: str = "owner", path: str = LOGS) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self._token(who)}"} if who else {}
        answer = self.store.do(self.client.get(f"{path}?{query}", headers=headers))
        assert str(answer.status_code) in self.operation["responses"], answer.text
        assert answer.headers["Cache-Control"] == "no-store"
        if answer.status_code == 200:
            self._fits.validate(answer.json())
        return answer

    def get(self, query: str = "", **more: str) -> Json:
        answer = self.request(query, **more)
        assert answer.status_code == 200, answer.text
        body: Json = answer.json()
        return body

    def _token(self, who: str) -> str:
        if who not in self._tokens:
            self._tokens[who] = self.store.do(self._issue(who))
        return self._tokens[who]

    async def _issue(self, who: str) -> str:
        async with self.store.store.changing() as records:
            account = await records.accounts.get(f"acc_{who}")
            assert account is not None
            return (await self.store.plane.logins.issue(records, ClientInfo(), account, "laptop", None)).access


@pytest.fixture
def api(tmp_path: Path, loop: asyncio.Runner) -> Iterator[Api]:
    store = LogHarness(tmp_path, loop)
    opened = Api(store)
    yield opened
    store.do(opened.client.aclose())
    store.close()


def commit(api: Api, *sources: str, **more: Any) -> None:
    api.store.ledger.commit(*(entry(NOON, source, **more) for source in sources))


# --- What an entry shows ------------------------------------------------------------------------------------


def test_call_with_a_token(api: Api) -> None:
    api.store.ledger.commit(
        entry(
            NOON + 0.25, request_id=b"req-7", source_name="ci", request_bytes=90, duration_micros=1_200,
            upstream="node-1", attempts=1, address="192.0.2.7", agent=b"curl/8",
        )
    )  # fmt: skip
    page = api.get()
    (item,) = page["items"]
    assert item == {
        "id": item["id"],
        "time": "2026-11-15T12:00:00.250000Z",
        "request_id": "req-7",
        "team": "acme",
        "token_id": CI,
        "token_name": "ci",
        "domain_id": None,
        "domain": None,
        "address": "192.0.2.7",
        "user_agent": "curl/8",
        "origin": None,
        "family": "eth",
        "network": "mainnet",
        "method": "eth_call",
        "status": 200,
        "outcome": "ok",
        "error_code": None,
        "request_bytes": 90,
        "response_bytes": 0,
        "duration_us": 1_200,
        "upstream": "node-1",
        "attempts": 1,
        "trace": [{"upstream": "node-1", "start_us": 0, "end_us": 1_200, "verdict": "answered", "status": None}],
        "cache": "bypass",
        "billable": True,
        "cost_micros": 0,
        "count": 1,
    }
    assert item["id"].startswith("ent_")
    assert (page["next"], page["newer"][:4]) == (None, "new_")


def test_call_of_a_page_and_refusals(api: Api) -> None:
    commit(api, WEB, source_name="web.example", origin=b"https://app.web.example", outcome="node_error", code=3)
    commit(api, CI, method="", status=429, outcome="rate_limited", code=-32005, stands_for=57)
    refusals, error = api.get()["items"]
    assert (error["token_id"], error["token_name"]) == (None, None)
    assert (error["domain_id"], error["domain"], error["origin"]) == (
        WEB,
        "web.example",
        "https://app.web.example",
    )
    assert (error["outcome"], error["error_code"], error["billable"]) == ("node_error", 3, True)
    assert (refusals["method"], refusals["status"], refusals["error_code"]) == (None, 429, -32005)
    assert (refusals["outcome"], refusals["count"]) == ("rate_limited", 57)
    assert (refusals["billable"], refusals["cost_micros"], refusals["upstream"]) == (False, 0, None)


# --- Parts --------------------------------------------------------------------------------------------------


def test_list_is_read_row_by_row(api: Api) -> None:
    commit(api, CI, WEB, THEIRS, CI)
    whole = api.get()
    assert whole["next"] is None
    seen, query = [], "limit=1"
    for _ in range(3):
        page = api.get(query)
        assert len(page["items"]) == 1
        seen += page["items"]
        query = f"limit=1&after={page['next']}"
        commit(api, CI)
    assert (seen, page["next"]) == (whole["items"], None)


def test_newer_rows_come_oldest_first(api: Api) -> None:
    commit(api, CI)
    first = api.get("limit=1")
    commit(api, CI, WEB)
    fresh = api.get(f"newer={first['newer']}")
    assert [item["domain_id"] for item in fresh["items"]] == [None, WEB]
    assert fresh["next"] is None
    assert api.get(f"newer={fresh['newer']}")["items"] == []
    assert {item["id"] for item in fresh["items"]} < {item["id"] for item in api.get()["items"]}


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("network=eth%2Fsepolia", 1),
        ("method=eth_chainId", 1),
        ("status=429", 1),
        ("errors=true", 2),
        ("errors=false", 6),
        ("token=ci", 5),
        (f"token={CI}&errors=true", 1),
        (f"domain={WEB}", 1),
        ("domain=web.example", 1),
        ("since=30m", 5),
        ("since=1h30m", 6),
        ("since=1h&token=ci&limit=1", 1),
    ],
)
def test_filters(api: Api, query: str, count: int) -> None:
    commit(api, CI)
    commit(api, CI, network="eth/sepolia")
    commit(api, CI, method="eth_chainId")
    commit(api, CI, status=429, outcome="rate_limited")
    commit(api, WEB, outcome="node_error")
    api.store.ledger.commit(entry(NOON - 3_600))
    assert len(api.get(query)["items"]) == count


# --- What is refused ----------------------------------------------------------------------------------------

CURSOR = "new_" + "A" * 80
WRONG = [
    ("limit=0", "limit", "a whole number from 1 to 1000"),
    ("limit=1001", "limit", "a whole number from 1 to 1000"),
    ("limit=ten", "limit", "a whole number from 1 to 1000"),
    ("after=", "after", "Give the `next` of an earlier page of the same list, or none to start."),
    ("after=x", "after", "not one of this team's logs"),
    (f"after={CURSOR}", "after", "not one of this team's logs"),
    ("newer=", "newer", "Give the `newer` of an earlier page"),
    (f"newer={CURSOR}", "newer", "not one of this team's logs"),
    ("after=x&newer=y", "newer", "give one of the two"),
    ("since=", "since", "one or more of <number><s|m|h|d|w>, such as 30m, 24h or 1h30m"),
    ("since=yesterday", "since", "one or more of <number><s|m|h|d|w>"),
    ("since=1.5h", "since", "one or more of <number><s|m|h|d|w>"),
    ("since=-1h", "since", "one or more of <number><s|m|h|d|w>"),
    ("status=abc", "status", "a whole number from 100 to 599"),
    ("status=99", "status", "a whole number from 100 to 599"),
    ("status=600", "status", "a whole number from 100 to 599"),
    ("status=%D9%A2%D9%A0%D9%A0", "status", "a whole number from 100 to 599"),
    ("network=mainnet", "network", "family/network, such as eth/mainnet"),
    ("network=eth/", "network", "family/network, such as eth/mainnet"),
    ("errors=1", "errors", "true or false"),
    ("errors=", "errors", "true or false"),
    ("method=", "method", "1 to 64 characters"),
    ("request_id=", "request_id", "1 to 256 characters"),
    (f"method={'m' * 65}", "method", "1 to 64 characters"),
    ("token=", "token", "1 to 300 characters"),
    ("domain=", "domain", "1 to 300 characters"),
    ("token=ci&domain=web.example", "domain", "give one of the two"),
    ("until=", "until", "a time with its offset, such as 2026-11-15T06:44:44Z"),
    ("until=2026-11-15T06:44:44", "until", "a time with its offset"),
]


@pytest.mark.parametrize(("query", "field", "words"), WRONG)
def test_invalid_parameter_is_refused_with_the_accepted_form(api: Api, query: str, field: str, words: str) -> None:
    answer = api.request(query)
    assert (answer.status_code, answer.json()["reason"]) == (400, "invalid_request")
    assert answer.json()["field"] == field
    assert words in answer.json()["detail"]


def test_every_parameter_is_in_the_document(api: Api) -> None:
    names = {each["name"] for each in api.operation["parameters"]} - {"team"}
    assert names == {field for _, field, _ in WRONG}


def test_unknown_token_or_domain_is_not_found(api: Api) -> None:
    for query in ("token=unknown", "domain=other.example"):
        answer = api.request(query)
        assert (answer.status_code, answer.json()["reason"]) == (404, "not_found")


def test_other_teams_and_roles_are_refused(api: Api) -> None:
    commit(api, CI)
    assert api.request(who="").json()["reason"] == "not_logged_in"
    assert api.request(who="outsider").json()["reason"] == "no_such_team"
    denied = api.request(who="billing")
    assert (denied.status_code, denied.json()["reason"]) == (403, "role_needed")
    assert denied.json()["roles"] == ["owner", "admin", "developer", "viewer"]
    assert api.get(who="outsider", path="/api/v1/teams/rival/logs")["items"] == []


def test_ledger_that_cannot_be_read_is_reported(api: Api) -> None:
    commit(api, CI)
    database = Path(str(api.store.ledger.url.database))
    api.store.ledger.close()
    for file in database.parent.glob("ledger.db*"):
        file.unlink()
    answer = api.request()
    assert (answer.status_code, answer.json()["reason"]) == (503, "store_unavailable")
    assert answer.headers["Retry-After"] == "2"
