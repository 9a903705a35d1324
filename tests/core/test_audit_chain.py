"""The chain of an audit log: what was changed, removed or inserted afterwards shows."""

from __future__ import annotations

import hashlib
import json

import pytest
from msgspec.structs import replace

from tollgate.core.audit_chain import (
    START,
    AuditChain,
    Line,
    chain_of,
    fault_of,
    is_authentic,
    line_of,
    linked,
    shown,
)
from tollgate.core.people import AuditEntry

KEY = b"k" * 32


def chained(count: int) -> list[AuditEntry]:
    chain, entries = AuditChain("team_1", 0.0), []
    for number in range(1, count + 1):
        made = AuditEntry(
            f"aud_{number}", 1_763_200_000.123456 + number, "token.create", "Ann Ø", team_id="team_1"
        )
        entry, chain = linked(made, chain, KEY)
        entries.append(entry)
    assert (chain.count, chain.hash) == (count, entries[-1].hash)
    return entries


def faults(entries: list[AuditEntry]) -> list[str]:
    before: Line | None = None
    found = []
    for line in map(shown, entries):
        found += [fault] if (fault := fault_of(line, before)) else []
        before = line
    return found


def test_first_entry_follows_on_nothing_and_each_other_one_on_the_one_before() -> None:
    first, second, third = chained(3)
    assert (first.number, first.previous) == (1, START)
    assert (second.number, second.previous) == (2, first.hash)
    assert (third.number, third.previous) == (3, second.hash)
    assert faults([first, second, third]) == []


def test_hash_is_made_as_the_documentation_shows() -> None:
    for entry in chained(2):
        line = json.loads(line_of(entry))
        given = line.pop("hash")
        text = json.dumps(line, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert hashlib.sha256(text.encode()).hexdigest() == given
    # One that was written down: exports of years ago must still fit.
    assert chained(1)[0].hash == "6efe1b309cd1799979e9c5c9ca04a1e989b878f517c66bc428b691d5688d0ae3"


def test_entries_of_no_team_have_a_chain_of_their_own() -> None:
    assert (chain_of(None), chain_of("team_1")) == ("service", "team_1")


@pytest.mark.parametrize("name", sorted({*AuditEntry.__struct_fields__} - {"created_at", "mac"}))
def test_change_of_any_member_shows(name: str) -> None:
    entries = chained(3)
    value = getattr(entries[1], name)
    entries[1] = replace(entries[1], **{name: value + 7 if isinstance(value, int) else f"{value}x"})
    assert faults(entries)


def test_change_of_the_time_shows() -> None:
    entries = chained(3)
    entries[1] = replace(entries[1], created_at=entries[1].created_at + 0.001)
    assert faults(entries) == ["entry 2: its content was changed"]


def test_entry_written_anew_with_its_hash_does_not_fit_the_next() -> None:
    first, second, third = chained(3)
    forged, _ = linked(replace(second, actor="eve"), AuditChain("team_1", 0.0, 1, first.hash), KEY)
    assert faults([first, forged, third]) == ["entry 3: it does not follow on entry 2"]


def test_missing_entries_show_unless_they_are_the_oldest() -> None:
    entries = chained(4)
    assert faults([entries[0], *entries[2:]]) == ["entry 3: it comes after entry 1, others are missing"]
    assert faults(entries[2:]) == []


def test_inserted_entry_shows() -> None:
    first, second = chained(2)
    forged, _ = linked(replace(second, actor="eve"), AuditChain("team_1", 0.0, 1, first.hash), KEY)
    assert faults([first, forged, second]) == ["entry 2: it comes after entry 2, others are missing"]


def test_first_entry_that_claims_another_before_it_shows() -> None:
    first, *_ = chained(1)
    forged, _ = linked(replace(first, actor="eve"), AuditChain("team_1", 0.0, 0, "f" * 64), KEY)
    assert faults([forged]) == ["entry 1: entries before it are gone"]


def test_entry_after_one_without_a_number_shows() -> None:
    _, second = chained(2)
    fault = fault_of(shown(second), {"number": None, "hash": second.previous})
    assert fault == "entry 2: it comes after entry None, others are missing"


def test_entry_that_was_written_without_the_key_shows_though_its_chain_fits() -> None:
    first, second = chained(2)
    forged, _ = linked(replace(second, actor="eve"), AuditChain("team_1", 0.0, 1, first.hash), b"another key")
    assert faults([first, forged]) == []
    assert [is_authentic(each, KEY) for each in (first, second, forged)] == [True, True, False]
    # The code of one entry is none for another.
    assert not is_authentic(replace(first, mac=second.mac), KEY)


def test_export_has_no_code() -> None:
    assert "mac" not in shown(chained(1)[0])
