"""What a batch of records becomes: rows, usage and costs, which agree to the single request."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.stored_blocks import batch_of

from tollgate.api.logs import AttemptVerdict
from tollgate.api.usage import Plan
from tollgate.core import posting
from tollgate.core.blocks import OWN_ENTRIES, LogBlock, OpenBlock, read_facts
from tollgate.core.entries import BILLABLE, AttemptEntry, CallEntry, Entry, encode, read_counted
from tollgate.core.latencies import bucket_of
from tollgate.core.logs import LogFilter
from tollgate.core.months import month_of
from tollgate.core.posting import MonthKey, Opening, Posting, Rules, post
from tollgate.core.pricing import MILLION, MonthUse, OwnPrice, Price, charge
from tollgate.core.pricing import cost as cost_of
from tollgate.core.shared_blocks import Stored, sorted_out
from tollgate.core.subjects import Subjects
from tollgate.processes.collector import billing_month

NOVEMBER = datetime.fromisoformat("2026-11-15T12:00:00Z").timestamp()
EDGE = datetime.fromisoformat("2026-12-01T00:00:00Z").timestamp()
PAID = Price(free_requests=0, micros_per_million=MILLION)
"""A micro-dollar for each request."""
KNOWN = {"eth_call", "eth_chainId"}


def entry(*outcomes: str, at: float = NOVEMBER, team: str = "team_1", source: str = "tok_1", **more: Any) -> Entry:
    """A request with a call for each outcome."""
    calls = more.pop("calls", None) or tuple(CallEntry("eth_call", outcome) for outcome in outcomes or ("ok",))
    usual = {"request_id": b"rid", "source_name": "ci", "network": "eth/mainnet", "status": 200}
    return Entry(at=at, team_id=team, source_id=source, calls=calls, **{**usual, **more})


def posted(
    entries: Iterable[Entry],
    price: Price | dict[str, Price] = PAID,
    before: dict[MonthKey, int] | None = None,
    *,
    first: int = 1,
    closed: frozenset[str] = frozenset(),
) -> Posting:
    batch = batch_of(entries, lambda _, method: method if method in KNOWN else "other")
    numbers = dict.fromkeys(batch.teams(), first)
    rules = Rules(lambda team: price if isinstance(price, Price) else price[team], billing_month)
    months = {
        key: MonthUse(count, total, total, min(count, rules.price(key[0]).free_requests))
        for key, count in (before or {}).items()
        for total in [rules.price(key[0]).total(count)]
    }
    return post(batch, Opening(numbers, months, closed), rules)


def rows(posting: Posting) -> list[dict[str, Any]]:
    """The log rows of all blocks, newest last."""
    found: list[dict[str, Any]] = []
    for block in (*posting.blocks, *small_blocks(posting)):
        opened = OpenBlock(block.first_no, block.entries, block.records, read_facts(block.facts), block.data)
        older = opened.older(LogFilter(block.team_id), block.first_no + block.entries)
        found += [msgspec.structs.asdict(row) for row in older][::-1]
    return found


def small_blocks(posting: Posting) -> list[LogBlock]:
    """The parts of shared blocks, as they become blocks."""
    found = []
    for shared in posting.shared:
        stored = Stored(shared.entries, shared.records, shared.parts, shared.content.data)
        blocks = list(sorted_out([(stored.content(), 0.0)]))
        assert blocks == list(sorted_out([(shared.content, 0.0)])), "what is remembered is what is stored"
        found += [block for block, _ in blocks]
    return found


def months(posting: Posting) -> dict[MonthKey, list[int]]:
    """Billable requests and cost."""
    return {key: sums[:2] for key, sums in posting.months.items()}


def column(posting: Posting, name: str) -> list[Any]:
    return [row[name] for row in rows(posting)]


# --- Subjects ----------------------------------------------------------------------------------------------


def test_subject_counts_its_errors_and_bills_every_request_it_represents() -> None:
    subjects = Subjects(lambda _, method: method)
    (found,) = subjects.read([read_counted(encode(entry("ok", "node_error", "rate_limited", stands_for=3)))])
    assert (found.entries, found.errors, found.billable) == (3, 2, 6)


def test_subjects_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [read_counted(encode(entry("ok", source=f"tok_{n}", network=f"eth/{n}"))) for n in range(3)]
    size = len(records[0].subject)
    monkeypatch.setattr("tollgate.core.subjects.MAX_SUBJECTS", 2)
    monkeypatch.setattr("tollgate.core.subjects.MAX_SUBJECT_BYTES", size)
    subjects = Subjects(lambda _, method: method)
    known = []
    for record in records:
        subjects.read([record])
        known.append((len(subjects._known), len(subjects._latencies)))
    assert known == [(1, 1), (2, 2), (1, 1)]
    long = read_counted(encode(entry("ok", source="tok_10", network="eth/0")))
    assert len(long.subject) == size + 1
    subjects.read([long])
    assert list(subjects._known) == [records[2].subject], "a long one is not kept"


@pytest.mark.parametrize("count", [3, 20], ids=["a few", "many"])
def test_records_of_a_new_team_are_numbered_from_one_and_their_errors_counted(count: int) -> None:
    batch = batch_of([entry("ok"), *[entry("node_error", "ok", "rate_limited")] * count], lambda _, method: method)
    made = post(batch, Opening({}, {}, frozenset()), Rules(lambda _: PAID, billing_month))
    assert (made.entries, made.next_no) == (1 + 3 * count, {"team_1": 2 + 3 * count})
    assert [shared.errors for shared in made.shared] == [2 * count]
    assert rows(made)[0]["seq"] == 1
    (lines,) = made.latencies.values()
    assert len(lines["team_1"]) == 3, "by outcome"


@pytest.mark.parametrize("times", [1, 20], ids=["a few", "many"])
def test_every_call_counts_once_in_the_histogram_of_its_network_and_outcome(times: int) -> None:
    """One hour comes again, and all but one of a team's kinds of records as well."""
    requests = [
        entry(*outcomes, at=NOVEMBER + 3_600 * hour, team=team, network=network, duration_micros=micros)
        for hour in (0, 1, 0)
        for team in ("team_1", "team_2")
        for outcomes, network, micros in (
            (["ok"], "eth/mainnet", 10), (["ok"], "eth/mainnet", 10), (["ok"], "eth/mainnet", 900),
            (["ok", "ok", "timeout"], "eth/mainnet", 900), (["ok", "ok", "timeout"], "eth/mainnet", 5_000),
            (["ok"], "eth/sepolia", 70_000), (["ok", "ok"], "eth/holesky", 900),
        )
        for _ in range(times)
    ]  # fmt: skip
    for networks in (("eth/mainnet", "eth/sepolia", "eth/holesky"), ("eth/mainnet",), ("eth/sepolia",)):
        some = [each for each in requests if each.network in networks]
        expected = Counter(
            (int(each.at) // 3_600, each.team_id, each.network, call.outcome, bucket_of(each.duration_micros))
            for each in some
            for call in each.calls
        )
        found = {
            (hour, team, network, outcome, bucket): count
            for hour, teams in posted(some).latencies.items()
            for team, histograms in teams.items()
            for network, outcome, buckets in histograms.values()
            for bucket, count in buckets.items()
        }
        assert found == expected


# --- Rows --------------------------------------------------------------------------------------------------


def test_row_shows_everything_that_a_log_shows() -> None:
    attempts = (
        AttemptEntry("n1", 0, 700, AttemptVerdict.TIMEOUT),
        AttemptEntry("n0", 700, 1_400, AttemptVerdict.ANSWERED),
    )
    request = entry(
        calls=(CallEntry("eth_call", "node_error", -32000, 77),),
        status=200,
        request_bytes=120,
        duration_micros=1_500,
        upstream="n0",
        attempts=attempts,
        address="192.0.2.7",
        agent=b"curl/8",
        origin=b"https://app.example.com",
    )
    assert rows(posted([request], first=42)) == [
        {
            "seq": 42, "at": NOVEMBER, "request_id": "rid", "team_id": "team_1", "source_id": "tok_1",
            "source_name": "ci", "address": "192.0.2.7", "agent": "curl/8", "origin": "https://app.example.com",
            "network": "eth/mainnet", "method": "eth_call", "status": 200, "outcome": "node_error", "code": -32000,
            "request_bytes": 120, "response_bytes": 77, "duration_micros": 1_500, "upstream": "n0",
            "attempts": attempts, "cache": "bypass", "billable": True, "cost": 1, "month": "2026-11",
            "stands_for": 1,
        }
    ]  # fmt: skip


def test_each_call_of_a_batch_is_a_row_with_its_share_of_the_bytes() -> None:
    posting = posted([entry("ok", "node_error", "method_not_allowed", request_bytes=301), entry()], first=10)
    assert column(posting, "seq") == [10, 11, 12, 13]
    assert column(posting, "outcome") == ["ok", "node_error", "method_not_allowed", "ok"]
    assert column(posting, "request_bytes") == [100, 100, 100, 0]


@pytest.mark.parametrize(
    ("method", "shown"),
    [
        ("eth_call", "eth_call"),
        ("m" * 100, "m" * 64),
        ("é" * 64, "é" * 32),
        ("m" + "é" * 63, "m" + "é" * 31),
        ("\U0001f300" * 64, "\U0001f300" * 16),
        ("", ""),
    ],
)
def test_method_is_cut_at_64_bytes_and_never_inside_a_character(method: str, shown: str) -> None:
    assert column(posted([entry(calls=(CallEntry(method, "ok"),))]), "method") == [shown]


def test_bytes_of_callers_become_text_whatever_they_are() -> None:
    posting = posted(
        [entry(agent=b"\xff\xfe curl\x00", origin="https://é.example".encode(), request_id=b"a-\xff")]
    )
    (row,) = rows(posting)
    assert (row["agent"], row["origin"], row["request_id"]) == (
        "\ufffd\ufffd curl\x00",
        "https://é.example",
        "a-\ufffd",
    )


def test_request_without_calls_leaves_nothing_but_its_use() -> None:
    posting = posted([msgspec.structs.replace(entry(), calls=())])
    assert (posting.entries, posting.blocks, posting.usage) == (0, [], {})
    assert posting.last_used == {"tok_1": NOVEMBER}


# --- What is billed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["ok", "node_error", "upstream_timeout"])
def test_answers_and_time_outs_of_nodes_are_billed(outcome: str) -> None:
    posting = posted([entry(outcome)])
    assert (column(posting, "billable"), column(posting, "cost")) == ([True], [1])
    assert months(posting) == {("team_1", "2026-11"): [1, 1]}


@pytest.mark.parametrize(
    "outcome",
    [
        "token_expired", "method_not_allowed", "network_not_allowed", "body_too_large", "rate_limited",
        "spending_cap", "parse_error", "invalid_request", "batch_too_large", "upstream_unavailable",
        "upstream_error", "overloaded", "internal_error",
    ],
)  # fmt: skip
def test_refusals_and_failures_are_counted_and_not_billed(outcome: str) -> None:
    posting = posted([entry(outcome), entry("ok")])
    assert (column(posting, "billable"), column(posting, "cost")) == ([False, True], [0, 1])
    assert months(posting) == {("team_1", "2026-11"): [1, 1]}
    assert billable_of_sources(posting) == {("tok_1", "2026-11"): 1}
    assert sum(requests for requests, _ in posting.usage.values()) == 2


def test_calls_of_a_batch_are_billed_each_for_itself() -> None:
    posting = posted([entry("ok", "rate_limited", "node_error", "upstream_timeout", "ok")])
    assert column(posting, "cost") == [1, 0, 1, 1, 1]
    assert months(posting) == {("team_1", "2026-11"): [4, 4]}


def test_row_of_many_refusals_counts_as_many() -> None:
    posting = posted([entry("rate_limited", status=429, stands_for=312)])
    assert (column(posting, "stands_for"), column(posting, "cost")) == ([312], [0])
    assert list(posting.usage.values()) == [[312, 0]]
    assert billable_of_sources(posting) == {}


# --- Order decides -----------------------------------------------------------------------------------------


def test_commit_order_decides_which_requests_are_free() -> None:
    price = Price(free_requests=2, micros_per_million=MILLION)
    late_first = [entry(at=NOVEMBER + 60, source="tok_late"), entry(at=NOVEMBER), entry(at=NOVEMBER - 60)]
    assert column(posted(late_first, price), "cost") == [0, 0, 1]


def test_what_was_posted_earlier_counts() -> None:
    before = {("team_1", "2026-11"): 999_999, ("team_1", "2026-10"): 5_000_000, ("team_2", "2026-11"): 5_000_000}
    assert column(posted([entry(), entry(), entry()], Price(), before), "cost") == [0, 5, 5]
    started = Price(Plan.PER_STARTED_MILLION)
    assert column(posted([entry(), entry(), entry()], started, before), "cost") == [0, 5_000_000, 0]


def test_cap_is_kept_inside_a_batch() -> None:
    assert column(posted([entry("ok", "ok", cap=3), entry("ok", "ok", cap=3)]), "cost") == [1, 1, 1, 0]


def test_cap_is_kept_from_hour_to_hour_of_a_batch() -> None:
    hours = [entry(at=NOVEMBER + 3_600 * hour, cap=3) for hour in (0, 0, 1, 1, 2)]
    assert column(posted(hours), "cost") == [1, 1, 1, 0, 0]


@pytest.mark.parametrize(("count", "made"), [(OWN_ENTRIES - 1, (0, 1)), (OWN_ENTRIES, (1, 0))])
def test_team_with_enough_rows_has_a_block_of_its_own(count: int, made: tuple[int, int]) -> None:
    posting = posted([entry()] * count)
    assert (len(posting.blocks), len(posting.shared)) == made


def test_usage_charges_what_is_billed_alone() -> None:
    usage = posted([entry("ok", "timeout"), entry("timeout")], PAID).usage
    assert {key[-1]: sums for key, sums in usage.items()} == {"ok": [1, 1], "timeout": [2, 0]}


def test_rows_of_a_large_batch_are_those_of_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [entry(*["ok", "timeout", "ok"][: n % 3 + 1], at=NOVEMBER + n) for n in range(2, 22)]
    uneven = Price(free_requests=3, micros_per_million=333_333)
    expected = posted(requests, uneven, first=7)
    assert len(expected.shared) == 1
    monkeypatch.setattr(posting, "OWN_ENTRIES", 1)
    monkeypatch.setattr(posting, "FULL_ENTRIES", 10)
    made = posted(requests, uneven, first=7)
    assert [(block.first_no, block.entries) for block in made.blocks] == [
        (7, 10), (17, 8), (25, 10), (35, 8), (43, 4),
    ]  # fmt: skip
    assert rows(made) == rows(expected)
    monkeypatch.setattr(posting, "FULL_ENTRIES", made.entries)
    assert len(posted(requests, uneven).blocks) == 1


@pytest.mark.parametrize(
    ("outcome", "price", "before", "costs"),
    [
        ("ok", Price(free_requests=9, micros_per_million=7), 0, 0),
        ("timeout", Price(free_requests=0, micros_per_million=333_333), 5, 0),
        ("ok", Price(free_requests=0, micros_per_million=0), 5, 0),
        ("ok", Price(free_requests=5, micros_per_million=2 * MILLION), 5, 2),
        ("ok", Price(free_requests=6, micros_per_million=2 * MILLION), 5, [0, 2, 2]),
        ("ok", Price(free_requests=5, micros_per_million=3 * MILLION), 5, [3, 3, 0]),
        ("ok", Price(free_requests=5, micros_per_million=500_000), 5, [0, 1, 0]),
    ],
    ids=["free", "not billed", "no price", "up to the cap", "partly free", "beyond the cap", "parts of one"],
)
def test_cost_that_all_rows_have_is_written_once(
    outcome: str, price: Price, before: int, costs: int | list[int]
) -> None:
    (shared,) = posted([entry(outcome, cap=6)] * 3, price, {("team_1", "2026-11"): before}).shared
    assert shared.content.parts["team_1"].run.costs == costs


def test_each_call_is_charged_by_the_cap_that_was_in_force_when_it_was_admitted() -> None:
    """Setting a cap frees nothing that came before; raising it or taking it away charges what lay beyond it."""
    caps = [None, 2, 2, 2, None, 0, 9, 5, 5]
    assert column(posted([entry(cap=cap) for cap in caps]), "cost") == [1, 1, 0, 0, 3, 0, 2, 0, 0]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40), st.booleans()), min_size=1, max_size=12),
    st.sampled_from([MILLION, 5 * MILLION, 333_333]),
)
def test_charged_is_the_lower_of_cap_and_price_however_often_the_cap_is_raised(
    steps: list[tuple[int, int, bool]], rate: int
) -> None:
    """Calls of one cap may be committed in one batch or several, and after each of them all is charged."""
    price = Price(free_requests=3, micros_per_million=rate)
    use, cap, calls = MonthUse(), 0, 0
    for raised, count, ends in steps:
        cap += raised
        calls += count
        if not count:
            continue
        for batch in [[entry(cap=cap)] * count] if ends else [[entry(cap=cap)]] * count:
            opening = Opening({"team_1": 1}, {("team_1", "2026-11"): use}, frozenset(), {})
            sums = post(batch_of(batch), opening, Rules(lambda _: price, billing_month)).months
            use = MonthUse(*map(sum, zip(use, sums["team_1", "2026-11"], strict=False)))
        assert (use.requests, use.cost) == (calls, min(cap, price.total(calls)))
        assert use.uncapped == price.total(calls)


def test_eleven_raises_by_one_call_forgive_nothing() -> None:
    batches = [[entry(cap=5 * raises)] * 1_000 for raises in range(1, 12)]
    costs = [sums[1] for sums in after_each(batches, Price(free_requests=0))]
    assert costs == [5] * 11
    assert after_each([*batches, [entry(cap=None)]], Price(free_requests=0))[-1][1] == 5 * 11_001 - 55


# --- Free requests of a payer ------------------------------------------------------------------------------


def after_each(batches: Sequence[list[Entry]], price: Price) -> list[list[int]]:
    """What each batch adds, which all are of one team."""
    found, use, free = [], MonthUse(), Counter[MonthKey]()
    for batch in batches:
        opening = Opening({}, {("team_1", "2026-11"): use}, frozenset(), dict(free))
        posting = post(batch_of(batch), opening, Rules(lambda _: price, billing_month))
        found.append(posting.months["team_1", "2026-11"])
        use = MonthUse(*map(sum, zip(use, found[-1], strict=False)))
        free.update(posting.free)
    return found


def test_teams_of_one_payer_share_the_free_requests() -> None:
    price = Price(free_requests=10, micros_per_million=MILLION)
    calls = [entry(team=f"team_{number}", payer="acc_1") for number in (1, 2, 3) for _ in range(6)]
    posting = posted(calls, price)
    assert [sums[1] for sums in posting.months.values()] == [0, 2, 6]
    assert [sums[3] for sums in posting.months.values()] == [6, 4, 0]
    assert posting.free == {("acc_1", "2026-11"): 10}
    assert posted([entry(team="team_4", payer="acc_2")], price).months["team_4", "2026-11"] == [1, 0, 0, 1]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), max_size=20), st.integers(0, 30))
def test_payer_pays_for_its_teams_what_one_team_would_pay(runs: list[tuple[int, int]], free: int) -> None:
    price = Price(free_requests=free, micros_per_million=MILLION)
    calls = [entry(team=f"team_{team}", payer="acc_1") for team, count in runs for _ in range(count)]
    posting = posted(calls, price)
    assert sum(sums[1] for sums in posting.months.values()) == price.total(len(calls))
    assert sum(posting.free.values()) == min(free, len(calls))


def test_teams_pay_by_their_own_prices() -> None:
    free = Price()
    posting = posted([entry(team="team_1"), entry(team="team_2")], {"team_1": PAID, "team_2": free})
    assert months(posting) == {("team_1", "2026-11"): [1, 1], ("team_2", "2026-11"): [1, 0]}


# --- Months ------------------------------------------------------------------------------------------------


def test_months_part_at_midnight_of_utc_to_the_last_moment() -> None:
    moments = [EDGE - 3_600, EDGE - 1e-6, EDGE, EDGE + 1e-6, EDGE + 3_599]
    posting = posted([entry(at=at) for at in moments], Price(free_requests=1, micros_per_million=MILLION))
    assert column(posting, "month") == ["2026-11", "2026-11", "2026-12", "2026-12", "2026-12"]
    assert column(posting, "cost") == [0, 1, 0, 1, 1], "each month has its own free requests"
    assert months(posting) == {("team_1", "2026-11"): [2, 1], ("team_1", "2026-12"): [3, 2]}


@pytest.mark.parametrize(
    ("closed", "month"),
    [
        ({}, "2026-11"),
        ({"2026-10"}, "2026-11"),
        ({"2026-11"}, "2026-12"),
        ({"2026-11", "2026-12"}, "2027-01"),
        ({"2026-09", "2026-11"}, "2026-12"),
    ],
)
def test_late_record_of_a_closed_month_is_billed_in_the_next_open_one(closed: set[str], month: str) -> None:
    posting = posted([entry()], Price(), {("team_1", month): MILLION}, closed=frozenset(closed))
    (row,) = rows(posting)
    assert (row["month"], row["cost"], row["at"]) == (month, 5, NOVEMBER)
    assert months(posting) == {("team_1", month): [1, 5]}
    assert billable_of_sources(posting) == {("tok_1", month): 1}
    (key,) = posting.usage
    assert key[:3] == ("team_1", month, int(NOVEMBER // 3600)), "its hour stays its own"


@given(st.floats(0, 4e9), st.sets(st.sampled_from(["2026-11", "2026-12", "2027-01"])))
def test_billing_month_is_open_and_no_earlier_than_the_requests_own(at: float, closed: set[str]) -> None:
    month = billing_month(at, frozenset(closed))
    assert month not in closed
    assert month >= month_of(at)
    assert month == month_of(at) or month_of(at) in closed


# --- Usage -------------------------------------------------------------------------------------------------


def test_usage_is_by_hour_source_network_method_and_outcome() -> None:
    posting = posted(
        [
            entry("ok", "ok", "node_error"),
            entry(at=NOVEMBER + 3_600),
            entry(source="dom_1"),
            entry(network="eth/sepolia"),
            entry(calls=(CallEntry("made_up_1", "ok"), CallEntry("made_up_2", "ok"))),
        ]
    )
    hour = int(NOVEMBER // 3600)
    november = ("team_1", "2026-11")
    assert posting.usage == {
        (*november, hour, "tok_1", "eth/mainnet", "eth_call", "ok"): [2, 2],
        (*november, hour, "tok_1", "eth/mainnet", "eth_call", "node_error"): [1, 1],
        (*november, hour + 1, "tok_1", "eth/mainnet", "eth_call", "ok"): [1, 1],
        (*november, hour, "dom_1", "eth/mainnet", "eth_call", "ok"): [1, 1],
        (*november, hour, "tok_1", "eth/sepolia", "eth_call", "ok"): [1, 1],
        (*november, hour, "tok_1", "eth/mainnet", "other", "ok"): [2, 2],
    }
    assert column(posting, "method")[-2:] == ["made_up_1", "made_up_2"], "logs keep the name"


def test_last_use_is_the_latest_and_a_refused_token_is_not_used() -> None:
    posting = posted(
        [
            entry(at=NOVEMBER + 5),
            entry(at=NOVEMBER),
            entry("spending_cap", status=402, source="tok_2"),
            entry("token_expired", status=401, source="tok_3"),
        ]
    )
    assert posting.last_used == {"tok_1": NOVEMBER + 5, "tok_2": NOVEMBER}


# --- Own prices --------------------------------------------------------------------------------------------


def costs_of(posting: Posting) -> list[int]:
    return [row["cost"] for row in rows(posting)]


def test_record_is_charged_by_the_price_that_it_carries_and_others_by_the_usual_one() -> None:
    dear, free = OwnPrice(0, 7 * MILLION), OwnPrice(free_requests=10)
    posting = posted([entry(), entry(price=dear), entry(price=free), entry()], Price(free_requests=1))
    assert costs_of(posting) == [0, 7, 0, 5]
    assert months(posting) == {("team_1", "2026-11"): [4, 12]}
    assert sum(line[1] for line in posting.usage.values()) == 12


def test_price_that_falls_within_a_month_does_not_raise_spending_above_the_cap() -> None:
    usual = Price(free_requests=0)
    cheap = [entry(price=OwnPrice(micros_per_million=MILLION), cap=12) for _ in range(4)]
    assert costs_of(posted([entry(cap=12), entry(cap=12), *cheap], usual)) == [5, 5, 1, 1, 0, 0]


def test_price_that_rises_within_a_month_lets_the_whole_cap_be_spent() -> None:
    dear = [entry(price=OwnPrice(micros_per_million=5 * MILLION), cap=12) for _ in range(3)]
    assert costs_of(posted([entry(cap=12)] * 4 + dear, Price(free_requests=0, micros_per_million=MILLION))) == [
        1, 1, 1, 1, 5, 3, 0,
    ]  # fmt: skip


def test_many_records_with_one_own_price_are_counted_together() -> None:
    own = OwnPrice(0, 3 * MILLION)
    posting = posted([entry(price=own) for _ in range(300)])
    assert costs_of(posting) == [3] * 300


# --- Everything at once ------------------------------------------------------------------------------------

OWN_PRICES = st.none() | st.builds(
    OwnPrice, st.none() | st.integers(0, 9), st.none() | st.sampled_from([0, 333_333, MILLION, 7 * MILLION])
)
many = st.lists(
    st.builds(
        lambda at, team, token, outcomes, cap, price: entry(
            *outcomes, at=at, team=f"team_{team}", source=f"tok_{team}_{token}",
            stands_for=1 if BILLABLE.intersection(outcomes) else 3, cap=cap, price=price,
        ),
        st.sampled_from([NOVEMBER, EDGE - 1.0, EDGE - 1e-6, EDGE, EDGE + 4_000]),
        st.integers(1, 3),
        st.integers(1, 2),
        st.lists(st.sampled_from(["ok", "node_error", "rate_limited"]), min_size=1, max_size=4),
        st.none() | st.integers(0, 20),
        OWN_PRICES,
    ),
    max_size=30,
)  # fmt: skip
prices = st.builds(
    Price, st.sampled_from(Plan), st.integers(0, 9), st.sampled_from([0, 333_333, MILLION, 5 * MILLION])
)


def in_batches(entries: Sequence[Entry], cuts: Iterable[int], price: Price) -> list[Posting]:
    """Post entries as several batches, each after the sums of the ones before."""
    postings: list[Posting] = []
    before: dict[MonthKey, MonthUse] = {}
    free: Counter[MonthKey] = Counter()
    numbers: dict[str, int] = {}
    start = 0
    for end in [*sorted(cuts), len(entries)]:
        batch = batch_of(entries[start:end])
        opening = Opening(numbers, dict(before), frozenset({"2026-10"}), dict(free))
        posting = post(batch, opening, Rules(lambda _: price, billing_month))
        for key, sums in posting.months.items():
            before[key] = MonthUse(*map(sum, zip(before.get(key, MonthUse()), sums, strict=False)))
        free.update(posting.free)
        numbers |= posting.next_no
        start = end
        postings.append(posting)
    return postings


def billable_of_sources(posting: Posting) -> dict[MonthKey, int]:
    """What usage has of tokens and domains."""
    found: Counter[MonthKey] = Counter()
    for (_, month, _, source_id, *_, outcome), (requests, _) in posting.usage.items():
        if outcome in BILLABLE:
            found[source_id, month] += requests
    return dict(found)


def by_number(postings: Iterable[Posting]) -> list[dict[str, Any]]:
    found = [row for posting in postings for row in rows(posting)]
    return sorted(found, key=lambda row: (row["team_id"], row["seq"]))


@given(many, prices, st.data())
def test_any_split_into_batches_gives_the_same_rows(
    entries: list[Entry], price: Price, data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(entries)), max_size=6))
    assert by_number(in_batches(entries, cuts, price)) == by_number(in_batches(entries, [], price))


@given(many, prices)
def test_rows_usage_months_and_tokens_agree_and_cost_what_the_plan_specifies(
    entries: list[Entry], price: Price
) -> None:
    posting = posted(entries, price)
    by_month: Counter[MonthKey] = Counter()
    cost: Counter[MonthKey] = Counter()
    by_token: Counter[MonthKey] = Counter()
    by_outcome: Counter[tuple[str, str]] = Counter()
    for row in rows(posting):
        key = (row["team_id"], row["month"])
        by_outcome[row["team_id"], row["outcome"]] += row["stands_for"]
        cost[key] += row["cost"]
        if row["billable"]:
            by_month[key] += row["stands_for"]
            by_token[row["source_id"], row["month"]] += row["stands_for"]
        else:
            assert row["cost"] == 0
    assert {key: value[:2] for key, value in posting.months.items() if value[0]} == {
        key: [requests, cost[key]] for key, requests in by_month.items()
    }
    assert billable_of_sources(posting) == dict(by_token)
    used: Counter[tuple[str, str]] = Counter()
    for (team, *_, outcome), (requests, _) in posting.usage.items():
        used[team, outcome] += requests
    assert used == by_outcome
    assert sum(line[1] for line in posting.usage.values()) == sum(cost.values())
    due: Counter[MonthKey] = Counter()
    uncapped: Counter[MonthKey] = Counter()
    counted: Counter[MonthKey] = Counter()
    for each in entries:
        for call in each.calls:
            if call.outcome in BILLABLE:
                key = (each.team_id, month_of(each.at))
                its = price if each.price is None else each.price.over(price)
                uncapped[key] += cost_of(its, counted[key], each.stands_for)
                due[key] += charge(uncapped[key], due[key], each.cap)
                counted[key] += each.stands_for
    assert {key: cost[key] for key in counted} == {key: due[key] for key in counted}
