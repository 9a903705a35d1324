"""Records as the spool keeps them: what a worker writes is what the collector reads."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.api.logs import MAX_ATTEMPTS_KEPT, AttemptVerdict
from tollgate.core import blocks
from tollgate.core.entries import (
    MAX_CALLS,
    MAX_METHOD_BYTES,
    MAX_TEXT_BYTES,
    AttemptEntry,
    CallEntry,
    Entry,
    Subject,
    attempts_of,
    decode,
    encode,
    pack,
    pack_sizes,
    read_counted,
    read_subject,
)
from tollgate.core.pricing import OwnPrice
from tollgate.ledger import segments
from tollgate.ledger.segments import MAX_RECORD_BYTES

text = st.text(st.characters(codec="utf-8"), max_size=40)
sizes = st.integers(0, 2**63 - 1)
codes = st.none() | st.integers(-(2**63), 2**63 - 1)
attempts = st.integers(0, 1) | st.lists(
    st.builds(AttemptEntry, text, sizes, sizes, st.sampled_from(AttemptVerdict), sizes), max_size=MAX_ATTEMPTS_KEPT
).map(tuple)
calls = st.builds(CallEntry, text, text, codes, sizes) | st.builds(
    CallEntry, text, text, codes, sizes, text, attempts, text
)
entries = st.builds(
    Entry,
    at=st.floats(0, 2e9),
    team_id=text,
    source_id=text,
    network=text,
    source_name=text,
    status=st.integers(100, 599),
    stands_for=st.integers(1, 2**53),
    cap=st.none() | sizes,
    price=st.none() | st.builds(OwnPrice),
    payer=text,
    calls=st.lists(calls, max_size=5).map(tuple),
    duration_micros=sizes,
    request_bytes=sizes,
    request_id=st.binary(max_size=128),
    upstream=text,
    attempts=attempts,
    cache=text,
    address=text,
    agent=st.binary(max_size=256),
    origin=st.binary(max_size=256),
)

USUAL: dict[str, Any] = {
    "at": 1.5, "team_id": "team_1", "source_id": "tok_1", "network": "eth/mainnet", "source_name": "ci",
    "status": 200, "stands_for": 1, "cap": 70, "price": None, "payer": "acc_1",
    "calls": [("eth_call", "ok", None, 7)],
    "duration_micros": 3, "request_bytes": 4, "request_id": b"rid", "upstream": "n0", "attempts": 1,
    "cache": "miss", "address": "192.0.2.7", "agent": b"curl", "origin": b"o",
}  # fmt: skip


def entry(values: dict[str, Any]) -> Entry:
    return Entry(**{**values, "calls": tuple(CallEntry(*call) for call in values["calls"])})


def test_format_of_version_2_is_pinned() -> None:
    """The version is that of segments and of blocks, which hold records: a change needs a new one of both."""
    assert (segments.VERSION, blocks.VERSION) == (2, 2)
    caller = ("team_1", "tok_1", "eth/mainnet", "ci", 200, 1, 70)
    rest = (4, b"rid", "n0", 1, "miss", "192.0.2.7", b"curl", b"o")
    for own, calls, details in (
        (None, [("eth_call", "ok", None, 7)], [(None, 7)]),
        ((None, 5), [("m", "node_error", 3, 7, "n1", 0, "hit")], [(3, 7, "n1", 0, "hit")]),
    ):
        price = OwnPrice(*own) if own else None
        subject = msgspec.msgpack.encode((*caller, [call[:2] for call in calls], own, "acc_1"))
        record = encode(entry({**USUAL, "calls": calls, "price": price}))
        assert record == msgspec.msgpack.encode((1.5, subject, 3, details, *rest))
    tried = [["n1", 0, 70_000, 4, 503], ["n0", 70_001, 90_000, 1]]
    kept = decode(encode(entry({**USUAL, "attempts": tried}))).attempts
    assert kept == (
        AttemptEntry("n1", 0, 70_000, AttemptVerdict.STATUS, 503),
        AttemptEntry("n0", 70_001, 90_000, AttemptVerdict.ANSWERED),
    )
    assert msgspec.msgpack.decode(pack_sizes([1, 258])) == b"\0\0\0\1\0\0\1\2"


@given(entries)
def test_entry_is_read_as_it_was_written(entry: Entry) -> None:
    assert decode(encode(entry)) == entry


def test_sizes_alone_are_the_details_of_a_batch_that_went_one_way() -> None:
    calls = [("eth_call", "ok"), ("eth_chainId", "ok")]
    at, subject, duration, _, *rest = msgspec.msgpack.decode(encode(entry({**USUAL, "calls": calls})))
    sizes = msgspec.msgpack.decode(pack_sizes([7, 2**32 - 1]))
    batch = decode(pack((at, subject, duration, sizes, *rest)))
    assert batch.calls == (
        CallEntry("eth_call", "ok", None, 7, "n0", 1, "miss"),
        CallEntry("eth_chainId", "ok", None, 2**32 - 1, "n0", 1, "miss"),
    )
    assert (batch.upstream, batch.attempts, batch.cache) == ("", 0, "bypass")
    for torn in (sizes[:-1], sizes + b"\0"):
        with pytest.raises(ValueError, match="torn"):
            decode(pack((at, subject, duration, torn, *rest)))


def test_only_attempt_takes_one_byte_and_follows_from_the_rest() -> None:
    records = [encode(entry({**USUAL, "attempts": kept})) for kept in (0, 1)]
    assert len(records[0]) == len(records[1])
    for outcome, verdict in (
        ("ok", AttemptVerdict.ANSWERED),
        ("node_error", AttemptVerdict.NODE_ERROR),
        ("upstream_timeout", AttemptVerdict.OTHER),
    ):
        assert attempts_of(1, "n0", 9_000, outcome) == (AttemptEntry("n0", 0, 9_000, verdict),)
    assert attempts_of(0, "", 9_000, "ok") == ()


def test_verdicts_are_stored_by_number_and_unknown_ones_are_other() -> None:
    assert {verdict.value: verdict.label for verdict in AttemptVerdict} == {
        0: "other", 1: "answered", 2: "hedge_won", 3: "hedge_lost", 4: "status", 5: "node_error", 6: "timeout",
        7: "quota", 8: "out_of_step", 9: "connection", 10: "invalid", 11: "too_large", 12: "busy", 13: "cancelled",
    }  # fmt: skip
    later = {**USUAL, "attempts": [("n0", 0, 5, 99)]}
    assert decode(encode(entry(later))).attempts == (AttemptEntry("n0", 0, 5, AttemptVerdict.OTHER),)


def test_omitted_fields_are_none() -> None:
    least = Entry(
        at=0.0, team_id="t", source_id="s", network="n", source_name="", status=0, calls=(CallEntry("m", "ok"),)
    )
    usual = CallEntry("m", "ok", None, 0, None, 0, "")
    assert least == Entry(
        at=0.0, team_id="t", source_id="s", network="n", source_name="", status=0, stands_for=1, cap=None,
        price=None, calls=(usual,), duration_micros=0, request_bytes=0, request_id=b"", upstream="", attempts=0,
        cache="bypass", address="", agent=b"", origin=b"",
    )  # fmt: skip
    counted = read_counted(encode(least))
    assert decode(pack((0.0, counted.subject, 0, [[]]))) == least


def test_greatest_values_are_kept() -> None:
    values = {"at": 253_402_300_799.0, "stands_for": 2**53, "calls": [("m", "ok", -(2**63), 2**63 - 1)]}
    assert decode(encode(entry(USUAL | values))).calls[0].code == -(2**63)
    values["calls"] = [("m", "ok", 2**63 - 1, 0)]
    assert decode(encode(entry(USUAL | values))).calls[0].code == 2**63 - 1


def test_counting_reads_the_beginning_alone() -> None:
    record = encode(entry(USUAL))
    counted = read_counted(record)
    assert (counted.at, counted.duration_micros) == (1.5, 3)
    assert read_subject(counted.subject) == Subject(
        "team_1", "tok_1", "eth/mainnet", "ci", 200, 1, 70, (("eth_call", "ok"),), None, "acc_1"
    )
    assert read_counted(pack((1.5, counted.subject, 3, "no details", "what follows is not looked at"))) == counted


def test_equal_calls_of_a_caller_have_one_subject() -> None:
    """Whatever differs from call to call is outside of it, so that each subject is decoded once."""
    other = {**USUAL, "at": 2.5, "calls": [("eth_call", "ok", None, 99)], "duration_micros": 8, "request_id": b"x"}
    one, two = (read_counted(encode(entry(values))) for values in (USUAL, other))
    assert one.subject == two.subject
    assert len({read_counted(encode(entry({**USUAL, "cap": cap}))).subject for cap in (None, 0, 70)}) == 3


def test_price_and_payer_of_a_team_are_part_of_the_subject() -> None:
    plain, own = (
        read_counted(encode(entry({**USUAL, "price": price}))).subject for price in (None, OwnPrice(7, 5))
    )
    assert read_subject(own).price == OwnPrice(7, 5)
    assert plain == pack(("team_1", "tok_1", "eth/mainnet", "ci", 200, 1, 70, [("eth_call", "ok")], None, "acc_1"))


def test_field_that_a_later_version_adds_is_passed_over() -> None:
    record = encode(entry(USUAL))
    assert decode(pack((*msgspec.msgpack.decode(record), "later"))) == decode(record)


@pytest.mark.parametrize(
    "changed",
    [
        {"at": -1.0},
        {"at": float("nan")},
        {"at": float("inf")},
        {"at": 1e18},
        {"at": 253_402_300_800.0},
        {"stands_for": 2**53 + 1},
        {"duration_micros": -1},
        {"at": "now"},
        {"status": -1},
        {"request_bytes": 2**63},
        {"stands_for": 0},
        {"cap": -1},
        {"price": (-1, 5)},
        {"price": (0, 2**63)},
        {"cap": 2**63},
        {"team_id": b"\xff"},
        {"calls": [("m", "ok", 2**63, 0)]},
        {"agent": "text"},
        {"attempts": -1},
        {"attempts": 2},
        {"attempts": [("n0", 0, 5, 1)] * 9},
        {"attempts": [("n0", -1, 5, 1)]},
        {"attempts": [("n0", 0, 5)]},
    ],
)
def test_what_the_store_could_not_keep_is_no_entry(changed: dict[str, object]) -> None:
    decode(encode(entry(USUAL)))
    with pytest.raises(msgspec.MsgspecError):
        decode(encode(entry(USUAL | changed)))


def test_record_with_fewer_details_than_calls_is_no_entry() -> None:
    counted = read_counted(encode(entry(USUAL)))
    with pytest.raises(ValueError, match="details"):
        decode(pack((counted.at, counted.subject, 3, [])))


def test_largest_record_fits_into_a_segment() -> None:
    """A batch, whose calls have upstreams and attempts of their own. No request takes longer than an hour."""
    attempts = [("u" * 64, 3_600_000_000, 3_600_000_000, 99, 999)] * MAX_ATTEMPTS_KEPT
    call = (
        "\U0001f300" * MAX_METHOD_BYTES, "o" * 40, -(2**63), 2**63 - 1, "u" * 64, attempts, "coalesced"
    )  # fmt: skip
    largest = {
        **USUAL, "request_id": b"r" * 128, "team_id": "t" * 32, "source_id": "s" * 32,
        "source_name": "n" * 253 * 4, "network": "w" * 65, "calls": [call] * MAX_CALLS, "stands_for": 2**53,
        "cap": 2**63 - 1,
        "request_bytes": 2**63 - 1, "duration_micros": 2**63 - 1, "upstream": "", "attempts": 0,
        "address": "a" * 45, "agent": b"u" * MAX_TEXT_BYTES, "origin": b"o" * MAX_TEXT_BYTES,
    }  # fmt: skip
    assert len(encode(entry(largest))) <= MAX_RECORD_BYTES
