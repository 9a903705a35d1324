"""`ETag` and `If-Match`: a change applies only to the version that its caller has seen."""

import httpx
import pytest
from msgspec.structs import replace
from tests.control.api.caller import Api, Json, reason
from tests.control.services.harness import Harness

from tollgate.store.base import Repositories

# Where a thing is created and which member is changed; the team exists already.
THINGS: dict[str, tuple[str, Json, list[Json]]] = {
    "token": ("/teams/acme/tokens", {"name": "ci"}, [{"active": False}, {"active": True}]),
    "domain": ("/teams/acme/domains", {"domain": "example.com"}, [{"active": False}, {"active": True}]),
    "team": ("/teams", {"name": "lovelace"}, [{"name": "babbage"}, {"name": "lovelace"}]),
}


@pytest.fixture(params=THINGS)
def thing(request: pytest.FixtureRequest, api: Api) -> tuple[httpx.Response, str, list[Json]]:
    """What was answered to the creation of a thing, its path, and changes of it."""
    path, body, changes = THINGS[request.param]
    made = api.request("POST", path, json=body)
    return made, f"{path}/{made.json()['id']}", changes


def test_version_changes_with_every_change(api: Api, thing: tuple[httpx.Response, str, list[Json]]) -> None:
    made, path, changes = thing
    versions = [made.headers["ETag"]]
    assert api.request("GET", path).headers["ETag"] == versions[0]
    for change in changes:
        answer = api.request("PATCH", path, json=change, headers={"If-Match": versions[-1]})
        assert answer.status_code == 200, answer.text
        versions.append(answer.headers["ETag"])
        assert api.request("GET", path).headers["ETag"] == versions[-1]
    assert versions[0] == versions[2] != versions[1]


@pytest.mark.parametrize("given", ['"other"', "W/{}", "nonsense", '""', '"a", "b"'])
def test_change_of_an_outdated_version_is_refused(
    api: Api, thing: tuple[httpx.Response, str, list[Json]], given: str
) -> None:
    made, path, changes = thing
    headers = {"If-Match": given.replace("{}", made.headers["ETag"])}
    assert reason(api.request("PATCH", path, json=changes[0], headers=headers)) == (412, "changed_meanwhile")
    assert api.request("GET", path).headers["ETag"] == made.headers["ETag"]


@pytest.mark.parametrize("given", ["*", "{}", '"other", {}'])
def test_current_version_is_accepted_in_every_form(
    api: Api, thing: tuple[httpx.Response, str, list[Json]], given: str
) -> None:
    made, path, changes = thing
    headers = {"If-Match": given.replace("{}", made.headers["ETag"])}
    assert api.request("PATCH", path, json=changes[0], headers=headers).status_code == 200


@pytest.mark.parametrize("name", ["token", "domain"])
def test_deletion_honours_the_version(api: Api, name: str) -> None:
    path, body, changes = THINGS[name]
    made = api.request("POST", path, json=body)
    target = f"{path}/{made.json()['id']}"
    changed = api.request("PATCH", target, json=changes[0])
    answer = api.request("DELETE", target, headers={"If-Match": made.headers["ETag"]})
    assert reason(answer) == (412, "changed_meanwhile")
    assert api.request("DELETE", target, headers={"If-Match": changed.headers["ETag"]}).status_code == 204


def test_use_of_a_token_is_no_change_of_it(api: Api, harness: Harness) -> None:
    made = api.request("POST", "/teams/acme/tokens", json={"name": "ci"})

    async def use(records: Repositories) -> None:
        token = await records.tokens.get(made.json()["id"])
        assert token is not None
        await records.tokens.replace(replace(token, last_used_at=harness.clock.now))

    harness.write(use)
    seen = api.request("GET", f"/teams/acme/tokens/{made.json()['id']}")
    assert seen.json()["last_used_at"] is not None
    assert seen.headers["ETag"] == made.headers["ETag"]


def test_verified_and_successor_have_a_version_as_well(api: Api, harness: Harness) -> None:
    domain = api.make("/teams/acme/domains", {"domain": "example.com"})
    harness.proofs.proven.add(("example.com", api.get("/teams/acme")["id"]))
    verified = api.request("POST", f"/teams/acme/domains/{domain['id']}/verify")
    assert verified.headers["ETag"] == api.request("GET", f"/teams/acme/domains/{domain['id']}").headers["ETag"]
    token = api.make("/teams/acme/tokens", {"name": "ci"})
    successor = api.request("POST", f"/teams/acme/tokens/{token['id']}/rotate")
    shown = api.request("GET", f"/teams/acme/tokens/{successor.json()['id']}")
    assert successor.headers["ETag"] == shown.headers["ETag"]
