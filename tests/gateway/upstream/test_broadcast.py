"""Transactions: where they go, what their senders are shown, and that none is lost or answered twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.callers import raw, summary
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fake_node import BROKEN, DROP, KNOWN, LAGGING, NONCE, QUOTA, Error, Http
from tests.gateway.fakes import run_pending
from tests.gateway.transactions import (
    DOUBT,
    DUPLICATE,
    FUNDS,
    HASH,
    OTHER_HASH,
    OTHER_RAW,
    RAW,
    SEND,
    looks,
    plays,
    sends,
    sent,
)

from tollgate.core.shapes import PlainCall
from tollgate.errors import Refusal, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from tollgate.gateway.upstream.broadcast import SIGNED, transaction_hash
from tollgate.gateway.upstream.failover import AGAIN_SECONDS

# --- Hashes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ([RAW], HASH),
        ([OTHER_RAW], OTHER_HASH),
        (["0X" + RAW[2:]], HASH),
        ([RAW, "more"], HASH),
        ([RAW[2:]], ""),
        (["0x03" + RAW[2:]], ""),
        (["0x"], ""),
        (["0xzz"], ""),
        (["0x123"], ""),
        ([17], ""),
        ([None], ""),
        ([], ""),
        ({"raw": RAW}, ""),
    ],
)
def test_hash_is_that_of_the_signed_bytes_or_not_reported(params: Any, found: str) -> None:
    assert transaction_hash(PlainCall("2.0", 1, SEND, raw(params))) == found


@pytest.mark.parametrize("method", sorted(SIGNED - {SEND}))
def test_hash_of_another_family_is_not_reported(method: str) -> None:
    assert transaction_hash(PlainCall("2.0", 1, method, raw([RAW]))) == ""


# --- One upstream at a time --------------------------------------------------------------------------------


async def test_transaction_goes_to_one_upstream_and_its_answer_is_passed_on(gateway: FakeGateway) -> None:
    plays(gateway, "hash by node", "?")
    assert await sent(gateway) == "hash by node"
    assert (sends(gateway), looks(gateway)) == ([1, 0], 0)
    assert (gateway.trace.upstream, gateway.trace.attempts, gateway.trace.cache) == ("up0", 1, "bypass")


@pytest.mark.parametrize("answer", [NONCE, FUNDS, KNOWN, Error(-32602, "invalid params"), Error(3, "reverted")])
async def test_first_answer_that_is_an_error_is_passed_on_as_it_is(answer: Error, gateway: FakeGateway) -> None:
    plays(gateway, answer, "?", found={"hash": HASH})
    assert await sent(gateway) == answer
    assert (sends(gateway), looks(gateway)) == ([1, 0], 0)


@pytest.mark.parametrize("failure", [DROP, Http(502), Http(429), QUOTA, LAGGING, BROKEN])
async def test_where_an_upstream_did_not_take_it_or_leaves_us_in_doubt_the_next_is_sent_it(
    failure: Any, gateway: FakeGateway
) -> None:
    plays(gateway, failure, "hash by node")
    assert await sent(gateway) == "hash by node"
    assert sends(gateway) == [1, 1]
    assert (gateway.trace.upstream, gateway.trace.attempts) == ("up1", 2)


async def test_outcome_is_not_in_doubt_if_no_upstream_was_reached(gateway: FakeGateway) -> None:
    gateway.loop.refusing = True
    refusal = await sent(gateway, 1.0)
    assert isinstance(refusal, UpstreamUnavailable)
    assert DOUBT not in refusal.message


async def test_those_that_cannot_be_reached_are_tried_again_after_a_pause(gateway: FakeGateway) -> None:
    gateway.loop.refusing = True
    pending = gateway.send(SEND, RAW)
    await run_pending(40)
    tried = [len(gateway.loop.connects)]
    for seconds in (AGAIN_SECONDS - 0.001, 0.001):
        await gateway.advance(seconds)
        tried.append(len(gateway.loop.connects))
    assert tried == [2, 2, 4]
    await gateway.advance(10.0)
    with pytest.raises(UpstreamUnavailable):
        await pending


async def test_timeout_leaves_us_in_doubt_and_the_next_is_sent_it() -> None:
    gateway = await open_gateway({"timeout_seconds": 3.0}, {})
    plays(gateway, "late", KNOWN)
    gateway.nodes[0].holds = True
    assert await sent(gateway, 4.0) == HASH
    assert sends(gateway) == [1, 1]


# --- Already known -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [DROP, Http(500), BROKEN])
@pytest.mark.parametrize(
    "words", [KNOWN, Error(-32000, "Known transaction: 33469b"), Error(-32010, "ALREADY_EXISTS: already known")]
)
async def test_already_known_after_an_attempt_of_ours_is_a_success_with_the_right_hash(
    failure: Any, words: Error, gateway: FakeGateway
) -> None:
    plays(gateway, failure, words)
    assert await sent(gateway) == HASH
    assert (sends(gateway), looks(gateway), gateway.trace.upstream) == ([1, 1], 0, "up1")


@pytest.mark.parametrize("failure", [QUOTA, Http(429), LAGGING])
async def test_already_known_is_not_ours_where_the_first_has_surely_not_taken_it(
    failure: Any, gateway: FakeGateway
) -> None:
    plays(gateway, failure, KNOWN)
    assert await sent(gateway) == KNOWN


async def test_already_known_is_not_ours_where_the_first_could_not_be_reached(gateway: FakeGateway) -> None:
    gateway.loop.refusing = True
    plays(gateway, "?", KNOWN)
    pending = gateway.send(SEND, RAW)
    await run_pending(4)
    gateway.loop.refusing = False
    assert summary(await pending) == KNOWN


async def test_where_we_do_not_know_the_hash_the_nodes_words_are_passed_on(gateway: FakeGateway) -> None:
    plays(gateway, DROP, KNOWN)
    assert await sent(gateway, params=("0x03" + RAW[2:],)) == KNOWN


@pytest.mark.parametrize("method", sorted(SIGNED - {SEND}))
async def test_duplicate_of_starknet_is_a_success_only_if_an_upstream_shows_the_hash(method: str) -> None:
    gateway = await open_gateway(family="starknet", network={"broadcast": 2})
    tx = {"type": "INVOKE"}
    gateway.nodes[0].always(DROP)
    gateway.nodes[1].always(DUPLICATE)
    assert await sent(gateway, 1.0, method, (tx,)) == DUPLICATE
    gateway.nodes[0].always({"transaction_hash": "0x1"})
    gateway.nodes[0].holds = gateway.nodes[1].holds = True
    pending = gateway.send(method, tx)
    await run_pending()
    gateway.nodes[1].release()
    await run_pending()
    assert not pending.done()
    gateway.nodes[0].release()
    assert summary(await pending) == {"transaction_hash": "0x1"}


# --- Doubt -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [NONCE, FUNDS])
@pytest.mark.parametrize("found", [{"hash": HASH}, None, BROKEN])
async def test_refusal_after_a_doubt_is_checked_against_the_chain(
    words: Error, found: Any, gateway: FakeGateway
) -> None:
    plays(gateway, DROP, words, found=found)
    replies = await sent(gateway, 1.0)
    assert replies == (HASH if isinstance(found, dict) else words)
    assert looks(gateway) >= 1
    assert all(params == [HASH] for node in gateway.nodes for method, params in node.calls if method != SEND)


async def test_refusal_without_a_doubt_is_not_checked(gateway: FakeGateway) -> None:
    plays(gateway, LAGGING, NONCE, found={"hash": HASH})
    assert await sent(gateway) == NONCE
    assert looks(gateway) == 0


async def test_where_all_break_off_the_refusal_shows_that_it_is_in_doubt(gateway: FakeGateway) -> None:
    plays(gateway, DROP, DROP)
    refusal = await sent(gateway, 1.0)
    assert isinstance(refusal, UpstreamError)
    assert DOUBT in refusal.message
    assert sends(gateway) == [2, 2]


async def test_where_all_break_off_but_the_chain_has_it_it_is_a_success(gateway: FakeGateway) -> None:
    plays(gateway, DROP, DROP, found={"hash": HASH})
    assert await sent(gateway, 1.0) == HASH
    assert looks(gateway) == 1


@pytest.mark.parametrize("fault", [BROKEN, LAGGING, QUOTA])
async def test_doubt_is_reported_also_if_another_upstream_failed_for_its_own_reasons(
    fault: Error, gateway: FakeGateway
) -> None:
    plays(gateway, DROP, fault)
    refusal = await sent(gateway, 1.0)
    assert isinstance(refusal, UpstreamError)
    assert DOUBT in refusal.message


async def test_errors_of_nodes_are_passed_on_but_not_an_exceeded_quota(gateway: FakeGateway) -> None:
    plays(gateway, LAGGING, QUOTA)
    assert await sent(gateway) == LAGGING
    await gateway.advance(6.0)
    plays(gateway, QUOTA, Http(429))
    refusal = await sent(gateway)
    assert isinstance(refusal, UpstreamUnavailable)
    assert DOUBT not in refusal.message


async def test_where_everybody_is_silent_it_ends_at_the_deadline_in_doubt(gateway: FakeGateway) -> None:
    for node in gateway.nodes:
        node.holds = True
    refusal = await sent(gateway, 31.0)
    assert isinstance(refusal, UpstreamTimeout)
    assert DOUBT in refusal.message
    assert sends(gateway) == [1, 1]


answers = st.sampled_from(["done", KNOWN, NONCE, FUNDS, BROKEN, LAGGING, QUOTA, DROP, Http(500), Http(429)])


@given(st.lists(answers, min_size=1, max_size=5), st.integers(1, 4), st.sampled_from([None, {"hash": HASH}]))
@settings(max_examples=3 * settings().max_examples // 2)
async def test_nothing_is_lost_whatever_upstreams_answer(replies: list[Any], broadcast: int, found: Any) -> None:
    """A success is reported as one; a transaction that may have been accepted is not reported as failed."""
    gateway = await open_gateway(*[{}] * len(replies), network={"broadcast": broadcast})
    plays(gateway, *replies, found=found)
    answer = await sent(gateway, 2.0)
    pending = [each for each, count in zip(replies, sends(gateway), strict=True) if count]
    maybe = any(each in (DROP, Http(500)) for each in pending)
    if "done" in pending:
        assert answer == "done"
    elif answer == HASH:
        assert maybe or BROKEN in pending
        assert KNOWN in pending or found
    elif isinstance(answer, Refusal):
        assert (DOUBT in answer.message) is maybe
    elif maybe:
        assert answer in (NONCE, FUNDS)
        assert not found
    else:
        assert answer in pending
    assert max(sends(gateway)) <= 2
