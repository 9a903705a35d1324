"""Rules of health, as tables and as properties."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.core import health
from tollgate.core.health import (
    NOTHING,
    HealthRules,
    SeenHead,
    Sight,
    State,
    UpstreamVerdict,
    assess,
    finality,
    given_up,
    with_head,
)

UP, DOWN, LAGGING = State.UP, State.DOWN, State.LAGGING
SYNCING, FORKED, WRONG_CHAIN, UNKNOWN = State.SYNCING, State.FORKED, State.WRONG_CHAIN, State.UNKNOWN


def sight(head: int = 100, name: str = "a", at: float = 10.0, **fields: Any) -> Sight:
    """An upstream that was probed at some time and answered at once."""
    heads = fields.pop("heads", (SeenHead(at, head),) if head != NOTHING else ())
    priority, tried = fields.pop("priority", 0), fields.pop("tried", True)
    return Sight(name, priority, tried=tried, queried_at=at, heads=heads, **fields)


def states(*sights: Sight, **rules: Any) -> list[State]:
    return [verdict.state for verdict in assess(sights, HealthRules(**rules))]


@pytest.mark.parametrize(
    ("one", "state", "reason"),
    [
        (sight(), UP, ""),
        (sight(NOTHING, tried=False), UNKNOWN, "not probed yet"),
        (sight(NOTHING, failures=1, fault="breaks off"), UNKNOWN, "breaks off"),
        (sight(NOTHING, failures=2, fault="breaks off"), DOWN, "breaks off"),
        (sight(failures=1, fault="breaks off"), UP, ""),
        (sight(failures=2, fault="breaks off"), DOWN, "breaks off"),
        (sight(failures=1, refused=True, fault="refuses connections"), DOWN, "refuses connections"),
        (sight(refused=True, fault="refuses connections"), UP, ""),
        (sight(syncing=True), SYNCING, "reports that it is syncing"),
        (sight(disagreements=2), UP, ""),
        (sight(disagreements=3), FORKED, "has another block than the others at or below 100"),
        (sight(chain_id="0x1"), UP, ""),
        (sight(syncing=True, failures=2, fault="breaks off"), DOWN, "breaks off"),
    ],
)
def test_state_of_a_single_upstream(one: Sight, state: State, reason: str) -> None:
    assert assess([one], HealthRules()) == [UpstreamVerdict(state, reason)]


# ---- chain id


@pytest.mark.parametrize(
    ("ids", "setting", "expected"),
    [
        (["0x1", "0x1", "0x2"], "", [UP, UP, WRONG_CHAIN]),
        (["0x1", "0x2", "0x2"], "", [WRONG_CHAIN, UP, UP]),
        (["0x1", "0x2", "0x2"], "0x1", [UP, WRONG_CHAIN, WRONG_CHAIN]),
        (["0x1", "0x2"], "", [UP, WRONG_CHAIN]),
        (["0x1", "", "0x2"], "", [UP, UP, WRONG_CHAIN]),
        (["", ""], "0x1", [UP, UP]),
    ],
)
def test_chain_id_is_the_setting_or_that_of_most(ids: list[str], setting: str, expected: list[State]) -> None:
    sights = [sight(chain_id=each, priority=number) for number, each in enumerate(ids)]
    assert states(*sights, chain_id=setting) == expected


def test_of_equally_many_the_first_in_priority_is_right() -> None:
    assert states(sight(chain_id="0x2", priority=5), sight(chain_id="0x1", priority=1)) == [WRONG_CHAIN, UP]


def test_wrong_chain_shows_which_one_was_expected() -> None:
    (verdict,) = assess([sight(chain_id="0x2")], HealthRules(chain_id="0x1"))
    assert verdict.reason == "reports chain id 0x2, not 0x1"


def test_a_minority_does_not_become_right_while_the_others_are_down() -> None:
    right = sight(chain_id="0x1", failures=2)
    assert states(right, right, sight(chain_id="0x2")) == [DOWN, DOWN, WRONG_CHAIN]


def test_head_of_a_wrong_chain_makes_no_upstream_lag() -> None:
    others = sight(100, chain_id="0x1"), sight(100, chain_id="0x1")
    assert states(*others, sight(9_000_000, chain_id="0x2")) == [UP, UP, WRONG_CHAIN]


# ---- lag


@pytest.mark.parametrize(("behind", "state"), [(0, UP), (5, UP), (6, LAGGING), (1_000, LAGGING)])
def test_lag_beyond_the_setting(behind: int, state: State) -> None:
    (_, verdict) = assess([sight(2_000), sight(2_000 - behind)], HealthRules(lag_blocks=5))
    assert (verdict.state, verdict.behind) == (state, behind)


def test_lag_is_reported_in_blocks() -> None:
    assert assess([sight(100), sight(80)], HealthRules())[1].reason == "20 blocks behind"


@pytest.mark.parametrize("fields", [{"failures": 2}, {"syncing": True}, {"disagreements": 1}])
def test_ignored_heads_make_no_upstream_lag(fields: dict[str, Any]) -> None:
    assert states(sight(2_000, **fields), sight(100))[1] is UP


def test_a_fast_chain_is_judged_by_what_was_known_when_the_upstream_was_called() -> None:
    # Four blocks a second: a is probed a whole second after b.
    heads = tuple(SeenHead(10.0 + step / 4, 100 + step) for step in range(5))
    ahead = sight(at=11.0, heads=heads)
    assert assess([ahead, sight(100, at=10.0)], HealthRules(lag_blocks=0))[1] == UpstreamVerdict(UP, "", 0)
    assert assess([ahead, sight(100, at=10.5)], HealthRules(lag_blocks=0))[1] == UpstreamVerdict(
        LAGGING, "2 blocks behind", 2
    )


def test_upstream_called_before_any_answer_does_not_lag() -> None:
    assert states(sight(100, at=10.0), sight(50, at=9.0)) == [UP, UP]


def test_heads_are_remembered_to_a_bound_and_standing_still_is_no_news() -> None:
    heads: tuple[SeenHead, ...] = ()
    for step in range(1_000):
        heads = with_head(heads, float(step), step // 2)
    assert len(heads) == health.REMEMBERED
    assert heads[-1] == SeenHead(998.0, 499)


# ---- the network


@pytest.mark.parametrize(
    ("reported", "head", "before", "expected"),
    [
        ([], 100, NOTHING, NOTHING),
        ([NOTHING], 100, NOTHING, NOTHING),
        ([36, 40], 100, NOTHING, 40),
        ([36], 100, 40, 40),
        ([120], 100, 40, 100),
        ([NOTHING], 100, 40, 40),
        ([0], 0, NOTHING, 0),
    ],
)
def test_finality_is_the_highest_reported(reported: list[int], head: int, before: int, expected: int) -> None:
    assert finality(reported, head, before) == expected


def test_a_lost_head_is_given_up_after_a_while_or_when_all_went_back() -> None:
    assert not given_up(10.0, 14.9, all_went_back=False)
    assert given_up(10.0, 15.0, all_went_back=False)
    assert given_up(10.0, 10.0, all_went_back=True)


# ---- properties

sights = st.builds(
    Sight,
    name=st.just("a"),
    priority=st.integers(0, 3),
    tried=st.booleans(),
    failures=st.integers(0, 3),
    refused=st.booleans(),
    chain_id=st.sampled_from(["", "0x1", "0x2"]),
    syncing=st.booleans(),
    disagreements=st.integers(0, 4),
    heads=st.lists(st.builds(SeenHead, st.floats(0, 20), st.integers(0, 50)), max_size=4).map(
        lambda heads: tuple(sorted(heads, key=lambda each: each.at))
    ),
    queried_at=st.floats(0, 20),
)


@given(st.lists(sights, max_size=6), st.integers(0, 10))
def test_every_upstream_gets_a_state_and_a_reason_unless_it_is_up(every: list[Sight], lag: int) -> None:
    verdicts = assess(every, HealthRules(lag_blocks=lag))
    assert len(verdicts) == len(every)
    for one, verdict in zip(every, verdicts, strict=True):
        assert verdict.behind >= 0
        assert not (verdict.state is UP and (not one.heads or one.down or one.syncing))
        assert (verdict.state is UP) == (verdict.reason == "") or not one.fault


@given(st.lists(sights, max_size=6))
def test_an_upstream_is_up_where_one_counts_and_agrees(every: list[Sight]) -> None:
    """Lag alone never takes all upstreams out of rotation."""
    chain_id = health.expected_chain(every, HealthRules())
    leaders = [each for each in every if health.counts(each, chain_id) and each.tried and not each.disagreements]
    if leaders and all(each.queried_at >= each.heads[-1].at for each in leaders):
        best = max(leaders, key=lambda each: each.head)
        states_of = dict(zip(map(id, every), assess(every, HealthRules(lag_blocks=50)), strict=True))
        assert states_of[id(best)].state is UP


@given(st.lists(sights, min_size=1, max_size=5), st.integers(0, 4))
def test_the_order_of_upstreams_does_not_change_states_where_chains_are_named(
    every: list[Sight], turn: int
) -> None:
    rules = HealthRules(chain_id="0x1")
    turn %= len(every)
    turned = assess([*every[turn:], *every[:turn]], rules)
    assert turned == [*assess(every, rules)[turn:], *assess(every, rules)[:turn]]
