"""Calls of a team with a spending cap: taken before they are made, on the fast and the slow path, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.gateway.callers import TOKEN, call, digest, reason, sent, token_grant
from tests.gateway.calls import answers_to
from tests.gateway.fake_gateway import FakeGateway, open_gateway

from tollgate.core.models import Team
from tollgate.shm.allowances import Allowances

CAPPED = Team("team_1", "acme", spending_cap=1_000)


@pytest.fixture
def allowances(tmp_path: Path) -> Allowances:
    return Allowances(64, 1, tmp_path / "allowances.lock")


async def gateway_with(allowances: Allowances, team: Team = CAPPED, **options: Any) -> FakeGateway:
    gateway = await open_gateway(**options)
    gateway.store.tokens[digest(TOKEN)] = token_grant(team)
    gateway.limiter._allowances = allowances
    return gateway


def unrecorded(allowances: Allowances) -> int:
    return allowances.unrecorded(CAPPED.id)[1]


@pytest.mark.parametrize("fast_path", [True, False])
async def test_calls_pass_until_the_allowance_is_used_up(allowances: Allowances, fast_path: bool) -> None:
    gateway = await gateway_with(allowances, fast_path=fast_path)
    allowances.grant(CAPPED.id, 5)
    answers = await answers_to(gateway, *[sent(call(number)) for number in range(8)])
    assert [status for status, _ in answers] == [200] * 5 + [402] * 3
    assert reason(answers[-1][1]) == "spending_cap"
    assert unrecorded(allowances) == 5


@pytest.mark.parametrize("fast_path", [True, False])
async def test_batch_is_taken_whole(allowances: Allowances, fast_path: bool) -> None:
    gateway = await gateway_with(allowances, fast_path=fast_path)
    allowances.grant(CAPPED.id, 5)
    batch = sent([call(1), call(2), call(3)])
    assert [status for status, _ in await answers_to(gateway, batch, batch)] == [200, 402]
    assert unrecorded(allowances) == 3


async def test_calls_are_to_be_tried_again_while_what_is_left_is_shared_out(allowances: Allowances) -> None:
    gateway = await gateway_with(allowances)
    allowances.grant(CAPPED.id, 0, short=True)
    ((status, refused),) = await answers_to(gateway, sent(call(1)))
    assert (status, reason(refused)) == (429, "rate_limited")
    assert refused["error"]["data"]["retry_after"] == 1


async def test_call_that_no_upstream_answers_is_given_back(allowances: Allowances) -> None:
    gateway = await gateway_with(allowances)
    allowances.grant(CAPPED.id, 5)
    gateway.networks.all[gateway.network.path].exchange.change(gateway.network, [])
    ((status, refused),) = await answers_to(gateway, sent(call(1)))
    assert (status, reason(refused)) == (503, "upstream_unavailable")
    assert unrecorded(allowances) == 0


async def test_call_that_is_not_allowed_takes_nothing(allowances: Allowances) -> None:
    gateway = await gateway_with(allowances)
    allowances.grant(CAPPED.id, 5)
    answers = await answers_to(gateway, sent(call(1, "admin_peers")), sent([call(1, "admin_peers"), call(2)]))
    assert [status for status, _ in answers] == [403, 200]
    assert unrecorded(allowances) == 1


async def test_team_without_a_cap_has_no_allowance(allowances: Allowances) -> None:
    gateway = await gateway_with(allowances, Team("team_1", "acme"))
    allowances.grant(CAPPED.id, 0)
    assert [status for status, _ in await answers_to(gateway, sent(call(1)))] == [200]
