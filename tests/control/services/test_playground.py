"""The token of an account's own calls: one, hidden, and the same while it works."""

from __future__ import annotations

from tests.control.metering import Metering
from tests.control.services.harness import ACME, Harness, member_id

from tollgate.api.members import RoleChange
from tollgate.api.tokens import NewToken
from tollgate.api.usage import By, UsageQuery
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import NotFound
from tollgate.control.service_context import PageRequest
from tollgate.control.services.tokens import PLAYGROUND_SECONDS
from tollgate.core.models import Token
from tollgate.settings.model import AccountSettings, Settings

ALL = PageRequest(100)


def play(harness: Harness, who: str = "developer") -> tuple[Token, str]:
    return harness.do(harness.plane.tokens.playground(harness.actor(who), "acme"))


def works(harness: Harness, secret: str) -> bool:
    grant = harness.do(harness.store.token(harness.plane.context.digest(secret)))
    return grant is not None and grant.token is not None and (grant.token.expires_at or 0) > harness.clock.now


def test_calls_of_an_account_share_one_token_and_one_entry_of_the_audit_log(harness: Harness) -> None:
    first, secret = play(harness)
    for _ in range(5):
        harness.clock.advance(PLAYGROUND_SECONDS / 2 - 1)
        again, same = play(harness)
        assert (again.id, same, works(harness, same)) == (first.id, secret, True)
    assert (first.name, first.show_upstream) == ("playground", True)
    assert harness.actions() == ["playground.create"]


def test_unused_one_expires_and_comes_back_with_another_secret(harness: Harness) -> None:
    first, secret = play(harness)
    harness.clock.advance(PLAYGROUND_SECONDS)
    again, other = play(harness)
    assert (again.id, other != secret) == (first.id, True)
    assert (works(harness, secret), works(harness, other)) == (False, True)


def test_two_members_have_one_each_and_a_token_may_have_the_same_name(harness: Harness) -> None:
    ids = {play(harness, who)[0].id for who in ("owner", "developer")}
    named = harness.do(harness.plane.tokens.create(harness.actor("owner"), "acme", NewToken("playground")))[0]
    assert len({*ids, named.id}) == 3


def test_it_is_in_no_list_counts_for_no_limit_and_cannot_be_changed(harness: Harness) -> None:
    plane = harness.another(Settings(accounts=AccountSettings(tokens_per_team=1)))
    owner = harness.actor("owner")
    token = harness.do(plane.tokens.playground(owner, "acme"))[0]
    assert harness.do(plane.tokens.list(owner, "acme", ALL)).items == []
    harness.refused(NotFound, plane.tokens.show(owner, "acme", token.id))
    harness.refused(NotFound, plane.tokens.delete(owner, "acme", token.id))
    harness.do(plane.tokens.create(owner, "acme", NewToken("ci")))


def test_usage_shows_it_as_playground(metering: Metering) -> None:
    token = play(metering)[0]
    metering.call(3, source=token.id)
    usage = metering.do(metering.plane.usage.of_team(metering.actor("owner"), "acme", UsageQuery(by=By.TOKEN)))
    assert [(item.name, item.requests) for item in usage.items] == [("playground", 3)]
    of_it = metering.do(
        metering.plane.usage.of_team(metering.actor("owner"), "acme", UsageQuery(token="playground"))
    )
    assert of_it.requests == 3


def test_it_ends_with_the_role_the_membership_and_the_account(harness: Harness, plane: ControlPlane) -> None:
    owner = harness.actor("owner")
    secrets = {who: play(harness, who)[1] for who in ("admin", "developer")}
    harness.do(plane.teams.set_role(owner, "acme", member_id("admin"), RoleChange("viewer")))
    assert not works(harness, secrets["admin"])
    harness.do(plane.teams.remove(owner, "acme", member_id("developer")))
    assert not works(harness, secrets["developer"])
    harness.joins("loner", "developer")
    last = play(harness, "loner")[1]
    harness.do(plane.accounts.delete(harness.actor("loner")))
    assert not works(harness, last)
    assert harness.write(lambda records: records.tokens.count(team_id=ACME.id)) == 0
