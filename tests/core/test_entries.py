"""Records as the spool keeps them: what a worker writes is what the collector reads."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.core.entries import LONGEST_METHOD, LONGEST_TEXT, MAX_CALLS, CallEntry, Entry, decode, encode
from tollgate.ledger.segments import MAX_RECORD_BYTES

text = st.text(st.characters(codec="utf-8"), max_size=40)
sizes = st.integers(0, 2**63 - 1)
calls = st.builds(CallEntry, text, text, st.none() | st.integers(-(2**63), 2**63 - 1), sizes)
entries = st.builds(
    Entry,
    st.floats(0, 2e9),
    st.binary(max_size=128),
    text,
    text,
    text,
    text,
    st.integers(100, 599),
    st.lists(calls, max_size=5).map(tuple),
    sizes,
    sizes,
    text,
    st.integers(0, 100),
    text,
    st.binary(max_size=256),
    st.binary(max_size=256),
    st.integers(1, 2**53),
)


@given(entries)
def test_entry_is_read_as_it_was_written(entry: Entry) -> None:
    assert decode(encode(entry)) == entry


def test_tuples_of_the_hot_path_are_read_as_an_entry() -> None:
    record = (1.5, b"rid", "team_1", "tok_1", "ci", "eth/mainnet", 200, [("eth_call", "ok", None, 7)])
    assert decode(encode(record)) == Entry(
        1.5, b"rid", "team_1", "tok_1", "ci", "eth/mainnet", 200, (CallEntry("eth_call", "ok", None, 7),)
    )


def test_field_that_a_later_version_adds_is_passed_over() -> None:
    whole: tuple[object, ...] = (1.5, b"", "t", "s", "n", "w", 200, [], 1, 2, "u", 1, "a", b"", b"", 1, "hit")
    assert decode(encode((*whole, "later"))) == decode(encode(whole))


@pytest.mark.parametrize(
    "changed",
    [
        {"at": -1.0},
        {"at": float("nan")},
        {"at": float("inf")},
        {"at": 1e18},
        {"at": "now"},
        {"status": -1},
        {"request_bytes": 2**63},
        {"stands_for": 0},
        {"calls": ()} | {"team_id": b"\xff"},
        {"calls": [("m", "ok", 2**63, 0)]},
    ],
)
def test_what_the_store_could_not_keep_is_no_entry(changed: dict[str, object]) -> None:
    fields: dict[str, object] = {
        "at": 1.0, "request_id": b"r", "team_id": "t", "source_id": "s", "source_name": "n", "network": "w",
        "status": 200, "calls": (), "request_bytes": 1, "duration_micros": 1, "upstream": "", "attempts": 1,
        "address": "", "agent": b"", "origin": b"", "stands_for": 1,
    }  # fmt: skip
    decode(encode(tuple(fields.values())))
    with pytest.raises(msgspec.MsgspecError):
        decode(encode(tuple((fields | changed).values())))


def test_largest_record_fits_into_a_segment() -> None:
    call = ("\U0001f300" * LONGEST_METHOD, "o" * 40, -(2**63), 2**63 - 1)
    largest = (
        1.5, b"r" * 128, "t" * 32, "s" * 32, "n" * 253 * 4, "w" * 65, 200, [call] * MAX_CALLS,
        2**63 - 1, 2**63 - 1, "u" * 64, 2**31, "a" * 45, b"u" * LONGEST_TEXT, b"o" * LONGEST_TEXT, 2**53,
    )  # fmt: skip
    assert len(encode(largest)) <= MAX_RECORD_BYTES
