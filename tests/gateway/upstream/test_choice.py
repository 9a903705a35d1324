"""Which upstream is called next, as tables."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.fake_network import FakeNetwork, chances

from tollgate.chains.methods import Holds, Scope
from tollgate.gateway.upstream.choice import (
    RECENT_BLOCKS,
    Requirements,
    wants_archive,
)
from tollgate.gateway.upstream.health import Upstream
from tollgate.shm.upstream_status import NOTHING, SILENCE_SECONDS, State

HEAD = 1_000
READ = Requirements("eth_call")
TIP = Requirements("eth_call", tip=True)
OLD = Requirements("eth_call", oldest=5)
Settings = dict[str, Any]


def fake_network(*settings: Settings) -> FakeNetwork:
    return FakeNetwork(*settings, head=HEAD)


def silence(network: FakeNetwork) -> None:
    """The prober writes no more."""
    network.clock.advance(SILENCE_SECONDS)


def chosen(network: FakeNetwork, need: Requirements, tried: str = "", chance: float = 0.0) -> str:
    """The name of the upstream that is chosen; empty: none."""
    found = network.view().choose(need, [network[name] for name in tried], network.clock(), chances(chance))
    return found.name if found else ""


def order(network: FakeNetwork, need: Requirements) -> str:
    """In which order upstreams are called, those out of rotation at last."""
    tried: list[Upstream] = []
    view, now = network.view(), network.clock()
    while True:
        found = view.choose(need, tried, now, chances(0.0)) or view.last_resort(need, tried, now)
        if found is None:
            return "".join(upstream.name for upstream in tried)
        tried.append(found)


# --- Priority, weight, chance ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("priorities", "chosen_order"), [((0, 1, 2), "abc"), ((2, 1, 0), "cba"), ((5, 0, 5), "bac"), ((7,), "a")]
)
def test_lower_priorities_are_called_first(priorities: tuple[int, ...], chosen_order: str) -> None:
    assert order(fake_network(*({"priority": each} for each in priorities)), READ) == chosen_order


def test_others_step_in_only_when_those_before_are_out_of_rotation() -> None:
    network = fake_network({}, {"priority": 1}, {"priority": 1})
    network.answer("a", 5.0)
    assert chosen(network, READ) == "a", "however slow it is"
    network.publish_state("a", State.DOWN)
    assert chosen(network, READ) == "b"
    assert chosen(network, READ, "b") == "c"
    assert chosen(network, READ, "bc") == ""


def test_of_two_the_cheaper_is_called() -> None:
    network = fake_network({}, {})
    network.answer("a", 0.2)
    network.answer("b", 0.1)
    assert chosen(network, READ) == "b"
    network["b"].started()
    network["b"].started()
    assert chosen(network, READ) == "a"


def test_weight_is_a_share_of_the_calls() -> None:
    network = fake_network({"weight": 1}, {"weight": 3})
    chosen_order: Counter[str] = Counter()
    for name in "ab":
        network.answer(name, 0.1)
    for _ in range(400):
        name = chosen(network, READ)
        network[name].started()
        chosen_order[name] += 1
    assert 90 <= chosen_order["a"] <= 110


@given(st.integers(0, 2**32), st.integers(3, 9))
def test_of_many_two_different_ones_are_compared(seed: int, count: int) -> None:
    network = fake_network(*[{}] * count)
    for index, upstream in enumerate(network.upstreams):
        network.answer(upstream.name, 1.0 + index)
    random = Random(seed).random
    names = {
        found.name
        for _ in range(200)
        if (found := network.view().choose(READ, [], network.clock(), random)) is not None
    }
    assert network.upstreams[-1].name not in names, "the slowest loses to whomever it is compared with"
    assert network.upstreams[0].name in names


@pytest.mark.parametrize(
    ("chance", "quick_first", "quick_last"),
    [
        ((0.0, 0.0), "a", "b"),
        ((0.0, 0.9), "a", "c"),
        ((0.5, 0.0), "a", "b"),
        ((0.5, 0.5), "b", "c"),
        ((0.9, 0.0), "a", "c"),
        ((0.9, 0.9), "b", "c"),
    ],
)
def test_any_two_of_three_may_be_compared(chance: tuple[float, float], quick_first: str, quick_last: str) -> None:
    for names, fit in (("abc", quick_first), ("cba", quick_last)):
        network = fake_network({}, {}, {})
        for name, seconds in zip(names, (0.1, 0.2, 0.3), strict=True):
            network[name].ewma = seconds
        view = network.view()
        assert view.first("eth_call", Scope(Holds.NEVER), network.clock(), chances(*chance)) is network[fit]


def test_upstream_that_may_be_tried_again_is_chosen_again() -> None:
    network = fake_network({}, {"priority": 1})
    network.fail("a", 5)
    assert chosen(network, READ) == "b"
    network.clock.advance(2.0)
    assert chosen(network, READ) == "a"


# --- Rotation ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "read", "tip"),
    [
        (State.UP, "ab", "ab"),
        (State.UNKNOWN, "ba", "ba"),
        (State.DOWN, "ba", "ba"),
        (State.LAGGING, "ba", "b"),
        (State.SYNCING, "ba", "b"),
        (State.FORKED, "ba", "b"),
        (State.WRONG_CHAIN, "b", "b"),
    ],
)
def test_who_is_out_of_rotation_is_called_last_and_a_wrong_chain_never(state: State, read: str, tip: str) -> None:
    network = fake_network({}, {"priority": 1})
    network.publish_state("a", state, HEAD)
    assert (order(network, READ), order(network, TIP)) == (read, tip)


def test_one_that_was_never_probed_waits_behind_those_that_are_known() -> None:
    network = fake_network({}, {"priority": 1}, {"priority": 2})
    network.publish_state("a", State.UNKNOWN, NOTHING)
    network.publish_state("c", State.DOWN, HEAD)
    assert order(network, TIP) == "bac"


@pytest.mark.parametrize("state", [state for state in State if state is not State.WRONG_CHAIN])
def test_while_the_prober_is_silent_its_word_does_not_count(state: State) -> None:
    network = fake_network({}, {"priority": 1}, {"priority": 2})
    network.publish_state("a", state, 3)
    network.publish_state("b", State.WRONG_CHAIN, HEAD)
    silence(network)
    for need in (READ, TIP):
        assert chosen(network, need) == "a"
        assert order(network, need) == "ac"
        assert not network.view().is_worth_waiting(need, [], network.clock())


def test_breaker_and_quota_keep_calls_away_until_no_other_upstream_is_left() -> None:
    network = fake_network({}, {"priority": 1}, {"priority": 2})
    for silent in (False, True):
        if silent:
            silence(network)
        network.fail("a", 5)
        network["b"].cool_down(network.clock())
        assert chosen(network, READ) == "c"
        assert order(network, READ) == "cab"


@given(st.lists(st.sampled_from(State), min_size=1, max_size=6), st.booleans(), st.booleans())
def test_wrong_chain_is_never_called(states: list[State], tip: bool, believed: bool) -> None:
    network = fake_network(*[{}] * len(states))
    for upstream, state in zip(network.upstreams, states, strict=True):
        network.publish_state(upstream.name, state, HEAD)
    if not believed:
        silence(network)
    for slot in (None, *range(len(states))):
        chosen_order = order(network, Requirements("eth_call", tip=tip, slot=slot))
        assert not any(network[name].status.state == State.WRONG_CHAIN for name in chosen_order)


# --- The tip -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "chosen_order"), [(HEAD - 1, False), (HEAD, True), (HEAD + 1, True), (NOTHING, True), (0, False)]
)
def test_tip_is_requested_only_from_those_at_the_floor_or_not_known(head: int, chosen_order: bool) -> None:
    network = fake_network({}, {"priority": 1})
    network.publish_state("a", State.UP, head)
    network.publish_state("b", State.WRONG_CHAIN)
    assert (chosen(network, TIP) == "a") is chosen_order
    assert chosen(network, READ) == "a"
    assert (order(network, TIP) == "a") is chosen_order, "not even as the last resort"


def test_one_that_is_down_may_show_the_tip_as_the_last_resort_unless_it_was_behind() -> None:
    network = fake_network({}, {})
    network.publish_state("a", State.DOWN, HEAD - 1)
    network.publish_state("b", State.DOWN, HEAD)
    assert order(network, TIP) == "b"


@pytest.mark.parametrize(
    ("need", "state", "head", "tried", "behind"),
    [
        (TIP, State.UP, HEAD - 1, "", True),
        (TIP, State.UNKNOWN, HEAD - 1, "", True),
        (TIP, State.UP, HEAD - 1, "a", False),
        (TIP, State.DOWN, HEAD - 1, "", False),
        (TIP, State.LAGGING, HEAD - 9, "", False),
        (TIP, State.UP, HEAD, "", False),
        (TIP, State.UP, NOTHING, "", False),
        (READ, State.UP, HEAD - 1, "", False),
        (Requirements("trace_x", tip=True), State.UP, HEAD - 1, "", False),
        (Requirements("eth_call", tip=True, slot=1), State.UP, HEAD - 1, "", False),
    ],
)
def test_it_is_worth_waiting_for_one_in_rotation_that_is_behind(
    need: Requirements, state: State, head: int, tried: str, behind: bool
) -> None:
    network = fake_network({"deny_methods": ("trace_*",)}, {})
    network.publish_state("a", state, head)
    network.publish_state("b", State.DOWN, HEAD)
    assert network.view().is_worth_waiting(need, [network[name] for name in tried], network.clock()) is behind


# --- Old state ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("oldest", "head", "wants"),
    [
        (HEAD, HEAD, False),
        (HEAD - RECENT_BLOCKS, HEAD, False),
        (HEAD - RECENT_BLOCKS - 1, HEAD, True),
        (0, HEAD, True),
        (0, NOTHING, False),
        (HEAD + 5, HEAD, False),
    ],
)
def test_state_is_old_when_pruned_nodes_may_have_dropped_it(oldest: int, head: int, wants: bool) -> None:
    assert wants_archive(oldest, head) is wants


def test_old_state_is_requested_from_archives_first_and_then_of_the_others() -> None:
    network = fake_network({"archive": False}, {"archive": False}, {"priority": 5}, {"priority": 6})
    assert order(network, READ) == "abcd"
    assert order(network, OLD) == "cdab"
    assert order(network, Requirements("trace_filter", tip=True, oldest=5)) == "cdab"
    assert order(network, Requirements("eth_call", oldest=HEAD - 3)) == "abcd"


def test_without_an_archive_old_state_is_requested_from_the_cheaper_upstream_in_rotation() -> None:
    network = fake_network({"archive": False}, {"archive": False}, {"archive": False})
    network.answer("a", 0.1)
    network.answer("b", 0.05)
    network.publish_state("c", State.DOWN)
    assert order(network, OLD) == "bac"


# --- Lists and pins ----------------------------------------------------------------------------------------


def test_lists_of_an_upstream_bind_also_the_last_resort() -> None:
    network = fake_network({"deny_methods": ("eth_call",)}, {"priority": 1, "allow_methods": ("eth_call",)})
    assert order(network, READ) == "b"
    assert order(network, Requirements("eth_chainId")) == "a"
    network.publish_state("a", State.DOWN)
    network.publish_state("b", State.DOWN)
    assert order(network, READ) == "b"


@pytest.mark.parametrize("state", [State.UP, State.DOWN, State.LAGGING])
def test_what_only_one_knows_is_requested_from_that_one_alone(state: State) -> None:
    network = fake_network({}, {}, {"priority": 3})
    network.publish_state("c", state, 5)
    assert order(network, Requirements("eth_getFilterChanges", slot=2)) == "c"
    assert order(network, Requirements("eth_getFilterChanges", slot=9)) == ""


@pytest.mark.parametrize(
    ("need", "tried", "more"),
    [
        (READ, "", True),
        (READ, "a", True),
        (READ, "ab", False),
        (Requirements("trace_x"), "a", False),
        (Requirements("eth_call", slot=0), "a", False),
    ],
)
def test_view_has_others_that_might_be_called(need: Requirements, tried: str, more: bool) -> None:
    network = fake_network({}, {"deny_methods": ("trace_*",)}, {})
    network.publish_state("b", State.DOWN)
    network.publish_state("c", State.WRONG_CHAIN)
    assert network.view().has_others(need, [network[name] for name in tried]) is more


# --- At one look ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("priorities", "fit"), [((0,), "a"), ((0, 1), "a"), ((1, 0), "b"), ((0, 1, 1), "a")])
def test_view_chooses_among_those_of_the_best_priority(priorities: tuple[int, ...], fit: str) -> None:
    network = fake_network(*({"priority": each} for each in priorities))
    network.answer(fit, 5.0)
    view = network.view()
    for scope in (Scope(Holds.NEVER), Scope(Holds.NEVER, tip=True)):
        found = view.first("eth_call", scope, network.clock(), chances(0.9))
        assert found is network[fit], "however slow it is"


DENYING: Settings = {"deny_methods": ("eth_call",)}


@pytest.mark.parametrize(
    ("upstreams", "heads", "scope", "fit"),
    [
        ([{}], [NOTHING], Scope(Holds.NEVER, tip=True), "a"),
        ([{}], [HEAD - 1], Scope(Holds.NEVER, tip=True), ""),
        ([{}, {}], [HEAD, HEAD], Scope(Holds.NEVER, tip=True), "b"),
        ([{}, {}], [HEAD, HEAD - 1], Scope(Holds.NEVER, tip=True), "a"),
        ([{}, {}], [NOTHING, HEAD - 1], Scope(Holds.NEVER, number=HEAD), "a"),
        ([{}, {}], [NOTHING, HEAD - 1], Scope(Holds.NEVER, number=HEAD - 1), "b"),
        ([DENYING], [HEAD], Scope(Holds.NEVER), ""),
        ([DENYING], [HEAD], Scope(Holds.NEVER, tip=True), ""),
        ([{}, DENYING], [HEAD, HEAD], Scope(Holds.NEVER), "a"),
        ([{}, DENYING], [HEAD - 1, HEAD], Scope(Holds.NEVER, tip=True), ""),
    ],
)
def test_view_chooses_the_cheapest_that_has_the_block_and_takes_the_method(
    upstreams: list[Settings], heads: list[int], scope: Scope, fit: str
) -> None:
    network = fake_network(*upstreams)
    network.status.publish(HEAD, NOTHING, changed=True)
    for name, head, seconds in zip("ab", heads, (0.2, 0.1), strict=False):
        network.publish_state(name, head=head)
        network[name].ewma = seconds
    view = network.view()
    found = view.first("eth_call", scope, network.clock(), chances())
    assert (found.name if found else "") == fit


def test_view_does_not_choose_the_only_upstream_while_its_breaker_is_open() -> None:
    network = fake_network({})
    network.fail("a", 5)
    view = network.view()
    assert view.first("eth_call", Scope(Holds.NEVER), network.clock(), chances()) is None


# Seconds, calls under way, weight.
@pytest.mark.parametrize(
    ("a", "b", "cheaper"),
    [
        ((0.10, 0, 1), (0.10, 0, 1), "a"),
        ((0.10, 0, 1), (0.15, 0, 1), "a"),
        ((0.15, 0, 1), (0.10, 0, 1), "b"),
        ((0.10, 1, 1), (0.18, 0, 1), "b"),
        ((0.18, 0, 1), (0.10, 1, 1), "a"),
        ((0.10, 0, 1), (0.15, 0, 2), "b"),
        ((0.15, 0, 2), (0.10, 0, 1), "a"),
        ((0.00, 1, 1), (0.00, 0, 1), "b"),
        ((0.00, 0, 1), (0.00, 1, 1), "a"),
    ],
)
def test_of_two_the_fast_and_the_slow_path_choose_the_cheaper(
    a: tuple[float, int, int], b: tuple[float, int, int], cheaper: str
) -> None:
    network = fake_network({"weight": a[2]}, {"weight": b[2]})
    for name, (seconds, in_flight, _) in (("a", a), ("b", b)):
        network[name].ewma, network[name].in_flight = seconds, in_flight
    view = network.view()
    assert view.first("eth_call", Scope(Holds.NEVER), network.clock(), chances()) is network[cheaper]
    assert chosen(network, READ) == cheaper


members = st.fixed_dictionaries(
    {
        "priority": st.sampled_from([0, 0, 0, 1]),
        "weight": st.sampled_from([1, 1, 2]),
        "archive": st.booleans(),
        "deny_methods": st.sampled_from([(), (), (), ("eth_call",)]),
        "allow_methods": st.sampled_from([(), (), (), ("eth_call",), ("eth_getLogs",)]),
    }
)
conditions = st.fixed_dictionaries(
    {
        "state": st.sampled_from([State.UP, State.UP, State.UP, State.UNKNOWN, State.LAGGING, State.WRONG_CHAIN]),
        "head": st.sampled_from([HEAD, HEAD, HEAD - 1, HEAD - 5, NOTHING]),
        "seconds": st.sampled_from([0.0, 0.01, 0.01, 0.5]),
        "in_flight": st.sampled_from([0, 0, 1, 3]),
        "failures": st.sampled_from([0, 0, 0, 5]),
        "spared": st.sampled_from([False, False, False, True]),
    }
)
scopes = st.builds(
    Scope,
    st.just(Holds.NEVER),
    st.booleans(),
    st.sampled_from([None, None, 5, HEAD - 3, HEAD, HEAD + 1, HEAD + 2]),
    st.sampled_from([None, 5, HEAD - RECENT_BLOCKS - 1, HEAD - RECENT_BLOCKS, HEAD - RECENT_BLOCKS + 1]),
    state=st.booleans(),
    # Whose state is read is named by its number.
).filter(lambda scope: scope.number is not None or scope.oldest is None or not scope.state)


@settings(max_examples=5 * settings().max_examples)
@given(
    st.lists(st.tuples(members, conditions), min_size=1, max_size=4),
    scopes,
    st.sampled_from([HEAD - 1, HEAD, HEAD + 1]),
    st.sampled_from([0.0, 0.5, 1.5]),
    st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
)
def test_fast_path_chooses_as_the_slow_path_does(
    made_of: list[tuple[Settings, Settings]], scope: Scope, shown: int, later: float, chance: tuple[float, float]
) -> None:
    network = fake_network(*(each for each, _ in made_of))
    network.status.publish(HEAD, NOTHING, changed=True)
    network.status.observe_head(shown)
    for name, (_, condition) in zip("abcd", made_of, strict=False):
        network.publish_state(name, condition["state"], condition["head"])
        if condition["seconds"]:
            network.answer(name, condition["seconds"])
        network.fail(name, condition["failures"])
        if condition["spared"]:
            network[name].cool_down(network.clock())
        for _ in range(condition["in_flight"]):
            network[name].started()
    network.clock.advance(later)
    now = network.clock()
    view = network.view()
    found = view.first("eth_call", scope, now, chances(*chance))
    need = Requirements(
        "eth_call", tip=scope.tip, oldest=scope.oldest if scope.state else None, number=scope.number
    )
    assert found is view.choose(need, [], now, chances(*chance))
