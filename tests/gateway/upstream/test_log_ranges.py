"""`eth_getLogs` in parts: which they are, and how they are requested and joined."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from tests.gateway.callers import raw, summary
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fake_network import FakeNetwork
from tests.gateway.fake_node import REVERTED, TOO_WIDE, Error
from tests.gateway.fakes import run_pending, spawn

from tollgate.chains.faults import Verdict
from tollgate.core.shapes import Params, Reply
from tollgate.errors import UpstreamError
from tollgate.gateway.upstream import get_logs
from tollgate.gateway.upstream.attempts import AttemptOutcome
from tollgate.gateway.upstream.get_logs import MAX_PARTS, Logs, Range, _number, joined, read_range

HEAD = 1_000
GET = "eth_getLogs"
(UPSTREAM,) = FakeNetwork({}).upstreams


# --- What the parts are --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filter_", "found"),
    [
        ({"fromBlock": "0x0", "toBlock": "0xa"}, (0, 10)),
        ({"fromBlock": "0xA", "toBlock": "0X0f"}, (10, 15)),
        ({"fromBlock": "earliest", "toBlock": "latest"}, (0, HEAD)),
        ({"fromBlock": "0x1"}, (1, HEAD)),
        ({"fromBlock": "0x1", "toBlock": None}, (1, HEAD)),
        ({}, None),
        ({"fromBlock": "0x5", "toBlock": "0x5"}, None),
        ({"fromBlock": "0x6", "toBlock": "0x5"}, None),
        ({"fromBlock": "0x1", "toBlock": "pending"}, None),
        ({"fromBlock": "0x1", "toBlock": "finalized"}, None),
        ({"fromBlock": "safe", "toBlock": "latest"}, None),
        ({"fromBlock": 1, "toBlock": 5}, None),
        ({"fromBlock": "1", "toBlock": "5"}, None),
        ({"fromBlock": "0x1_0", "toBlock": "0xff"}, None),
        ({"fromBlock": "0x", "toBlock": "0xff"}, None),
        ({"fromBlock": "0x-1", "toBlock": "0xff"}, None),
        ({"fromBlock": "0x0", "toBlock": "0x" + "f" * 17}, None),
        ({"blockHash": "0xab"}, None),
        ({"blockHash": "0xab", "fromBlock": "0x1", "toBlock": "0x9"}, None),
    ],
)
def test_range_is_read_where_both_ends_are_numbers_that_stay(filter_: Any, found: Any) -> None:
    got = read_range(raw([filter_]), HEAD)
    assert (None if got is None else (got.first, got.last)) == found


@pytest.mark.parametrize("params", [None, [], {"fromBlock": "0x1"}, ["x"], [1], [{}, {}], [[]]])
def test_what_is_no_filter_has_no_range(params: Any) -> None:
    assert read_range(None if params is None else raw(params), HEAD) is None


def test_latest_cannot_be_split_while_the_head_is_not_known() -> None:
    assert read_range(raw([{"fromBlock": "0x1", "toBlock": "latest"}]), -1) is None


def test_rest_of_a_filter_goes_along_with_each_part() -> None:
    whole = read_range(raw([{"address": "0xa", "fromBlock": "0x0", "toBlock": "0x9", "topics": [None]}]), HEAD)
    assert whole is not None
    assert [json.loads(bytes(part.params()[0])) for part in whole.halves()] == [  # type: ignore[index]
        {"address": "0xa", "topics": [None], "fromBlock": "0x0", "toBlock": "0x4"},
        {"address": "0xa", "topics": [None], "fromBlock": "0x5", "toBlock": "0x9"},
    ]


ends = st.integers(0, 5_000)


@given(ends, ends, st.integers(1, 700))
def test_pieces_cover_the_range_without_a_gap_or_a_double(one: int, other: int, blocks: int) -> None:
    whole = Range(min(one, other), max(one, other), {})
    pieces = whole.pieces(blocks)
    assert len(pieces) == whole.count(blocks)
    numbers = [number for piece in pieces for number in range(piece.first, piece.last + 1)]
    assert numbers == list(range(whole.first, whole.last + 1))
    assert all(piece.last - piece.first < blocks for piece in pieces)


@given(ends, st.integers(1, 5_000))
def test_halves_cover_the_range_without_a_gap_or_a_double(first: int, more: int) -> None:
    older, newer = Range(first, first + more, {}).halves()
    assert (older.first, older.last + 1, newer.last) == (first, newer.first, first + more)
    assert older.first <= older.last
    assert newer.first <= newer.last


def test_number_of_pieces_of_any_range_is_found_without_making_them() -> None:
    assert Range(0, 2**62, {}).count(1) == 2**62 + 1


@given(st.lists(st.lists(st.dictionaries(st.text(max_size=3), st.integers()), max_size=3), max_size=5))
def test_logs_are_joined_in_order(parts: list[list[dict[str, int]]]) -> None:
    written = [Raw(json.dumps(part, indent=1).encode()) for part in parts]
    whole = joined(written)
    assert whole is not None
    assert json.loads(bytes(whole)) == [log for part in parts for log in part]


def test_null_is_no_log_and_what_is_no_array_cannot_be_joined() -> None:
    assert bytes(joined([Raw(b"null"), Raw(b"[1]"), Raw(b" [] ")]) or b"") == b"[1]"
    assert joined([Raw(b"[1]"), Raw(b'{"logs":[]}')]) is None


# --- How they are requested ------------------------------------------------------------------------------------


class Searcher:
    """Finds one log in each block, in at most so many blocks at once."""

    def __init__(self, widest: int = 1 << 62, log: Callable[[int], Any] = lambda number: number) -> None:
        self.too_much: Callable[[int, int], bool] = lambda first, last: last - first >= widest
        self.log = log
        self.ranges: list[tuple[int, int]] = []
        self.charged = 0
        self.at_once = self.max_at_once = 0

    async def search(self, params: Params) -> AttemptOutcome[Reply]:
        found = read_range(params, HEAD)
        assert isinstance(params, list)
        filter_ = json.loads(bytes(params[0]))
        first, last = (found.first, found.last) if found else (int(filter_["fromBlock"], 16),) * 2
        self.ranges.append((first, last))
        self.at_once += 1
        self.max_at_once = max(self.max_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if self.too_much(first, last):
            return AttemptOutcome(
                UPSTREAM, Reply(error=Raw(b'{"code":-32005,"message":"too wide"}')), Verdict.TOO_WIDE
            )
        logs = [self.log(number) for number in range(first, last + 1)]
        return AttemptOutcome(UPSTREAM, Reply(Raw(json.dumps(logs).encode())))

    async def get(self, first: int, last: int, blocks: int = 0) -> Any:
        filter_ = {"fromBlock": hex(first), "toBlock": hex(last)}
        flown = spawn(Logs(self.search, self._charge).get(raw([filter_]), HEAD, blocks))
        await run_pending(400)
        found = summary(await flown)
        # The call itself was counted when it was let in; of an answer, what was requested beyond it.
        assert self.charged == len(self.ranges) - 1 or isinstance(found, Error)
        return found

    def _charge(self, calls: int) -> None:
        self.charged += calls


async def test_range_that_is_not_too_wide_is_sent_whole() -> None:
    searcher = Searcher()
    assert await searcher.get(5, 104, 100) == list(range(5, 105))
    assert searcher.ranges == [(5, 104)]


@pytest.mark.parametrize("blocks", [1, 7, 33, 50, 99])
async def test_range_wider_than_an_upstream_searches_is_split_and_joined_in_order(blocks: int) -> None:
    searcher = Searcher(widest=blocks)
    last = min(5 + 63 * blocks, 300)
    assert await searcher.get(5, last, blocks) == list(range(5, last + 1))
    assert len(searcher.ranges) == -(-(last - 4) // blocks) <= MAX_PARTS
    assert searcher.max_at_once <= 8


async def test_range_that_a_node_calls_too_wide_is_halved_until_it_is_not() -> None:
    searcher = Searcher(widest=30)
    assert await searcher.get(200, 299) == list(range(200, 300))
    assert searcher.ranges == [(200, 299), (200, 249), (200, 224), (225, 249), (250, 274), (275, 299)]


async def test_part_that_holds_more_than_the_oldest_is_halved_again() -> None:
    searcher = Searcher()
    searcher.too_much = lambda first, last: last - first >= (30 if first < 40 else 5)
    assert await searcher.get(0, 99) == list(range(100))
    assert len(searcher.ranges) < MAX_PARTS


@pytest.mark.parametrize(("last", "blocks"), [(999, 0), (2**60, 0), (99_999, 100), (2**60, 100)])
async def test_more_parts_than_are_allowed_are_the_nodes_own_words_after_a_handful_of_questions(
    last: int, blocks: int
) -> None:
    searcher = Searcher(widest=10 if last == 999 else 100)
    assert (await searcher.get(0, last, blocks)).code == -32005
    assert len(searcher.ranges) <= 7


async def test_where_newer_blocks_hold_too_much_it_ends_with_the_nodes_own_words() -> None:
    searcher = Searcher()
    searcher.too_much = lambda first, last: last - first >= (30 if first < 40 else 1)
    assert (await searcher.get(0, 199)).code == -32005
    assert len(searcher.ranges) <= 2 * MAX_PARTS + 7


async def test_single_block_that_is_too_much_is_the_nodes_own_words() -> None:
    searcher = Searcher(widest=0)
    assert (await searcher.get(0, 3)).code == -32005


@given(st.integers(0, 200), st.integers(1, 200), st.integers(4, 60), st.integers(0, 60))
async def test_no_log_is_lost_or_doubled_whatever_is_too_wide(
    first: int, more: int, widest: int, blocks: int
) -> None:
    searcher = Searcher(widest)
    found = await searcher.get(first, first + more, blocks)
    if isinstance(found, Error):
        assert -(-(more + 1) // 64) >= widest // 2, "in 64 parts, each would be too wide"
    else:
        assert found == list(range(first, first + more + 1))


@pytest.mark.parametrize(("blocks", "calls"), [(MAX_PARTS, MAX_PARTS), (MAX_PARTS + 1, 1)])
async def test_range_is_split_into_as_many_parts_as_are_allowed_or_sent_whole(blocks: int, calls: int) -> None:
    searcher = Searcher()
    assert await searcher.get(0, blocks - 1, 1) == list(range(blocks))
    assert len(searcher.ranges) == calls


@pytest.mark.parametrize(("blocks", "fits"), [(MAX_PARTS, True), (MAX_PARTS + 1, False)])
async def test_range_is_narrowed_to_as_many_parts_as_are_allowed(blocks: int, fits: bool) -> None:
    found = await Searcher(widest=1).get(0, blocks - 1)
    assert found == list(range(blocks)) if fits else found.code == -32005


def test_latest_is_the_first_block_of_all_while_there_is_no_other() -> None:
    assert (_number(None, 0), _number(None, -1)) == (0, None)


@pytest.mark.parametrize(("more", "fits"), [(0, True), (-1, False)])
async def test_logs_may_be_as_large_as_the_bound(more: int, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_logs, "MAX_BYTES", len("[0]") + len("[1]") + more)
    if fits:
        assert await Searcher().get(0, 1, 1) == [0, 1]
    else:
        with pytest.raises(UpstreamError, match="fewer blocks"):
            await Searcher().get(0, 1, 1)


async def test_no_more_logs_are_fetched_than_fit_into_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_logs, "MAX_BYTES", 30)
    searcher = Searcher()
    with pytest.raises(UpstreamError, match="fewer blocks"):
        await searcher.get(0, 40, 1)
    assert len(searcher.ranges) < 20


# --- Over upstreams --------------------------------------------------------------------------------------------


def searching(gateway: FakeGateway, widest: int = 1 << 62) -> None:
    """Let all upstreams find one log in each block."""

    def respond(_: str, params: Any) -> Any:
        first, last = (int(params[0].get(end, hex(HEAD)), 16) for end in ("fromBlock", "toBlock"))
        return TOO_WIDE if last - first >= widest else list(range(first, last + 1))

    for node in gateway.nodes:
        node.respond = respond


async def test_narrowest_upstream_decides_how_wide_the_parts_are() -> None:
    gateway = await open_gateway({"logs_blocks": 80}, {"logs_blocks": 50}, {})
    searching(gateway)
    assert await gateway.call(GET, {"fromBlock": "0x0", "toBlock": "0x63"}) == list(range(100))
    assert [params[0]["toBlock"] for _, params in gateway.nodes[0].calls] == ["0x31", "0x63"]
    assert gateway.trace.attempts == 2


async def test_another_upstream_may_search_more_than_the_first(gateway: FakeGateway) -> None:
    searching(gateway)
    gateway.nodes[0].always(TOO_WIDE)
    assert await gateway.call(GET, {"fromBlock": "0x0", "toBlock": "0x63"}) == list(range(100))
    assert gateway.counts() == [1, 1]


async def test_latest_is_the_highest_block_that_callers_have_seen() -> None:
    gateway = await open_gateway({"logs_blocks": 2}, {})
    gateway.publish_heads(HEAD, HEAD)
    gateway.status.observe_head(HEAD + 1)
    gateway.statuses[1].observe_head(HEAD + 1)
    searching(gateway)
    filter_ = {"fromBlock": hex(HEAD - 3), "toBlock": "latest"}
    assert await gateway.call(GET, filter_) == list(range(HEAD - 3, HEAD + 2))
    assert gateway.counts() == [0, 3], "of those that are not behind"


async def test_error_of_one_part_is_the_answer_and_the_rest_is_not_sent() -> None:
    gateway = await open_gateway({"logs_blocks": 1})
    gateway.nodes[0].always(REVERTED)
    assert await gateway.call(GET, {"fromBlock": "0x0", "toBlock": "0x1f"}) == REVERTED
    assert gateway.counts() == [8]


async def test_nonsense_of_one_part_is_an_upstream_error() -> None:
    gateway = await open_gateway({"logs_blocks": 2})
    gateway.nodes[0].always({"logs": []})
    with pytest.raises(UpstreamError):
        await gateway.send(GET, {"fromBlock": "0x0", "toBlock": "0x3"})


async def test_failure_of_one_part_is_a_refusal_of_the_whole() -> None:
    gateway = await open_gateway({"logs_blocks": 2})
    searching(gateway)
    gateway.nodes[0].holds = True
    pending = gateway.send(GET, {"fromBlock": "0x0", "toBlock": "0x3"}, seconds=1.0)
    await run_pending()
    gateway.nodes[0].release()
    await gateway.advance(1.3)
    with pytest.raises(Exception, match="in time"):
        await pending


async def test_joined_logs_are_kept_as_one_answer() -> None:
    gateway = await open_gateway({"logs_blocks": 50}, cache_bytes=1_000_000)
    gateway.publish_heads(HEAD, finalized=900)
    searching(gateway)
    for _ in range(2):
        assert await gateway.call(GET, {"fromBlock": "0x0", "toBlock": "0x63"}) == list(range(100))
    assert (gateway.counts(), gateway.trace.cache) == ([2], "hit")


@pytest.mark.parametrize(("narrow", "fits"), [(1, True), (2, False)])
async def test_parts_are_halved_to_as_many_as_are_allowed(narrow: int, fits: bool) -> None:
    searcher = Searcher()
    searcher.too_much = lambda first, last: last > first and first < 2 * narrow
    blocks = 2 * (MAX_PARTS - 1)
    found = await searcher.get(0, blocks - 1, 2)
    assert found == list(range(blocks)) if fits else found.code == -32005
