"""One upstream under watch: what each answer changes of what is known of it."""

from __future__ import annotations

import asyncio

import pytest
from tests.gateway.fakes import run_pending
from tests.gateway.prober.nodes import BASE, BROKEN, PROBE, REFUSED, FakeListener, ProbedNetwork, block

from tollgate.core.health import NOTHING, State, UpstreamVerdict
from tollgate.gateway.prober.prober import ProbeReport, Wanted
from tollgate.gateway.prober.upstream_monitor import (
    AGAIN_SECONDS,
    CHAIN_ID_SECONDS,
    FETCH_FAILURES,
    SELDOM,
    UpstreamMonitor,
)
from tollgate.settings.model import HealthSettings
from tollgate.shm import metrics

NOW = 1_000.0


def monitored(network: ProbedNetwork | None = None) -> UpstreamMonitor:
    """An upstream that was not probed yet."""
    network = network or ProbedNetwork(BASE)
    return UpstreamMonitor(network.upstream("a"), network.nodes["a"], network.upstream_row("a"), NOW)


def report(word: str = BASE, seconds: float = 0.01, **more: object) -> ProbeReport:
    """An answer."""
    return ProbeReport(block(word), NOW, seconds, **more)  # type: ignore[arg-type]


def answer(each: UpstreamMonitor, word: str = BASE, now: float = NOW, **more: object) -> None:
    """Take in an answer to a probe that queried everything."""
    each.reported(report(word, **more), Wanted(chain_id=True), each.status.head, now)  # type: ignore[arg-type]


def test_nothing_is_known_of_a_new_one() -> None:
    each = monitored()
    assert (each.joined, each.is_resting, each.doubts_feed, each.has_feed) == (False, False, False, False)
    assert (each.fetch_failures, each.retreats, each.calls, each.seconds) == (0, 0, 0, 0.0)
    assert (each.since, each.came_at, each.next_at, each.used_at) == (NOW, NOW, NOW, NOW)
    assert each.verdict == UpstreamVerdict(State.UNKNOWN, "not probed yet")
    assert each.sight.head == NOTHING


def test_finality_and_syncing_are_queried_in_one_probe_of_four_each_in_turns() -> None:
    each = monitored()
    answer(each, chain_id="0x1")
    wanted = [each.wanted(NOW) for _ in range(2 * SELDOM)]
    assert [one.finalized for one in wanted] == [True, False, False, False] * 2
    assert [one.syncing for one in wanted] == [False, False, True, False] * 2
    assert not any(one.chain_id for one in wanted)


def test_one_that_is_syncing_is_queried_each_time_until_it_is_done() -> None:
    each = monitored()
    answer(each, syncing=True)
    assert all(each.wanted(NOW).syncing for _ in range(SELDOM))
    answer(each)
    assert each.sight.syncing, "not queried, so not changed"
    answer(each, syncing=False)
    assert not each.sight.syncing


def test_before_the_first_answer_and_while_it_is_down_everything_is_queried() -> None:
    each = monitored()
    assert all(each.wanted(NOW).chain_id and each.wanted(NOW).syncing for _ in range(SELDOM))
    answer(each, chain_id="0x1")
    each.failed(BROKEN)
    assert not each.wanted(NOW).chain_id, "one failure is not the end"
    each.failed(BROKEN)
    assert each.wanted(NOW).chain_id


@pytest.mark.parametrize(("chain_id", "seconds"), [("0x1", CHAIN_ID_SECONDS), (None, AGAIN_SECONDS)])
def test_chain_id_is_queried_again_sooner_where_none_was_reported(chain_id: str | None, seconds: float) -> None:
    each = monitored()
    answer(each, chain_id=chain_id)
    assert not each.wanted(NOW + seconds - 0.1).chain_id
    assert each.wanted(NOW + seconds).chain_id


def test_chain_id_and_finality_that_were_not_queried_stay() -> None:
    each = monitored()
    answer(each, chain_id="0x1", finalized=0)
    assert (each.sight.chain_id, each.sight.finalized) == ("0x1", 0)
    answer(each)
    assert (each.sight.chain_id, each.sight.finalized) == ("0x1", 0)


def test_an_answer_after_a_refused_connection_counts_and_a_later_failure_is_the_first() -> None:
    each = monitored()
    each.failed(REFUSED)
    down = [each.sight.down]
    answer(each)
    down.append(each.sight.down)
    each.failed(BROKEN)
    assert [*down, each.sight.down] == [True, False, False]


def test_duration_of_probes_is_smoothed_from_the_first() -> None:
    each = monitored()
    answer(each, seconds=0.1)
    assert each.seconds == pytest.approx(0.1)
    answer(each, seconds=0.2)
    assert each.seconds == pytest.approx(0.12)


def test_feed_is_doubted_when_a_probe_shows_a_head_that_it_did_not_announce() -> None:
    each = monitored()
    answer(each)
    assert not each.doubts_feed, "the first head of all"
    answer(each)
    assert not each.doubts_feed, "the same head"
    answer(each, BASE + "a")
    assert each.doubts_feed


def test_a_head_that_is_announced_twice_is_news_once() -> None:
    each = monitored()
    assert not each.announced(block(BASE), NOW), "not probed yet"
    answer(each)
    assert not each.announced(block(BASE), NOW), "known from the probe"
    assert not each.announced(block(BASE[:-1]), NOW), "older"
    assert each.announced(block(BASE + "a"), NOW + 1)
    assert not each.announced(block(BASE + "a"), NOW + 2)
    assert each.announced(block(BASE + "b"), NOW + 3), "another block of that number"
    assert each.sight.queried_at == NOW + 3


def test_an_announced_head_ends_the_doubts_about_its_feed() -> None:
    each = monitored()
    answer(each)
    answer(each, BASE + "a")
    each.listener = FakeListener("eth", each.upstream, lambda _: None)
    feeds = [each.has_feed]
    assert not each.announced(block(BASE + "a"), NOW)
    feeds.append(each.has_feed)
    each.listener.listening = False
    assert [*feeds, each.has_feed] == [False, True, False]


def test_a_worker_that_saw_more_than_an_announced_head_is_believed() -> None:
    each = monitored()
    answer(each)
    each.status.observe_head(105)
    assert each.announced(block(BASE + "a"), NOW)
    assert each.status.head == 105


def test_older_blocks_are_taken_in_from_the_newest_and_end_where_they_do_not_fit() -> None:
    each = monitored()
    answer(each)
    other = BASE[:97] + "x"
    each.fetched([block(other, 97), block(BASE, 98)], whole=True)
    assert sorted(each.chain.hashes) == [97, 98, 99]
    assert each.chain.hashes[97] == BASE[:98], "what its newer block names as its parent"


def test_one_whose_blocks_cannot_be_had_three_times_in_a_row_is_not_called_for_them() -> None:
    each = monitored()
    for _ in range(FETCH_FAILURES):
        assert each.comparable
        each.fetched([], whole=False)
    assert not each.comparable
    each.fetched([], whole=True)
    assert (each.comparable, each.fetch_failures) == (True, 0)


def test_answers_below_its_highest_head_are_counted_until_it_is_back() -> None:
    each = monitored()
    for word, retreats in ((BASE, 0), (BASE[:-1], 1), (BASE[:-2], 2), (BASE[:-1], 3), (BASE, 0), (BASE + "a", 0)):
        answer(each, word)
        assert each.retreats == retreats


@pytest.mark.parametrize(("ancestor", "kept"), [(49, NOTHING), (50, 50), (51, 50)])
def test_finality_above_the_ancestor_of_a_reorganisation_is_forgotten(ancestor: int, kept: int) -> None:
    each = monitored()
    answer(each, finalized=50)
    answer(each, BASE[:-1])
    each.network_went_back(ancestor)
    assert (each.sight.finalized, each.retreats) == (kept, 0)
    answer(each, BASE[:-1])
    assert each.retreats == 0, "its head is missing nothing now"


def test_time_of_a_state_begins_with_the_state() -> None:
    each = monitored()
    assert each.update_verdict(UpstreamVerdict(State.UP), NOW + 1)
    assert not each.update_verdict(UpstreamVerdict(State.UP, behind=2), NOW + 2)
    assert (each.since, each.verdict.behind, each.status.state) == (NOW + 1, 2, State.UP)


async def test_closing_ends_everything_that_it_has_under_way() -> None:
    network = ProbedNetwork(BASE)
    network.apply(network.upstream("a", ws_url="ws://a"), at_start=True)
    await network.tick()
    network.monitor.sweep()
    assert network.nodes["a"].swept == 1
    network.monitor.close()
    assert (network.listeners[0].stopped, network.nodes["a"].closed) == (True, True)


async def test_closing_cancels_a_probe_that_is_under_way() -> None:
    network = ProbedNetwork(BASE)
    network.nodes["a"].gate = asyncio.Event()
    await network.start()
    probing = network["a"].probing
    assert probing is not None
    assert not probing.done()
    network.monitor.close()
    await run_pending()
    assert probing.cancelled()


# ---- how they are watched


@pytest.mark.parametrize(
    ("blocks", "fetched"), [(1, []), (2, []), (3, [1]), (6, [1, 2, 3, 4]), (12, list(range(3, 11)))]
)
async def test_some_blocks_below_the_first_head_are_fetched_but_never_the_first_of_all(
    blocks: int, fetched: list[int]
) -> None:
    network = await ProbedNetwork("g" * blocks).start()
    assert sorted(network.nodes["a"].fetched) == fetched
    assert network.row.head == blocks - 1


async def test_of_one_that_rests_one_block_below_the_first_head_is_fetched() -> None:
    network = ProbedNetwork(BASE)
    network.in_use = False
    await network.start()
    await network.tick(0.01)
    assert network["a"].is_resting
    assert network.nodes["a"].fetched == [98]


async def test_one_that_hides_its_blocks_from_the_start_is_judged_without_them_after_three_attempts() -> None:
    network = ProbedNetwork(BASE + "abc", BASE + "xyz", BASE + "abc")
    network.nodes["b"].hides = range(1_000)
    await network.start()
    rounds = 0
    while network["b"].comparable:
        rounds += 1
        await network.tick(PROBE)
    assert network["b"].fetch_failures == FETCH_FAILURES
    assert len(network.nodes["b"].fetched) == 2 * FETCH_FAILURES


async def test_probes_are_counted_by_how_they_ended() -> None:
    network = await ProbedNetwork(BASE).start()
    await network.rounds(2)
    network.nodes["a"].fault = BROKEN
    await network.rounds()
    assert network.counted(metrics.UPSTREAM_PROBES, "a", "ok") == 3
    assert network.counted(metrics.UPSTREAM_PROBES, "a", "failed") == 1


async def test_calls_that_probing_takes_are_shown() -> None:
    network = await ProbedNetwork(BASE).start()
    assert network.monitor.calls_a_minute(network["a"]) == 60 / PROBE * 1.5 + 1
    network["a"].is_resting = True
    assert network.monitor.calls_a_minute(network["a"]) == round(60 / HealthSettings().idle_probe_seconds + 1, 1)
