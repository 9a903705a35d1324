"""Each setting of a token, as its calls feel it: when it is set, and when it is taken back."""

import json
from typing import Any

import pytest
from tests.gateway.callers import TOKEN, call, digest, reason, request, token_grant, with_token
from tests.gateway.calls import answer, identify
from tests.gateway.fake_gateway import FakeGateway

from tollgate.core.models import Grant, Team
from tollgate.errors import Refusal
from tollgate.gateway.messages import Request
from tollgate.store.base import Changes

NOW = 1_700_000_000.0
BODY = json.dumps(call(1)).encode()
BATCH = json.dumps([call(1), call(2)]).encode()


def in_path() -> Request:
    incoming = request(BODY)
    incoming.path_token = TOKEN.encode()
    return incoming


async def change(gateway: FakeGateway, grant: Grant | None) -> None:
    """Change the token in the store, and notify the worker."""
    gateway.store.tokens.pop(digest(TOKEN), None)
    if grant is not None:
        gateway.store.tokens[digest(TOKEN)] = grant
    gateway.store.news.append(Changes(2, tokens=(digest(TOKEN),)))
    await gateway.directory.refresh()


async def outcome_of(gateway: FakeGateway, incoming: Request) -> tuple[int, str]:
    """The status, and why it was refused."""
    got = await answer(gateway, incoming)
    body = json.loads(got.body)
    return got.status, "" if got.status == 200 else reason(body)


@pytest.mark.parametrize(
    ("grant", "status", "slug"),
    [
        (None, 401, "token_invalid"),
        (token_grant(expires_at=NOW), 401, "token_expired"),
        (token_grant(capped_until=NOW + 60), 402, "spending_cap"),
        (token_grant(Team("team_1", "acme", capped_until=NOW + 60)), 402, "spending_cap"),
        (token_grant(networks=("eth/sepolia", "starknet/mainnet")), 403, "network_not_allowed"),
        (token_grant(methods=("eth_call", "net_*")), 403, "method_not_allowed"),
    ],
    ids=["deleted or disabled", "expiry", "cap", "cap of its team", "networks", "methods"],
)
async def test_setting_stops_a_token_in_use_until_it_is_taken_back(
    grant: Grant | None, status: int, slug: str, gateway: FakeGateway
) -> None:
    assert await outcome_of(gateway, with_token(BODY)) == (200, "")
    await change(gateway, grant)
    for _ in range(2):
        assert await outcome_of(gateway, with_token(BODY)) == (status, slug)
    await change(gateway, token_grant())
    assert await outcome_of(gateway, with_token(BODY)) == (200, "")


@pytest.mark.parametrize(
    "fields",
    [
        {"expires_at": NOW + 60},
        {"capped_until": NOW},
        {"networks": ("starknet/mainnet", "eth/mainnet")},
        {"methods": ("net_*", "eth_chain*")},
        {"requests_per_second": 4},
        {"monthly_requests": 1},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_setting_that_fits_lets_calls_through(fields: dict[str, Any], gateway: FakeGateway) -> None:
    """The monthly cap itself is the store's to count: the gateway obeys `capped_until`."""
    gateway.store.tokens[digest(TOKEN)] = token_grant(**fields)
    for _ in range(2):
        assert await outcome_of(gateway, with_token(BODY)) == (200, "")
    got = await answer(gateway, with_token(BATCH))
    assert ["result" in each for each in json.loads(got.body)] == [True, True]


async def test_cap_ends_at_its_moment_without_a_word_from_the_store(gateway: FakeGateway) -> None:
    gateway.store.tokens[digest(TOKEN)] = token_grant(
        Team("team_1", "acme", capped_until=NOW + 30), capped_until=NOW + 60
    )
    for seconds, status in ((0, 402), (30, 402), (29, 402), (1, 200)):
        gateway.wall.advance(seconds)
        assert (await outcome_of(gateway, with_token(BODY)))[0] == status
    assert len(gateway.store.lookups) == 1


async def test_capped_batch_is_refused_whole(gateway: FakeGateway) -> None:
    gateway.store.tokens[digest(TOKEN)] = token_grant(capped_until=NOW + 60)
    assert await outcome_of(gateway, with_token(BATCH)) == (402, "spending_cap")
    assert gateway.loop.transports == []


async def test_networks_of_a_token_bind_every_call_of_a_batch(gateway: FakeGateway) -> None:
    gateway.store.tokens[digest(TOKEN)] = token_grant(networks=("eth/sepolia",))
    got = await answer(gateway, with_token(BATCH))
    assert [reason(each) for each in json.loads(got.body)] == ["network_not_allowed"] * 2
    assert gateway.loop.transports == []


async def test_requests_per_second_of_a_token(gateway: FakeGateway) -> None:
    gateway.store.tokens[digest(TOKEN)] = token_grant(requests_per_second=2)
    found = [await outcome_of(gateway, with_token(BODY)) for _ in range(3)]
    assert found == [(200, ""), (200, ""), (429, "rate_limited")]
    gateway.clock.advance(1)
    assert await outcome_of(gateway, with_token(BODY)) == (200, "")


async def test_token_in_the_address_only_while_it_is_allowed(gateway: FakeGateway) -> None:
    assert await outcome_of(gateway, in_path()) == (401, "token_invalid")
    await change(gateway, token_grant(allow_in_url=True))
    assert await outcome_of(gateway, in_path()) == (200, "")
    assert await outcome_of(gateway, with_token(BODY)) == (200, "")
    await change(gateway, token_grant())
    assert await outcome_of(gateway, in_path()) == (401, "token_invalid")


async def test_token_in_the_address_obeys_its_other_settings(gateway: FakeGateway) -> None:
    await change(gateway, token_grant(allow_in_url=True, expires_at=NOW + 60))
    assert await outcome_of(gateway, in_path()) == (200, "")
    gateway.wall.advance(60)
    assert await outcome_of(gateway, in_path()) == (401, "token_expired")
    await change(gateway, token_grant(allow_in_url=True, capped_until=gateway.wall() + 60))
    assert await outcome_of(gateway, in_path()) == (402, "spending_cap")


async def test_known_token_is_refused_from_elsewhere_too(gateway: FakeGateway) -> None:
    gateway.store.tokens[digest(TOKEN)] = token_grant(addresses=("192.0.2.0/24",))
    for _ in range(2):
        known = await identify(gateway, request(peer="192.0.2.1", authorization=f"Bearer {TOKEN}"))
        assert known.team_id == "team_1"
    elsewhere = request(peer="198.51.100.1", authorization=f"Bearer {TOKEN}")
    with pytest.raises(Refusal):
        gateway.credentials.recall(elsewhere)


@pytest.mark.parametrize(("contracts", "owner"), [((), "team_1"), (("0x1",), "tok_1")])
async def test_filters_of_a_token_for_some_contracts_are_its_own(contracts: tuple[str, ...], owner: str) -> None:
    gateway = FakeGateway()
    await change(gateway, token_grant(contracts=contracts))
    assert (await identify(gateway, with_token(BODY))).filters_of == owner
