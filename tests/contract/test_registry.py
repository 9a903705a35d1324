"""What every backend owes whoever changes teams, tokens and domains."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace

from tollgate.core.models import Domain, Team, Token
from tollgate.store.base import Conflict, Directory, Registry, StoreUnavailable

TEAM = Team("team_1", "acme", requests_per_second=50, capped_until=5.5)
OTHER = Team("team_2", "other")
TOKEN = Token(
    "tok_1",
    "team_1",
    "ci",
    "tg_abcde",
    1_000.25,
    created_by="ann@example.com",
    last_used_at=2_000.0,
    expires_at=3_000.0,
    networks=("eth/mainnet", "starknet/sepolia"),
    methods=("eth_*", 'odd"\\é'),
    requests_per_second=7,
    monthly_requests=1_000_000,
    capped_until=4_000.0,
    allow_in_url=True,
)
DOMAIN = Domain(
    "dom_1",
    "team_1",
    "example.com",
    1_000.25,
    created_by="ann@example.com",
    verified_at=2_000.0,
    address_per_minute=60,
    domain_per_minute=600,
)


@pytest.fixture(autouse=True)
def teams(request: pytest.FixtureRequest, loop: asyncio.Runner) -> None:
    if "registry" in request.fixturenames:
        registry: Registry = request.getfixturevalue("registry")
        loop.run(registry.add_team(TEAM))
        loop.run(registry.add_team(OTHER))


# --- Teams -------------------------------------------------------------------------------------------------


def test_team_is_found_by_name_as_it_was_added(registry: Registry, loop: asyncio.Runner) -> None:
    assert loop.run(registry.team("acme")) == TEAM
    assert loop.run(registry.team("other")) == OTHER
    assert loop.run(registry.team("nobody")) is None


def test_name_of_a_team_is_given_once(registry: Registry, loop: asyncio.Runner) -> None:
    with pytest.raises(Conflict, match="acme"):
        loop.run(registry.add_team(Team("team_3", "acme")))
    assert loop.run(registry.team("acme")) == TEAM


def test_team_is_replaced_as_a_whole(registry: Registry, loop: asyncio.Runner) -> None:
    changed = Team("team_1", "acme-2", requests_per_second=None, capped_until=9.0)
    assert loop.run(registry.update_team(changed))
    assert loop.run(registry.team("acme-2")) == changed
    assert loop.run(registry.team("acme")) is None
    assert loop.run(registry.team("other")) == OTHER


def test_team_cannot_be_renamed_to_a_name_that_is_taken(registry: Registry, loop: asyncio.Runner) -> None:
    with pytest.raises(Conflict):
        loop.run(registry.update_team(replace(TEAM, name="other")))
    assert loop.run(registry.team("acme")) == TEAM


# --- Tokens ------------------------------------------------------------------------------------------------


def test_token_keeps_every_field(registry: Registry, loop: asyncio.Runner) -> None:
    loop.run(registry.add_token(TOKEN, b"1" * 32))
    assert loop.run(registry.tokens("team_1")) == [TOKEN]
    assert loop.run(registry.tokens("team_2")) == []


def test_plain_token_has_no_limits_of_its_own(registry: Registry, loop: asyncio.Runner) -> None:
    plain = Token("tok_2", "team_1", "plain", "tg_abcde", 1.0)
    loop.run(registry.add_token(plain, b"1" * 32))
    assert loop.run(registry.tokens("team_1")) == [plain]


def test_tokens_are_listed_oldest_first(registry: Registry, loop: asyncio.Runner) -> None:
    for number, created_at in enumerate([30.0, 10.0, 20.0]):
        token = replace(TOKEN, id=f"tok_{number}", name=f"name {number}", created_at=created_at)
        loop.run(registry.add_token(token, bytes([number]) * 32))
    assert [token.created_at for token in loop.run(registry.tokens("team_1"))] == [10.0, 20.0, 30.0]


def test_name_of_a_token_is_given_once_in_a_team(registry: Registry, loop: asyncio.Runner) -> None:
    loop.run(registry.add_token(TOKEN, b"1" * 32))
    with pytest.raises(Conflict, match="ci"):
        loop.run(registry.add_token(replace(TOKEN, id="tok_2"), b"2" * 32))
    loop.run(registry.add_token(replace(TOKEN, id="tok_2", team_id="team_2"), b"2" * 32))
    assert len(loop.run(registry.tokens("team_2"))) == 1


def test_token_is_replaced_but_for_its_creation_and_digest(
    registry: Registry, directory: Directory, loop: asyncio.Runner
) -> None:
    loop.run(registry.add_token(TOKEN, b"1" * 32))
    changed = Token("tok_1", "team_1", "renamed", "tg_zzzzz", 7.0, created_by="eve", methods=("a",))
    assert loop.run(registry.update_token(changed))
    kept = replace(changed, created_at=TOKEN.created_at, created_by=TOKEN.created_by)
    assert loop.run(registry.tokens("team_1")) == [kept]
    grant = loop.run(directory.token(b"1" * 32))
    assert grant is not None
    assert grant.token == kept


def test_token_cannot_be_renamed_to_a_name_that_is_taken(registry: Registry, loop: asyncio.Runner) -> None:
    loop.run(registry.add_token(TOKEN, b"1" * 32))
    second = replace(TOKEN, id="tok_2", name="second")
    loop.run(registry.add_token(second, b"2" * 32))
    with pytest.raises(Conflict):
        loop.run(registry.update_token(replace(second, name="ci")))
    assert [token.name for token in loop.run(registry.tokens("team_1"))] == ["ci", "second"]


def test_deleted_token_frees_its_name(registry: Registry, loop: asyncio.Runner) -> None:
    loop.run(registry.add_token(TOKEN, b"1" * 32))
    assert loop.run(registry.delete_token("tok_1"))
    assert loop.run(registry.tokens("team_1")) == []
    loop.run(registry.add_token(replace(TOKEN, id="tok_2"), b"2" * 32))


# --- Domains -----------------------------------------------------------------------------------------------


def test_domain_keeps_every_field(registry: Registry, loop: asyncio.Runner) -> None:
    loop.run(registry.add_domain(DOMAIN))
    assert loop.run(registry.domains("team_1")) == [DOMAIN]
    assert loop.run(registry.domains("team_2")) == []


def test_domains_are_listed_oldest_first(registry: Registry, loop: asyncio.Runner) -> None:
    for number, created_at in enumerate([30.0, 10.0, 20.0]):
        domain = replace(DOMAIN, id=f"dom_{number}", domain=f"{number}.org", created_at=created_at)
        loop.run(registry.add_domain(domain))
    assert [domain.created_at for domain in loop.run(registry.domains("team_1"))] == [10.0, 20.0, 30.0]


@pytest.mark.parametrize("active", [True, False])
def test_domain_belongs_to_one_team_even_while_it_is_disabled(
    active: bool, registry: Registry, loop: asyncio.Runner
) -> None:
    loop.run(registry.add_domain(replace(DOMAIN, active=active)))
    for team in ("team_1", "team_2"):
        with pytest.raises(Conflict, match=r"example\.com"):
            loop.run(registry.add_domain(replace(DOMAIN, id="dom_2", team_id=team)))


def test_two_teams_that_claim_a_domain_at_once_get_it_once(registry: Registry, loop: asyncio.Runner) -> None:
    async def race() -> list[object]:
        claims = [registry.add_domain(replace(DOMAIN, id=f"dom_{team[-1]}", team_id=team)) for team in TEAMS]
        return list(await asyncio.gather(*claims, return_exceptions=True))

    assert sorted(type(outcome).__name__ for outcome in loop.run(race())) == ["Conflict", "NoneType"]


TEAMS = ("team_1", "team_2")


def test_domain_entry_is_replaced_but_for_its_domain_and_creation(
    registry: Registry, loop: asyncio.Runner
) -> None:
    loop.run(registry.add_domain(DOMAIN))
    changed = Domain("dom_1", "team_1", "evil.com", 7.0, created_by="eve", active=False)
    assert loop.run(registry.update_domain(changed))
    kept = replace(changed, domain="example.com", created_at=DOMAIN.created_at, created_by=DOMAIN.created_by)
    assert loop.run(registry.domains("team_1")) == [kept]


def test_removed_domain_may_be_claimed_by_another_team(registry: Registry, loop: asyncio.Runner) -> None:
    loop.run(registry.add_domain(DOMAIN))
    assert loop.run(registry.delete_domain("dom_1"))
    loop.run(registry.add_domain(replace(DOMAIN, id="dom_2", team_id="team_2")))
    assert loop.run(registry.domains("team_1")) == []


# --- What is not there, and outages ------------------------------------------------------------------------


def test_what_is_not_there_is_neither_changed_nor_deleted(registry: Registry, loop: asyncio.Runner) -> None:
    assert not loop.run(registry.update_team(Team("nobody", "n")))
    assert not loop.run(registry.update_token(TOKEN))
    assert not loop.run(registry.update_domain(DOMAIN))
    assert not loop.run(registry.delete_token("tok_1"))
    assert not loop.run(registry.delete_domain("dom_1"))
    assert not loop.run(registry.delete_domain("example.com"))


@pytest.mark.parametrize(
    "ask",
    [
        lambda registry: registry.add_team(TEAM),
        lambda registry: registry.add_token(TOKEN, b"1" * 32),
        lambda registry: registry.add_domain(DOMAIN),
        lambda registry: registry.update_team(TEAM),
        lambda registry: registry.update_token(TOKEN),
        lambda registry: registry.update_domain(DOMAIN),
        lambda registry: registry.delete_token("tok_1"),
        lambda registry: registry.delete_domain("dom_1"),
        lambda registry: registry.team("acme"),
        lambda registry: registry.tokens("team_1"),
        lambda registry: registry.domains("team_1"),
    ],
)
def test_store_that_cannot_be_used_is_said_to_be_unavailable(
    ask: Callable[[Registry], Coroutine[Any, Any, object]], broken_registry: Registry, loop: asyncio.Runner
) -> None:
    with pytest.raises(StoreUnavailable):
        loop.run(ask(broken_registry))
