"""Lists come in parts: every one of them, row by row, through its cursors."""

from collections.abc import Callable

import pytest
from tests.control.api.caller import Api, reason
from tests.control.services.house import House

Fill = Callable[[Api], None]


def teams(api: Api) -> None:
    api.make("/teams", {"name": "one"})
    api.house.clock.advance(1)
    # Two of the same moment.
    api.make("/teams", {"name": "two"})
    api.make("/teams", {"name": "three"})


def tokens(api: Api) -> None:
    for name in ("a", "b", "c", "d"):
        api.make("/teams/acme/tokens", {"name": name})


def domains(api: Api) -> None:
    for name in ("a", "b", "c"):
        api.make("/teams/acme/domains", {"domain": f"{name}.com"})
        api.house.clock.advance(0.25)


def invitations(api: Api) -> None:
    for name in ("a", "b", "c"):
        api.make("/teams/acme/invitations", {"email": f"{name}@x.example", "role": "viewer"})


def logins(api: Api) -> None:
    for name in ("a", "b", "c"):
        api.make("/me/tokens", {"name": name})


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
    "/teams/{team}/audit": domains,
}


def test_every_list_of_the_document_is_tried(api: Api) -> None:
    listing = {
        path.removeprefix("/api/v1")
        for path, methods in api.document["paths"].items()
        for operation in methods.values()
        if any(each["name"] == "after" for each in operation.get("parameters", []))
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
    for query in WRONG:
        answer = api.ask("GET", f"{route.format(team='acme')}?{query}")
        assert reason(answer) == (400, "invalid_request"), query
        assert answer.json()["field"] == ("after" if "after" in query else "limit")


def test_cursor_of_another_list_is_refused(api: Api, house: House) -> None:
    tokens(api)
    cursor = api.get("/teams/acme/tokens", params={"limit": 1})["next"]
    house.joins("stranger", "owner")
    for path in ("/teams/acme/domains", "/teams/rival/tokens", "/me/logins"):
        answer = api.ask("GET", path, who="stranger", params={"after": cursor})
        assert reason(answer) == (400, "invalid_request")
        assert "another list" in answer.json()["detail"]


def test_list_of_nothing_is_an_empty_one(api: Api) -> None:
    assert api.get("/teams", who="loner") == {"items": [], "next": None}


def test_unknown_parameters_of_the_query_are_ignored(api: Api) -> None:
    assert api.get("/teams?x=1&limit=1&limit=2&&=&%FF")["next"] is None
