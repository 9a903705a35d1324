"""API tokens: created, shown once, changed, deleted; each setting with its error."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace
from tests.control.services.harness import ACME, ALL, DAY, PEOPLE, Harness, details_of, moment

from tollgate.api.tokens import NewToken, Rotation, TokenChange
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import (
    ChangedMeanwhile,
    InvalidInput,
    LimitReached,
    NameTaken,
    NotFound,
)
from tollgate.control.service_context import PageRequest
from tollgate.control.services.tokens import LATEST
from tollgate.control.versions import version_of
from tollgate.core import secrets
from tollgate.core.models import Token


def make(harness: Harness, name: str = "ci", **wanted: Any) -> tuple[Token, str]:
    return harness.do(harness.plane.tokens.create(harness.actor("developer"), "acme", NewToken(name, **wanted)))


def change(harness: Harness, token: Token, if_match: str | None = None, **wanted: Any) -> Token:
    update = harness.plane.tokens.update(
        harness.actor("developer"), "acme", token.id, TokenChange(**wanted), if_match
    )
    return harness.do(update)


# --- Making --------------------------------------------------------------------------------------------


def test_token_is_made_with_a_secret_that_is_shown_once(harness: Harness, plane: ControlPlane) -> None:
    token, secret = make(harness, " ci ")
    assert secrets.well_formed(secret)
    assert token == Token(
        token.id, ACME.id, "ci", secret[:8], harness.clock.now, created_by=PEOPLE["developer"]
    )  # fmt: skip
    grant = harness.do(harness.store.token(plane.context.digest(secret)))
    assert grant is not None
    assert (grant.token, grant.team) == (token, ACME)
    assert harness.do(plane.tokens.show(harness.actor("viewer"), "acme", token.id)) == token
    [entry] = harness.notes()
    assert (entry.action, entry.team_id, entry.target, entry.name) == ("token.create", ACME.id, token.id, "ci")
    assert details_of(entry) == {"prefix": secret[:8]}


def test_token_is_made_with_all_its_settings(harness: Harness) -> None:
    chosen: dict[str, Any] = {
        "expires_at": moment(harness.clock.now + DAY),
        "networks": ["eth/sepolia", "eth/mainnet", "eth/sepolia"],
        "methods": ["eth_call", "eth_get*", "eth_call"],
        "requests_per_second": 5,
        "monthly_requests": 1_000,
        "allow_in_url": True,
        "show_upstream": True,
        "addresses": ("192.0.2.0/24",),
        "contracts": ("0xab",),
        "active": False,
    }
    token, _ = make(harness, **chosen)
    assert token.networks == ("eth/sepolia", "eth/mainnet")
    assert token.methods == ("eth_call", "eth_get*")
    assert token.expires_at == harness.clock.now + DAY
    for name in chosen.keys() - {"networks", "methods", "expires_at"}:
        assert getattr(token, name) == chosen[name]


def test_name_is_unique_in_its_team_alone(harness: Harness, plane: ControlPlane) -> None:
    make(harness)
    problem_taken = harness.refused(
        NameTaken, plane.tokens.create(harness.actor("developer"), "acme", NewToken("ci"))
    )
    assert problem_taken.detail == "The team has a token named 'ci' already: choose another name."
    harness.do(plane.tokens.create(harness.actor("outsider"), "rival", NewToken("ci")))
    results = harness.at_once(
        *(plane.tokens.create(harness.actor("owner"), "acme", NewToken("once")) for _ in range(4))
    )
    assert sum(isinstance(result, NameTaken) for result in results) == 3


def test_tokens_of_a_team_are_bounded(harness: Harness) -> None:
    plane = harness.choose(tokens_per_team=2)
    first, _ = make(harness, "one")
    make(harness, "two")
    problem = harness.refused(
        LimitReached, plane.tokens.create(harness.actor("developer"), "acme", NewToken("three"))
    )
    assert problem.extras == {"limit": 2}
    harness.refused(LimitReached, plane.tokens.rotate(harness.actor("developer"), "acme", first.id, Rotation(60)))
    assert harness.do(plane.tokens.show(harness.actor("viewer"), "acme", first.id)) == first
    harness.do(plane.tokens.delete(harness.actor("developer"), "acme", first.id))
    make(harness, "three")


# --- Settings ------------------------------------------------------------------------------------------

BAD: list[tuple[str, Any, str]] = [
    ("name", "", "`name` is a text of 1 to 100 characters."),
    ("name", "x" * 101, "`name` is a text of 1 to 100 characters."),
    ("name", "a\nb", "`name` has 1 to 100 printable characters."),
    ("networks", ["eth/holesky"], "'eth/holesky' is not served here. Served: eth/mainnet, eth/sepolia."),
    ("networks", ["eth"], "'eth' is not served here."),
    ("networks", ["eth/mainnet", ""], "'' is not served here."),
    ("networks", ["x" * 1_000], "is not served here."),
    ("methods", [""], "'' is not a method: write one such as eth_call, or a pattern like eth_get*."),
    ("methods", ["eth call"], "'eth call' is not a method"),
    ("methods", ["eth_**"], "'eth_**' is not a method"),
    ("methods", ["x" * 65], "is not a method"),
    ("methods", ["ä_call"], "'ä_call' is not a method"),
    ("methods", ["admin_peers"], "Methods such as admin_peers are refused on every network here"),
    ("methods", ["ENGINE_*"], "Methods such as ENGINE_* are refused on every network here"),
    ("methods", ["Personal_sign"], "the operator can open them"),
    ("methods", ["eth_call", "miner_start"], "`open_methods`"),
    ("methods", [f"eth_{n}" for n in range(101)], "`methods` is a list of 0 to 100."),
    ("addresses", ["192.0.2.300"], "`addresses` holds IP addresses or networks"),
    ("addresses", ["example.com"], "such as 192.0.2.7 or 2001:db8::/32"),
    ("addresses", [""], "`addresses` holds"),
    ("addresses", [f"10.0.0.{n}" for n in range(101)], "`addresses` is a list of 0 to 100."),
    ("contracts", ["ab"], "'ab' is not the address of a contract"),
    ("contracts", ["0x"], "is not the address of a contract"),
    ("contracts", ["0x" + "a" * 65], "is not the address of a contract"),
    ("contracts", [hex(n) for n in range(101)], "`contracts` is a list of 0 to 100."),
    ("expires_at", moment(0.0), "`expires_at` must lie in the future"),
    ("expires_at", moment(LATEST + 1), "but not beyond the year 9998"),
    ("expires_at", datetime(2027, 1, 1), "`expires_at` is a time with its offset"),  # noqa: DTZ001 - that it has none
    ("requests_per_second", 0, "`requests_per_second` is a whole number from 1 to 1000000, or null."),
    ("requests_per_second", -5, "from 1 to 1000000"),
    ("requests_per_second", 1_000_001, "from 1 to 1000000"),
    ("monthly_requests", 0, "`monthly_requests` is a whole number from 1 to 1000000000000, or null."),
    ("monthly_requests", 10**12 + 1, "from 1 to"),
]


@pytest.mark.parametrize(("field", "value", "message"), BAD)
def test_bad_settings_are_refused_with_what_is_accepted(
    harness: Harness, plane: ControlPlane, field: str, value: Any, message: str
) -> None:
    token, _ = make(harness)
    chosen = {"name": "other", field: value}
    for deed in (
        plane.tokens.create(harness.actor("developer"), "acme", NewToken(**chosen)),
        plane.tokens.update(harness.actor("developer"), "acme", token.id, TokenChange(**{field: value})),
    ):
        problem = harness.refused(InvalidInput, deed)
        assert message in problem.detail
        assert problem.extras == {"field": field}
        assert len(problem.detail) < 300
    assert harness.do(plane.tokens.list(harness.actor("viewer"), "acme", ALL)).items == [token]
    assert len(harness.notes()) == 1


def test_expiry_lies_in_the_future_by_the_clock(harness: Harness) -> None:
    token, _ = make(harness)
    with pytest.raises(InvalidInput):
        change(harness, token, expires_at=moment(harness.clock.now))
    soon = moment(harness.clock.now + 0.001)
    assert change(harness, token, expires_at=soon).expires_at == soon.timestamp()
    end_of_days = datetime(9998, 12, 31, tzinfo=UTC)
    assert change(harness, token, expires_at=end_of_days).expires_at == end_of_days.timestamp()


@pytest.mark.parametrize(
    ("field", "value"),
    [("requests_per_second", 1), ("requests_per_second", 1_000_000), ("monthly_requests", 10**12),
     ("methods", ["*"]), ("methods", ["a*"]), ("methods", [f"eth_{n}" for n in range(100)]), ("networks", [])],
)  # fmt: skip
def test_bounds_themselves_are_accepted(harness: Harness, field: str, value: Any) -> None:
    token, _ = make(harness, **{field: value})
    assert getattr(token, field) == (tuple(value) if isinstance(value, list) else value)


# --- Changing ------------------------------------------------------------------------------------------


def test_change_sets_only_given_members_and_records_the_differences(harness: Harness, plane: ControlPlane) -> None:
    token, secret = make(harness, networks=["eth/mainnet"], requests_per_second=5)
    changed = change(
        harness, token, name="deploy", methods=["eth_call"], requests_per_second=5, show_upstream=True
    )
    assert (changed.name, changed.methods, changed.networks, changed.requests_per_second) == (
        "deploy", ("eth_call",), ("eth/mainnet",), 5
    )  # fmt: skip
    entry = harness.notes()[-1]
    assert (entry.action, entry.name) == ("token.update", "deploy")
    assert details_of(entry) == {
        "before": {"name": "ci", "methods": [], "show_upstream": False},
        "after": {"name": "deploy", "methods": ["eth_call"], "show_upstream": True},
    }
    grant = harness.do(harness.store.token(plane.context.digest(secret)))
    assert grant is not None
    assert grant.token == changed


def test_null_takes_a_limit_away(harness: Harness) -> None:
    token, _ = make(harness, expires_at=moment(harness.clock.now + DAY), requests_per_second=5, monthly_requests=5)
    changed = change(harness, token, expires_at=None, requests_per_second=None, monthly_requests=None)
    assert (changed.expires_at, changed.requests_per_second, changed.monthly_requests) == (None, None, None)


def test_disabled_token_has_no_grant_until_it_is_enabled(harness: Harness, plane: ControlPlane) -> None:
    token, secret = make(harness)
    digest = plane.context.digest(secret)
    assert not change(harness, token, active=False).active
    assert harness.do(harness.store.token(digest)) is None
    assert change(harness, token, active=True).active
    assert harness.do(harness.store.token(digest)) is not None


def test_change_to_a_name_that_is_taken_changes_nothing(harness: Harness, plane: ControlPlane) -> None:
    token, _ = make(harness)
    make(harness, "taken")
    with pytest.raises(NameTaken):
        change(harness, token, name="taken", active=False)
    assert harness.do(plane.tokens.show(harness.actor("viewer"), "acme", token.id)) == token


def test_version_is_honoured_by_update_and_delete(harness: Harness, plane: ControlPlane) -> None:
    token, _ = make(harness)
    seen = version_of(token)
    changed = change(harness, token, seen, active=False)
    for deed in (
        plane.tokens.update(harness.actor("developer"), "acme", token.id, TokenChange(active=True), seen),
        plane.tokens.delete(harness.actor("developer"), "acme", token.id, seen),
    ):
        harness.refused(ChangedMeanwhile, deed)
    harness.do(plane.tokens.delete(harness.actor("developer"), "acme", token.id, version_of(changed)))


def test_use_of_a_token_is_no_change_of_its_version(harness: Harness, plane: ControlPlane) -> None:
    token, _ = make(harness, monthly_requests=1)
    used = replace(token, last_used_at=harness.clock.now, capped_until=harness.clock.now + 60)
    harness.write(lambda records: records.tokens.replace(used))
    assert harness.do(plane.tokens.show(harness.actor("viewer"), "acme", token.id)) == used
    change(harness, token, version_of(token), active=False)


def test_deleted_token_is_gone(harness: Harness, plane: ControlPlane) -> None:
    token, secret = make(harness)
    harness.do(plane.tokens.delete(harness.actor("developer"), "acme", token.id))
    assert harness.do(harness.store.token(plane.context.digest(secret))) is None
    problem = harness.refused(NotFound, plane.tokens.delete(harness.actor("developer"), "acme", token.id))
    assert problem.detail == (
        f"The team acme has no token {token.id}: list them with `tollgate rpc tokens list --team acme`."
    )
    assert harness.actions() == ["token.create", "token.delete"]


def test_tokens_are_listed_page_by_page(harness: Harness, plane: ControlPlane) -> None:
    names = [f"n{number}" for number in range(5)]
    for name in names:
        harness.clock.advance(1)
        make(harness, name)
    viewer = harness.actor("viewer")
    found: list[str] = []
    after: str | None = None
    for size in (2, 2, 1):
        page = harness.do(plane.tokens.list(viewer, "acme", PageRequest(2, after)))
        assert len(page.items) == size
        found += [token.name for token in page.items]
        after = page.next
    assert (found, after) == (names, None)
