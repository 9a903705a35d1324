"""Lists come in parts: every one of them, row by row, through its cursors."""

import base64
from collections.abc import Callable
from contextlib import closing

import msgspec
import pytest
from tests.control.api.caller import Api, reason
from tests.control.services.harness import ACME, PEOPLE, RIVAL, Harness
from tests.store.account_rows import CI, WEB, Books, calls

from tollgate.core.months import start_of

Fill = Callable[[Api], None]


def teams(api: Api) -> None:
    api.make("/teams", {"name": "one"})
    api.harness.clock.advance(1)
    # Two of the same moment.
    api.make("/teams", {"name": "two"})
    api.make("/teams", {"name": "three"})


def tokens(api: Api) -> None:
    for name in ("a", "b", "c", "d"):
        api.make("/teams/acme/tokens", {"name": name})


def domains(api: Api) -> None:
    for name in ("a", "b", "c"):
        api.make("/teams/acme/domains", {"domain": f"{name}.com"})
        api.harness.clock.advance(0.25)


def invitations(api: Api) -> None:
    for name in ("a", "b", "c"):
        api.make("/teams/acme/invitations", {"email": f"{name}@x.example", "role": "viewer"})


def logins(api: Api) -> None:
    for name in ("a", "b", "c"):
        api.make("/me/tokens", {"name": name})


def logs(api: Api) -> None:
    with closing(Books(api.harness.folder)) as books:
        books.commit(calls(1), calls(2, source=WEB), calls(1, team=RIVAL.id), calls(1, method="eth_chainId"))
        # Older by its own time, newer in the ledger.
        books.commit(calls(1, start_of("2026-11"), source=CI))


def invoices(api: Api) -> None:
    """Two final invoices with an empty month between them, and the draft of the current month."""
    with closing(Books(api.harness.folder)) as books:
        books.commit(calls(1, start_of("2026-08")), calls(2, start_of("2026-10")))
        books.commit(calls(3, start_of("2026-09"), team=RIVAL.id))
    api.harness.do(api.harness.plane.invoices.close_due())


def operated(api: Api) -> None:
    """Teams, and a person who may see all of them."""
    teams(api)
    api.harness.do(api.harness.plane.admin.mark(PEOPLE["owner"], operator=True))


def nothing(_api: Api) -> None:
    """What is there already is enough."""


LISTS: dict[str, Fill] = {
    "/me/logins": logins,
    "/me/audit": domains,
    "/teams": teams,
    "/teams/{team}/members": nothing,
    "/teams/{team}/invitations": invitations,
    "/teams/{team}/tokens": tokens,
    "/teams/{team}/domains": domains,
    "/teams/{team}/logs": logs,
    "/teams/{team}/invoices": invoices,
    "/teams/{team}/audit": domains,
    "/operator/teams": operated,
}


def test_every_list_of_the_document_is_tried(api: Api) -> None:
    listing = {
        path.removeprefix("/api/v1")
        for path, methods in api.document["paths"].items()
        for operation in methods.values()
        if any(
            (each["name"], each["schema"]["type"]) == ("after", "string")
            for each in operation.get("parameters", [])
        )
    }
    assert listing == set(LISTS)


@pytest.mark.parametrize("route", LISTS)
def test_list_is_read_row_by_row(api: Api, route: str) -> None:
    LISTS[route](api)
    path = route.format(team="acme")
    whole = api.get(path)
    assert whole["next"] is None
    assert len(whole["items"]) >= 3
    seen, after = [], None
    while True:
        page = api.get(path, params={"limit": 1} if after is None else {"limit": 1, "after": after})
        assert len(page["items"]) == 1
        seen += page["items"]
        after = page["next"]
        if after is None:
            break
    assert seen == whole["items"]


WRONG = (
    *("limit=0", "limit=1001", "limit=-1", "limit=", "limit=1.0", "limit=%D9%A1", "limit=+5", "limit=1_0"),
    *("limit=99999999999999999999", "after=", "after=x", "after=%00", "after=%FF", "after=" + "A" * 400),
    *("after=WyJ4IixbMSwieCJdXQ", "after=%F0%9F%92%A9", "limit=5&after=e30"),
)


@pytest.mark.parametrize("route", LISTS)
def test_wrong_limit_or_cursor_is_refused_by_name(api: Api, route: str) -> None:
    operated(api)
    for query in WRONG:
        answer = api.request("GET", f"{route.format(team='acme')}?{query}")
        assert reason(answer) == (400, "invalid_request"), query
        assert answer.json()["field"] == ("after" if "after" in query else "limit")


def test_cursor_of_another_list_is_refused(api: Api, harness: Harness) -> None:
    tokens(api)
    cursor = api.get("/teams/acme/tokens", params={"limit": 1})["next"]
    harness.joins("outsider", "owner")
    for path in ("/teams/acme/domains", "/teams/rival/tokens", "/me/logins"):
        answer = api.request("GET", path, who="outsider", params={"after": cursor})
        assert reason(answer) == (400, "invalid_request")
        assert "another list" in answer.json()["detail"]


def test_cursors_of_logs_and_invoices_are_not_those_of_other_lists(api: Api) -> None:
    logs(api)
    invoices(api)
    paths = ("/teams/acme/logs", "/teams/acme/invoices", "/teams/acme/audit")
    cursors = {path: api.get(path, params={"limit": 1})["next"] for path in paths[:2]}
    for mine, cursor in cursors.items():
        for path in paths:
            answer = api.request("GET", path, params={"after": cursor})
            assert answer.status_code == (200 if path == mine else 400), (mine, path)


@pytest.mark.parametrize("moment", [1e300, -1e300, 1e18, 1e12, 253_402_300_800])
def test_made_up_cursor_of_a_moment_without_a_month_is_refused(api: Api, moment: float) -> None:
    written = msgspec.json.encode([f"invoices:{ACME.id}", [moment, "x"]])
    answer = api.request(
        "GET", "/teams/acme/invoices", params={"after": base64.urlsafe_b64encode(written).decode()}
    )
    assert reason(answer) == (400, "invalid_request")
    assert answer.json()["field"] == "after"


def test_empty_list_has_no_items(api: Api) -> None:
    assert api.get("/teams", who="loner") == {"items": [], "next": None}


def test_unknown_parameters_of_the_query_are_ignored(api: Api) -> None:
    assert api.get("/teams?x=1&limit=1&limit=2&&=&%FF")["next"] is None
