"""What a team can see of the calls of others: not whether the cache, or a call under way, had the answer."""

from __future__ import annotations

import pytest
from tests.gateway.callers import OTHER_TEAM, TOKEN, call, digest, sent, token_grant
from tests.gateway.calls import recorded
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fakes import FakeTransport, run_pending
from tests.gateway.raw_http import Answers, hello

from tollgate.core import secrets
from tollgate.core.models import Team
from tollgate.gateway.call.cache import Kept
from tollgate.shm import metrics
from tollgate.shm.upstream_status import State

OTHER_TOKEN = secrets.new_token()
MISS, HIT = ("miss", "up0"), ("hit", None)
Seen = tuple[str, str | None]


@pytest.fixture(params=[True, False], ids=["fast path", "slow path"])
async def gateway(request: pytest.FixtureRequest) -> FakeGateway:
    gateway = await open_gateway({}, cache_bytes=1_000_000, fast_path=request.param)
    gateway.store.tokens[digest(TOKEN)] = token_grant(show_upstream=True)
    gateway.store.tokens[digest(OTHER_TOKEN)] = token_grant(OTHER_TEAM, show_upstream=True)
    for status in gateway.statuses:
        status.publish(State.UP, 100)
    gateway.status.publish(100, 50, changed=True)
    return gateway


def seen(transport: FakeTransport) -> list[Seen]:
    return [
        (
            headers[b"x-tollgate-cache"].decode(),
            headers[b"x-tollgate-upstream"].decode() if b"x-tollgate-upstream" in headers else None,
        )
        for _, headers, _ in Answers(transport.take()).read
    ]


async def shown(gateway: FakeGateway, body: object, token: str, times: int = 2) -> list[Seen]:
    """What a team is shown of calls that it makes one after the other, after one that opens a connection."""
    transport = gateway.connect(hello)
    transport.deliver(sent(call(0, "foo_bar"), token=token))
    await run_pending(100)
    transport.take()
    for _ in range(times):
        transport.deliver(sent(body, token=token))
        await run_pending(100)
    return seen(transport)


def counted(gateway: FakeGateway, *results: str) -> list[int]:
    return [gateway.counted(metrics.CACHE, "eth", "mainnet", result) for result in results]


async def test_first_answer_that_a_team_gets_is_a_miss_though_another_has_had_it(gateway: FakeGateway) -> None:
    body = call(1)
    assert await shown(gateway, body, TOKEN) == [MISS, HIT]
    assert await shown(gateway, body, OTHER_TOKEN) == [MISS, HIT]
    assert await shown(gateway, body, TOKEN) == [HIT, HIT]
    assert len([each for each in gateway.nodes[0].requests if each["method"] == "eth_chainId"]) == 1
    assert counted(gateway, "miss", "hit") == [1, 5], "metrics are the operator's"


async def test_batch_does_not_show_what_others_requested(gateway: FakeGateway) -> None:
    await shown(gateway, call(1), TOKEN, 1)
    await shown(gateway, call(1, "eth_gasPrice"), TOKEN, 1)
    batch = [call(1), call(2, "eth_gasPrice")]
    assert await shown(gateway, batch, OTHER_TOKEN) == [MISS, HIT]
    assert await shown(gateway, [call(1), call(2, "eth_coinbase"), call(3, "web3_clientVersion")], TOKEN, 1) == [
        ("bypass, hit", "up0")
    ]


@pytest.mark.parametrize("body", [call(1), [call(1), call(2, "eth_gasPrice")]], ids=["call", "batch"])
async def test_records_show_what_headers_show(gateway: FakeGateway, body: object) -> None:
    for each in (call(1), call(1, "eth_gasPrice")):
        await shown(gateway, each, TOKEN, 1)
    gateway.sink.written.clear()
    entries = await recorded(gateway, *[sent(body, token=OTHER_TOKEN)] * 2)
    ways = [
        (way.upstream, way.attempts, way.cache)
        for each in entries
        for way in (each.calls if isinstance(body, list) else [each])
    ]
    assert ways == [("up0", 1, "miss")] * (len(ways) // 2) + [("", 0, "hit")] * (len(ways) // 2)


@pytest.mark.parametrize(
    ("method", "own"), [("eth_chainId", "miss"), ("eth_coinbase", "bypass")], ids=["cached", "not cached"]
)
async def test_call_that_waits_for_another_teams_is_shown_as_its_own(
    gateway: FakeGateway, method: str, own: str
) -> None:
    callers = [(gateway.connect(hello), token) for token in (TOKEN, OTHER_TOKEN, OTHER_TOKEN)]
    for transport, token in callers:
        transport.deliver(sent(call(0, "foo_bar"), token=token))
    await run_pending(100)
    for transport, token in callers:
        transport.take()
        transport.deliver(sent(call(1, method), token=token))
    await run_pending(300)
    assert len([each for each in gateway.nodes[0].requests if each["method"] == method]) == 1
    assert [seen(transport) for transport, _ in callers] == [[(own, "up0")], [(own, "up0")], [("coalesced", None)]]
    assert counted(gateway, own, "coalesced")[1] == 2


async def test_answer_of_another_node_is_shown_with_an_upstream_of_this_one(gateway: FakeGateway) -> None:
    assert await shown(gateway, call(1), TOKEN, 1) == [MISS]
    assert gateway.resolver.cache is not None
    (kept,) = gateway.resolver.cache.entries.values()
    kept.teams, kept.upstream = (), ""
    assert await shown(gateway, call(1), OTHER_TOKEN) == [MISS, HIT]


async def test_teams_that_an_answer_remembers_take_room_in_the_cache(gateway: FakeGateway) -> None:
    await shown(gateway, call(1), TOKEN, 1)
    cache = gateway.resolver.cache
    assert cache is not None
    before = cache.used
    for number in range(3):
        gateway.store.tokens[digest(OTHER_TOKEN)] = token_grant(Team(f"more_{number}", "more"))
        gateway.directory.tokens.clear()
        gateway.context.renew()
        await recorded(gateway, sent(call(1), token=OTHER_TOKEN))
    assert cache.used > before
    (entry,) = cache.entries.values()
    assert isinstance(entry, Kept)
    assert entry.teams == {"team_1", "more_0", "more_1", "more_2"}
    assert cache.used == entry.size
    cache.resize(before, before)
    assert not cache.entries
    assert cache.used == 0
