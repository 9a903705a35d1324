"""What is kept of answers, for how long, and in how many bytes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import Raw
from tests.gateway.callers import raw
from tests.gateway.fakes import Clock

from tollgate.chains.catalogue import Catalogue
from tollgate.core.shapes import PlainCall, Reply
from tollgate.gateway.call import cache as cache_module
from tollgate.gateway.call.cache import Cache, key_of
from tollgate.shm.upstream_status import SILENCE_SECONDS, SharedStatus, Stamp
from tollgate.store.base import SharedAnswer

HEAD, FINAL = 1_000, 900
HASH = "0x" + "ab" * 32


def call(method: str, *params: Any) -> PlainCall:
    return PlainCall("2.0", 1, method, raw(params))


def at(number: int) -> PlainCall:
    """A question about a block by its number."""
    return call("eth_getBalance", "0xa", hex(number))


LATEST = call("eth_getBalance", "0xa", "latest")
CHAIN = call("eth_chainId")


class Shelf:
    """A cache, and the status that it follows."""

    def __init__(self, max_bytes: int = 1_000_000, max_entry: int = 100_000, family: str = "eth") -> None:
        self.clock = Clock()
        self.row = SharedStatus(1, self.clock).network(0)
        self.catalogue = Catalogue(family)
        self.cache = Cache(self.catalogue, self.row, max_bytes, max_entry)
        self.row.publish(HEAD, FINAL, changed=True)

    def put(self, kept_call: PlainCall, result: Any = "0x1", stamp: Stamp | None = None) -> None:
        scope = self.catalogue.scope(kept_call.method, kept_call.params)
        reply = Reply(Raw(json.dumps(result).encode()))
        self.cache.put(key_of(kept_call), scope, reply, stamp or self.row.stamp)

    def get(self, kept_call: PlainCall) -> Any:
        reply = self.cache.get(key_of(kept_call))
        return None if reply is None else json.loads(bytes(reply.result))

    def block(self, number: int) -> None:
        """A new head."""
        self.row.publish(number, FINAL, changed=True)

    def reorganise(self, ancestor: int, head: int = HEAD) -> None:
        self.row.publish_reorg(ancestor)
        self.block(head)

    def keeps(self, kept_call: PlainCall, result: Any = "0x1") -> bool:
        self.put(kept_call, result)
        return self.get(kept_call) is not None


# --- How long ------------------------------------------------------------------------------------------------


def test_tip_holds_until_the_next_block() -> None:
    shelf = Shelf()
    shelf.put(LATEST)
    assert shelf.get(LATEST) == "0x1"
    shelf.row.publish(HEAD, FINAL + 1, changed=False)
    assert shelf.get(LATEST) == "0x1"
    shelf.block(HEAD + 1)
    assert shelf.get(LATEST) is None
    assert len(shelf.cache) == 0


@pytest.mark.parametrize("what", ["block", "same height", "transaction", "seen", "reorg"])
def test_tip_holds_for_one_version_whatever_ends_it(what: str) -> None:
    shelf = Shelf()
    shelf.put(LATEST)
    if what == "transaction":
        shelf.row.request_probe()
    elif what == "seen":
        shelf.row.observe_head(HEAD + 1)
    elif what == "reorg":
        shelf.row.publish_reorg(HEAD - 1)
    else:
        shelf.block(HEAD + (what == "block"))
    assert shelf.get(LATEST) is None


def test_tip_is_not_reported_while_the_prober_is_silent() -> None:
    shelf = Shelf()
    shelf.put(LATEST)
    shelf.clock.advance(SILENCE_SECONDS + 1)
    assert shelf.get(LATEST) is None
    assert not shelf.keeps(LATEST)


def test_answer_is_stamped_when_the_call_is_sent() -> None:
    shelf = Shelf()
    stamp = shelf.row.stamp
    shelf.block(HEAD + 1)
    shelf.put(LATEST, stamp=stamp)
    assert shelf.get(LATEST) is None
    shelf.put(LATEST)
    assert shelf.get(LATEST) == "0x1"


def test_block_holds_over_other_blocks_and_until_it_is_replaced() -> None:
    shelf = Shelf()
    for number in (950, 960, 970):
        shelf.put(at(number), number)
    shelf.block(HEAD + 1)
    assert [shelf.get(at(number)) for number in (950, 960, 970)] == [950, 960, 970]
    shelf.reorganise(960)
    assert [shelf.get(at(number)) for number in (950, 960, 970)] == [950, 960, None]


def test_block_survives_no_reorganisation_that_was_missed_in_between() -> None:
    shelf = Shelf()
    shelf.put(at(970))
    shelf.reorganise(960)
    shelf.reorganise(995)
    assert shelf.get(at(970)) is None
    shelf.put(at(970))
    for _ in range(16):
        shelf.reorganise(999)
    assert shelf.get(at(970)) is None, "too many to know"


def test_answer_that_was_under_way_during_a_reorganisation_is_not_believed_above_the_ancestor() -> None:
    shelf = Shelf()
    stamp = shelf.row.stamp
    shelf.reorganise(960)
    shelf.put(at(970), stamp=stamp)
    shelf.put(at(955), stamp=stamp)
    assert (shelf.get(at(970)), shelf.get(at(955))) == (None, "0x1")


@given(st.lists(st.tuples(st.sampled_from(["put", "reorg", "get"]), st.integers(905, 999)), max_size=40))
def test_nothing_above_an_ancestor_is_ever_reported(steps: list[tuple[str, int]]) -> None:
    shelf = Shelf()
    fork, kept = 0, dict[int, int]()
    for what, number in steps:
        if what == "put":
            shelf.put(at(number), fork)
            kept[number] = fork
        elif what == "reorg":
            fork += 1
            shelf.reorganise(number)
            kept = {each: since for each, since in kept.items() if each <= number}
        else:
            # It may evict, but what it returns is of this chain.
            assert shelf.get(at(number)) in (None, kept.get(number))
    known = [number for number in kept if shelf.get(at(number)) is not None]
    assert fork >= 16 or known == list(kept), "and it does not forget without a reason"


def test_blocks_that_are_not_final_are_not_served_while_the_prober_is_silent() -> None:
    shelf = Shelf()
    for kept_call in (at(970), at(5), CHAIN):
        shelf.put(kept_call)
    shelf.clock.advance(SILENCE_SECONDS + 1)
    assert [shelf.get(kept_call) for kept_call in (at(970), at(5), CHAIN)] == [None, "0x1", "0x1"]
    shelf.row.pulse()
    assert shelf.get(at(970)) == "0x1"


def test_blocks_are_not_reported_while_a_newer_one_was_seen_that_the_prober_has_not() -> None:
    shelf = Shelf()
    for kept_call in (at(970), at(5)):
        shelf.put(kept_call)
    shelf.row.observe_head(HEAD + 1)
    assert [shelf.get(kept_call) for kept_call in (at(970), at(5))] == [None, "0x1"], "it may be another chain"
    shelf.block(HEAD + 1)
    assert shelf.get(at(970)) == "0x1"


def test_final_and_named_by_hash_hold_over_everything() -> None:
    shelf = Shelf()
    by_hash = call("eth_getBlockByHash", HASH, False)
    kept_call = [CHAIN, at(FINAL), call("eth_getBlockByNumber", "earliest", False)]
    for each in kept_call:
        shelf.put(each, {"number": "0x0"})
    shelf.put(by_hash, {"hash": HASH})
    shelf.reorganise(FINAL + 1)
    for number in range(20):
        shelf.block(HEAD + number)
    assert all(shelf.get(each) for each in [*kept_call, by_hash])


def test_nothing_is_kept_before_the_network_was_seen() -> None:
    shelf = Shelf()
    shelf.clock.advance(SILENCE_SECONDS + 1)
    assert not any(shelf.keeps(kept_call) for kept_call in (LATEST, at(970), at(5), CHAIN))


@pytest.mark.parametrize(
    ("kept_call", "result", "kept"),
    [
        (at(HEAD), "0x1", True),
        (at(HEAD + 1), "0x1", False),
        (call("eth_getBalance", "0xa", "pending"), "0x1", False),
        (call("eth_getBlockByNumber", "0x5", False), None, False),
        (call("eth_getTransactionReceipt", HASH), None, False),
        (call("eth_getTransactionReceipt", HASH), {"blockNumber": "0x5"}, True),
        (call("eth_getTransactionByHash", HASH), {"blockNumber": None}, False),
        (call("eth_getLogs", {"fromBlock": "0x1", "toBlock": "0x5"}), [], True),
        (call("eth_sendRawTransaction", "0x1"), "0x1", False),
        (call("foo_bar"), "0x1", False),
    ],
)
def test_what_may_be_kept_at_all(kept_call: PlainCall, result: Any, kept: bool) -> None:
    assert Shelf().keeps(kept_call, result) is kept


def test_empty_answer_about_the_past_is_kept_no_longer_than_a_tip() -> None:
    shelf = Shelf()
    kept_call = call("eth_getLogs", {"fromBlock": "0x1", "toBlock": "0x5"})
    shelf.put(kept_call, [])
    shelf.block(HEAD + 1)
    assert shelf.get(kept_call) is None


# --- How much --------------------------------------------------------------------------------------------------


def test_longest_unused_makes_room() -> None:
    shelf = Shelf(max_bytes=1_500)
    for number in range(3):
        shelf.put(at(number), "x" * 100)
    assert shelf.get(at(0)) is not None
    for number in range(3, 6):
        shelf.put(at(number), "x" * 100)
        if shelf.get(at(1)) is None:
            break
    assert shelf.get(at(0)) is not None, "used after the others"


def full() -> Shelf:
    """A cache with hardly any room; its first answers are requested again and again."""
    shelf = Shelf(max_bytes=20_000)
    for number in range(60):
        shelf.put(at(number), "x" * 100)
    assert shelf.cache.used > 20_000 - 20_000 // 16
    return shelf


def test_where_there_is_little_room_a_newcomer_comes_in_when_it_is_requested_again() -> None:
    shelf = full()
    assert not shelf.keeps(at(500))
    assert shelf.keeps(at(500))
    assert not shelf.keeps(at(501))


def test_who_reads_everything_once_pushes_out_hardly_anything() -> None:
    shelf = full()
    kept = [number for number in range(60) if shelf.get(at(number)) is not None]
    assert len(kept) > 30
    for number in range(60, 900):
        shelf.put(at(number), "x" * 100)
    # Some keys share a mark by chance.
    assert len([number for number in kept if shelf.get(at(number)) is not None]) > len(kept) * 2 // 3


def test_answer_that_has_ended_is_followed_by_the_next_though_there_is_little_room() -> None:
    shelf = full()
    for _ in range(2):
        shelf.put(LATEST)
    for number in range(1, 4):
        assert shelf.get(LATEST) is not None
        shelf.block(HEAD + number)
        assert shelf.get(LATEST) is None
        shelf.put(LATEST)


def test_marks_of_what_was_requested_are_taken_away_when_there_are_too_many() -> None:
    shelf = full()
    cache = shelf.cache
    for number in range(200_000):
        cache._was_seen(b"%d" % number)
        assert cache._marks <= cache_module._MAX_MARKS + 1
    assert len(cache._seen) == cache_module._MARKS


def test_answer_that_is_too_large_is_not_kept() -> None:
    shelf = Shelf(max_entry=1_000)
    assert not shelf.keeps(at(1), "x" * 1_000)
    assert shelf.keeps(at(1), "x" * 500)
    assert not Shelf(max_bytes=400).keeps(at(1), "x" * 500)


OVERHEAD = 250
"""What an entry is taken to cost beside its key and its answer."""


def cost(kept_call: PlainCall, result: Any = "0x1") -> int:
    return len(key_of(kept_call)) + len(json.dumps(result)) + OVERHEAD


def test_used_is_what_the_answers_cost_that_are_kept() -> None:
    shelf = Shelf()
    assert shelf.cache.used == 0
    shelf.put(at(1))
    shelf.put(LATEST, "x" * 50)
    assert shelf.cache.used == cost(at(1)) + cost(LATEST, "x" * 50)
    shelf.put(LATEST)
    assert shelf.cache.used == cost(at(1)) + cost(LATEST)
    shelf.block(HEAD + 1)
    assert shelf.get(LATEST) is None
    assert shelf.cache.used == cost(at(1))
    answer = SharedAnswer(key_of(at(2)), 2, b'"0x1"')
    assert shelf.cache.take_in(answer)
    assert shelf.cache.used == cost(at(1)) + cost(at(2))
    assert not shelf.cache.take_in(answer), "it is here already"
    assert shelf.cache.used == cost(at(1)) + cost(at(2))


def test_answer_may_be_as_large_as_the_bound_and_no_larger() -> None:
    size = cost(at(1))
    assert Shelf(max_entry=size).keeps(at(1))
    assert not Shelf(max_entry=size - 1).keeps(at(1))
    assert Shelf(max_bytes=size).keeps(at(1))
    assert not Shelf(max_bytes=size - 1).keeps(at(1))
    shared = SharedAnswer(key_of(at(1)), 1, b'"0x1"')
    assert Shelf(max_entry=size).cache.take_in(shared)
    assert not Shelf(max_entry=size - 1).cache.take_in(shared)


def test_little_room_is_left_from_the_last_sixteenth() -> None:
    for more, comes_in in ((0, True), (1, False)):
        shelf = Shelf(max_bytes=1_600)
        shelf.put(at(1), "x" * (1_500 + more - cost(at(1), "")))
        assert shelf.cache.used == 1_500 + more
        assert shelf.keeps(CHAIN) is comes_in


def test_answer_of_another_worker_takes_no_room_of_the_last_sixteenth() -> None:
    shared = SharedAnswer(key_of(at(2)), 2, b'"0x1"')
    for more, comes_in in ((0, True), (1, False)):
        shelf = Shelf(max_bytes=1_600)
        shelf.put(at(1), "x" * (1_500 + more - cost(at(1), "") - cost(at(2))))
        assert shelf.cache.take_in(shared) is comes_in
        assert (shelf.get(at(2)) is not None) is comes_in


def test_answers_are_shared_once_unless_they_could_not_be_sent() -> None:
    shelf = Shelf()
    for number in (0, FINAL, FINAL + 1):
        shelf.put(at(number))
        assert shelf.get(at(number)) is not None
    shared = list(shelf.cache.unshared(1_000))
    assert [each.number for each in shared] == [FINAL, 0], "the newest first"
    assert list(shelf.cache.unshared(1_000)) == []
    shelf.cache.not_shared([*shared, SharedAnswer(b"gone", 1, b"1")])
    assert list(shelf.cache.unshared(cost(at(0)))) == shared[1:], "the other is too large"


def test_answers_that_are_too_large_are_not_shared() -> None:
    shelf = Shelf()
    shelf.put(at(1))
    assert shelf.get(at(1)) is not None
    assert list(shelf.cache.unshared(cost(at(1)) - 1)) == []
    assert len(list(shelf.cache.unshared(cost(at(1))))) == 1


def test_kept_answer_does_not_hold_on_to_the_whole_body() -> None:
    shelf = Shelf()
    body = b'["0x1", "' + b"x" * 10_000 + b'"]'
    result = msgspec.json.decode(body, type=list[Raw])[0]
    shelf.cache.put(key_of(CHAIN), shelf.catalogue.scope("eth_chainId", None), Reply(result), shelf.row.stamp)
    kept = shelf.cache.get(key_of(CHAIN))
    assert kept is not None
    assert bytes(kept.result) == b'"0x1"'
    assert memoryview(kept.result).obj is not memoryview(result).obj
    assert len(memoryview(memoryview(kept.result).obj)) < 100


def test_other_bounds_are_taken_over_at_once() -> None:
    shelf = Shelf()
    for number in range(20):
        shelf.put(at(number), "x" * 100)
    before = shelf.cache.used
    shelf.cache.resize(before // 2, 100_000)
    assert shelf.cache.used <= before // 2
    assert shelf.get(at(19)) is not None
    assert shelf.get(at(0)) is None
    shelf.cache.resize(before * 2, 300)
    assert not shelf.keeps(at(50), "x" * 100)
    shelf.cache.resize(0, 100)
    assert (shelf.cache.used, len(shelf.cache)) == (0, 0)


class Bounded(RuleBasedStateMachine):
    """Puts, looks, blocks and bounds in any order: bytes are counted right and never too many."""

    def __init__(self) -> None:
        super().__init__()
        self.shelf = Shelf(max_bytes=4_000, max_entry=1_500)
        self.most = 4_000

    @rule(number=st.integers(0, 30), size=st.integers(0, 2_000), tip=st.booleans())
    def put(self, number: int, size: int, tip: bool) -> None:
        kept_call = call("eth_getBalance", str(number), "latest" if tip else hex(number + 920))
        self.shelf.put(kept_call, "x" * size)

    @rule(number=st.integers(0, 30), tip=st.booleans())
    def get(self, number: int, tip: bool) -> None:
        self.shelf.get(call("eth_getBalance", str(number), "latest" if tip else hex(number + 920)))

    @rule()
    def block(self) -> None:
        self.shelf.block(HEAD)

    @rule(ancestor=st.integers(905, 955))
    def reorganise(self, ancestor: int) -> None:
        self.shelf.reorganise(ancestor)

    @rule(most=st.integers(0, 6_000))
    def resize(self, most: int) -> None:
        self.shelf.cache.resize(most, 1_500)
        self.most = most

    @invariant()
    def bytes_are_bounded_and_counted(self) -> None:
        cache = self.shelf.cache
        assert cache.used == sum(entry.size for entry in cache.entries.values())
        assert cache.used <= self.most
        held = sum(len(key) + len(memoryview(entry.result)) for key, entry in cache.entries.items())
        assert held <= cache.used


TestBounded = Bounded.TestCase


# --- Keys --------------------------------------------------------------------------------------------------------


def test_same_question_has_the_same_key_whatever_its_id() -> None:
    assert key_of(PlainCall("2.0", 1, "m", raw([1]))) == key_of(PlainCall("2.0", 2, "m", raw([1])))
    nothing: list[Any] = [None, [], {}]
    assert len({key_of(PlainCall("2.0", 1, "m", params)) for params in nothing}) == 1


values = st.text(max_size=3) | st.integers(0, 9) | st.lists(st.integers(0, 9), max_size=2)
params_: st.SearchStrategy[Any] = st.lists(values, max_size=3) | st.dictionaries(
    st.text('ab\0"{(1:,', max_size=4), values, max_size=3
)
methods = st.sampled_from(["m", "mn", "m("])


@given(methods, params_, methods, params_)
def test_different_questions_have_different_keys(one: str, params: Any, other: str, others: Any) -> None:
    same = one == other and (params == others or (not params and not others))
    if isinstance(params, dict) and isinstance(others, dict):
        same = same and list(params) == list(others)
    keys = {key_of(PlainCall("2.0", 1, method, raw(each))) for method, each in [(one, params), (other, others)]}
    assert (len(keys) == 1) is same


def test_name_of_a_parameter_cannot_pass_for_two() -> None:
    two = PlainCall("2.0", 1, "m", {"a": Raw(b"1"), "b": Raw(b"2")})
    one = PlainCall("2.0", 1, "m", {"a\0001\0b": Raw(b"2")})
    assert key_of(one) != key_of(two)
