"""The doctor: it reports each disagreement exactly, nothing else, and changes nothing."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import event
from tests.ledger.harness import FREE, Harness, entry, identity, segment_bytes

from tollgate.core.entries import encode, pack, read_counted
from tollgate.core.invoices import Invoice, draw
from tollgate.core.logs import LogFilter
from tollgate.core.months import end_of, start_of
from tollgate.core.pricing import MILLION, Price
from tollgate.core.usage import TeamMonth
from tollgate.ledger.doctor import Check, check_spool, examine
from tollgate.ledger.segments import FRAME_BYTES, HEADER_BYTES, frame
from tollgate.store import ledger_shared, sqlite
from tollgate.store.base import StoreUnavailable
from tollgate.store.ledger_facts import LedgerFacts, read_only

MONTH = "2026-11"
DAY = 86_400.0
PRICE = Price(free_requests=FREE, micros_per_million=MILLION)
MISSING = "usage 1, invoices 0 requests (+1); usage 1, invoices 0 billable requests (+1)"
ALL = ["spool", "logs", "blocks", "usage", "tokens", "invoices", "clock"]


def final(used: TeamMonth) -> Invoice:
    return draw(used, used.team_id, PRICE, issued_at=1.0)


@pytest.fixture
def used(harness: Harness) -> Harness:
    """Two teams with usage in two months, the first of which is closed, with a late record in the second."""
    harness.segment(1, entry("a"), entry("b", "ok", "rate_limited"), entry("c", "node_error", team="team_2"))
    harness.collect()
    close(harness, MONTH)
    harness.wait_until(end_of(MONTH) + 3 * DAY)
    harness.segment(2, entry("late"), *(entry(f"d{n}", at=harness.now) for n in range(5)))
    harness.collect()
    return harness


def close(harness: Harness, month: str) -> None:
    async def work() -> None:
        book = sqlite.open_accountbook(harness.url)
        assert await book.close_month(month, harness.now, final) is not None
        await book.close()

    asyncio.run(work())


def look(harness: Harness) -> dict[str, Check]:
    ledger = LedgerFacts(read_only(harness.folder / "ledger.db"))
    try:
        return {check.name: check for check in examine(harness.spool, ledger, harness.now)}
    finally:
        ledger.close()


def wrong(harness: Harness) -> dict[str, tuple[str, ...]]:
    return {name: check.differences for name, check in look(harness).items() if not check.ok}


def test_an_empty_ledger_passes(harness: Harness) -> None:
    assert wrong(harness) == {}
    assert list(look(harness)) == ALL


def test_a_used_ledger_passes_and_lists_what_was_checked(used: Harness) -> None:
    assert wrong(used) == {}
    assert {name: check.looked_at for name, check in look(used).items()} == {
        "spool": "0 segments, 0 records wait for the collector",
        "logs": "against usage, 2026-11 to 2026-12",
        "blocks": "blocks and records of logs",
        "usage": "against months of teams, 3",
        "tokens": "against months of tokens and domains, 2",
        "invoices": "2 final ones, 1 closed months",
        "clock": "the ledger was last written at 2026-12-04T00:00:00Z",
    }


def test_a_closed_month_without_billable_calls_passes(harness: Harness) -> None:
    harness.segment(1, entry("a", "rate_limited"))
    harness.collect()
    close(harness, MONTH)
    assert wrong(harness) == {}


def test_checking_changes_nothing(used: Harness) -> None:
    used.segment(3, entry("waits"))

    def print_of(path: Path) -> tuple[str, str]:
        return path.name, hashlib.sha256(path.read_bytes()).hexdigest()

    files = [used.folder / "ledger.db", *sorted(used.spool.iterdir())]
    used.close()
    before = [print_of(path) for path in files]
    look(used)
    assert [print_of(path) for path in files] == before
    assert used.files() == [path.name for path in files[1:]]


# ---- the spool


def test_backlog_of_the_collector_is_counted_and_passes(used: Harness) -> None:
    used.segment(3, entry("x"), entry("y"))
    assert wrong(used) == {}
    assert look(used)["spool"].looked_at == "1 segments, 2 records wait for the collector"


def test_a_torn_end_passes(used: Harness) -> None:
    used.put("3.seg", segment_bytes(3, [entry("x"), entry("y")])[:-5])
    assert look(used)["spool"] == Check("spool", "1 segments, 1 records wait for the collector")


def test_a_partly_read_segment_passes(used: Harness) -> None:
    first = segment_bytes(3, [entry("x")])
    used.sql("INSERT INTO segments VALUES (?, ?, 0, 0)", identity(3), len(first))
    used.segment(3, entry("x"), entry("y"))
    assert look(used)["spool"] == Check("spool", "1 segments, 1 records wait for the collector")


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        (HEADER_BYTES + 1, "it was read to byte 25, where no record ends"),
        (100_000, "it was read to byte 100000, but its records end at "),
    ],
)
def test_a_mark_that_fits_no_record_is_reported(used: Harness, offset: int, words: str) -> None:
    used.sql("INSERT INTO segments VALUES (?, ?, 0, 0)", identity(3), offset)
    used.segment(3, entry("x"), entry("y"))
    (found,) = wrong(used)["spool"]
    assert words in found
    waiting = 0 if offset > HEADER_BYTES + 1 else 2
    assert look(used)["spool"].looked_at == f"1 segments, {waiting} records wait for the collector"


def test_a_segment_that_vanished_before_its_end_is_reported(used: Harness) -> None:
    used.sql("INSERT INTO segments VALUES (?, 100, 0, 0)", identity(7))
    assert wrong(used) == {"spool": (f"segment {identity(7).hex()} is gone before it was read to its end",)}


def test_damage_is_reported_with_the_records_before_it(used: Harness) -> None:
    data = bytearray(segment_bytes(3, [entry("x"), entry("y"), entry("z")]))
    middle = len(segment_bytes(3, [entry("x")])) + FRAME_BYTES + 3
    data[middle] ^= 0xFF
    used.put("3.seg", bytes(data))
    used.put("4.damaged", b"")
    used.put("5.seg", b"TGSP")
    found = wrong(used)["spool"]
    assert len(found) == 3
    assert found[0].startswith("3.seg: the checksum of the record at byte ")
    assert found[0].endswith("; 1 records before that wait")
    assert found[1:] == (
        "5.seg: it has no header",
        "4.damaged was put aside because it is damaged: its last records are not counted",
    )
    assert look(used)["spool"].looked_at == "2 segments, 1 records wait for the collector"


def test_a_segment_that_is_finished_while_we_look_is_not_missed(used: Harness) -> None:
    # Its file is in the first listing; by the time the ledger is read it is collected and deleted.
    used.segment(3, entry("x"))

    class Meanwhile(LedgerFacts):
        def read(self) -> Any:
            used.collect()
            return super().read()

    ledger = Meanwhile(read_only(used.folder / "ledger.db"))
    assert all(check.ok for check in examine(used.spool, ledger, used.now))
    ledger.close()


def test_a_segment_that_comes_and_goes_while_we_look_is_not_missed(used: Harness) -> None:
    class Meanwhile(LedgerFacts):
        def read(self) -> Any:
            used.sql("INSERT INTO segments VALUES (?, 100, 0, 0)", identity(9))
            facts = super().read()
            used.sql("UPDATE segments SET done = 1 WHERE id = ?", identity(9))
            return facts

    ledger = Meanwhile(read_only(used.folder / "ledger.db"))
    assert all(check.ok for check in examine(used.spool, ledger, used.now))
    ledger.close()


def test_sums_of_a_ledger_that_is_written_meanwhile_are_of_one_moment(used: Harness) -> None:
    engine = read_only(used.folder / "ledger.db")
    ledger = LedgerFacts(engine)
    before = ledger.read()
    used.segment(3, entry("meanwhile", at=used.now))
    rows: list[int] = []

    def collect(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "FROM segments" in statement and not rows:
            rows.append(used.collect())

    event.listen(engine, "after_cursor_execute", collect)
    assert ledger.read() == before
    assert rows == [1]
    after = ledger.read()
    assert after.marks.keys() - before.marks.keys() == {identity(3)}
    assert after.logs == after.usage != before.usage
    ledger.close()


def test_spool_check_alone() -> None:
    assert check_spool([], [], []) == Check("spool", "0 segments, 0 records wait for the collector")


# ---- the ledger


def tamper(harness: Harness, statement: str) -> None:
    """Change what triggers refuse to change."""
    for (name,) in harness.sql("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
        harness.sql(f"DROP TRIGGER {name}")
    harness.sql(statement)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (
            "DELETE FROM shared_blocks WHERE day = '20261115'",
            {
                "logs": (
                    "team_1 2026-11: logs 0, usage 3 requests (-3); logs 0, usage 2 billable requests (-2)",
                    "team_2 2026-11: logs 0, usage 1 requests (-1); logs 0, usage 1 billable requests (-1)",
                )
            },
        ),
        (
            "UPDATE usage_new SET lines = json_set(lines, '$.team_1[0][2]', 5) WHERE hour = 498984",
            {
                "logs": ("team_1 2026-12: logs 3, usage 5 µUSD (-2)",),
                "usage": ("team_1 2026-12: usage 5, months 3 µUSD (+2)",),
            },
        ),
        (
            "UPDATE months SET requests = requests - 1, cost = cost + 7 WHERE month = '2026-12'",
            {"usage": ("team_1 2026-12: usage 6, months 5 billable requests (+1); usage 3, months 10 µUSD (-7)",)},
        ),
        (
            "DELETE FROM months WHERE team_id = 'team_2'",
            {"usage": ("team_2 2026-11: usage 1, months 0 billable requests (+1)",)},
        ),
        (
            "INSERT INTO months VALUES ('team_9', '2026-12', 0, 0, 0, 0)",
            {"usage": ("team_9 2026-12: is in months alone, with all counts 0",)},
        ),
        (
            "INSERT INTO source_months VALUES ('tok_1', '2026-12', 93)",
            {"tokens": ("tok_1 2026-12: usage 6, months of tokens 99 billable requests (-93)",)},
        ),
        (
            "DELETE FROM invoices WHERE team_id = 'team_2'",
            {"invoices": (f"team_2 2026-11: {MISSING}",)},
        ),
    ],
)
def test_where_and_by_how_much_two_differ(
    used: Harness, statement: str, expected: dict[str, tuple[str, ...]]
) -> None:
    tamper(used, statement)
    assert wrong(used) == expected


def test_a_closed_month_that_was_opened_again_is_reported(used: Harness) -> None:
    tamper(used, "DELETE FROM closed_months")
    found = wrong(used)["invoices"]
    assert "team_1 2026-11: there is a final invoice, but the month is open" in found


@pytest.mark.parametrize(("cents", "difference"), [(0, 10_000), (1, 0), (3, -20_000)])
def test_lines_that_do_not_add_up_are_reported(used: Harness, cents: int, difference: int) -> None:
    (document,) = used.sql("SELECT document FROM invoices WHERE team_id = 'team_1'")[0]
    changed = msgspec.json.decode(document)
    changed["lines"][0]["amount"] += 10_000
    changed["total_cents"] += cents
    tamper(used, "SELECT 1")
    used.sql("UPDATE invoices SET document = ? WHERE team_id = 'team_1'", msgspec.json.encode(changed).decode())
    words = f"team_1 2026-11: the lines of TG-2026-11-1 differ from its total by {difference} µUSD"
    assert wrong(used) == ({"invoices": (words,)} if difference else {})


def test_months_with_dropped_logs_are_skipped(used: Harness) -> None:
    used.collector()
    store = used.store()
    assert store.drop_days("20261201") == ["20261115"]
    assert wrong(used) == {}
    assert look(used)["logs"].looked_at == "against usage, 2026-12 to 2026-12"
    # January is not kept whole when its first days are gone.
    used.wait_until(start_of("2027-01") + 2 * DAY)
    used.segment(8, entry("jan", at=used.now))
    used.collect()
    assert store.drop_days("20270102") == ["20261204"]
    assert look(used)["logs"].looked_at == "against usage, no month is kept whole"
    used.wait_until(start_of("2027-02"))
    used.segment(9, entry("feb", at=used.now))
    used.collect()
    assert look(used)["logs"].looked_at == "against usage, 2027-02 to 2027-02"
    tamper(used, "UPDATE usage_new SET lines = json_set(lines, '$.team_1[0][1]', 9) WHERE month = '2027-02'")
    assert set(wrong(used)) == {"logs", "usage"}


def test_damaged_record_is_named_and_its_neighbours_are_counted_and_shown(harness: Harness) -> None:
    damaged = read_counted(encode(entry("y")))
    broken = pack((damaged.at, damaged.subject, 3, "no details"))
    harness.put("1.seg", segment_bytes(1, [entry("x")]) + frame(broken, encode(entry("z"))))
    harness.collect()
    assert wrong(harness) == {
        "blocks": ("day 20261115, team_1, row 2: Expected `bytes | array`, got `str` - at `$[3]`",)
    }
    assert shown(harness) == [("z", "ok"), ("", "ok"), ("x", "ok")], "what was counted of it is shown"


def test_damaged_data_is_named_and_blocks_beside_it_are_shown(harness: Harness) -> None:
    for number, name in enumerate("xyz", 1):
        harness.segment(number, entry(name))
        harness.collect()
    (data,) = harness.sql("SELECT data FROM shared_blocks WHERE id = 2")[0]
    harness.sql("UPDATE shared_blocks SET data = ? WHERE id = 2", data[:-6] + b"\xff\xff" + data[-4:])
    found = wrong(harness)
    assert [words.partition(":")[0] for words in found["blocks"]] == ["day 20261115, team_1, rows 2 to 2"]
    assert found["logs"] == (
        "team_1 2026-11: logs 2, usage 3 requests (-1); logs 2, usage 3 billable requests (-1)",
    )
    assert shown(harness) == [("z", "ok"), ("x", "ok")]


def test_damage_in_the_blocks_of_a_day_is_named_and_the_other_blocks_are_counted(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_shared, "MAX_COMMITS", 1)
    for number in (1, 2):
        harness.segment(number, entry("x"), entry("y"), entry("z", team="team_2"))
        harness.collect()
        store = harness.store()
        while store.join():
            pass
    assert wrong(harness) == {}
    (data,) = harness.sql("SELECT data FROM data_20261115 WHERE id = 2")[0]
    harness.sql("UPDATE data_20261115 SET data = ? WHERE id = 2", data[:-6] + b"\xff\xff" + data[-4:])
    found = wrong(harness)
    assert [words.partition(":")[0] for words in found["blocks"]] == [
        "day 20261115, team_1, rows 3 to 4",
        "day 20261115, team_2, rows 2 to 2",
    ]
    assert [words.partition(";")[0] for words in found["logs"]] == [
        "team_1 2026-11: logs 2, usage 4 requests (-2)",
        "team_2 2026-11: logs 1, usage 2 requests (-1)",
    ]


def test_shared_block_whose_parts_cannot_be_read_is_named_and_the_others_are_counted(harness: Harness) -> None:
    for number, name in enumerate("xyz", 1):
        harness.segment(number, entry(name))
        harness.collect()
    harness.sql("UPDATE shared_blocks SET parts = x'c1' WHERE id = 2")
    found = wrong(harness)
    assert [words.partition(":")[0] for words in found["blocks"]] == ["day 20261115, shared block 2"]
    assert found["logs"] == (
        "team_1 2026-11: logs 2, usage 3 requests (-1); logs 2, usage 3 billable requests (-1)",
    )


def shown(harness: Harness) -> list[tuple[str, str]]:
    async def work() -> list[tuple[str, str]]:
        book = sqlite.open_logbook(harness.url, look_seconds=60.0)
        rows = (await book.older(LogFilter("team_1"), 100, 100)).entries
        await book.close()
        return [(row.request_id, row.outcome) for row in rows]

    return asyncio.run(work())


def test_clock_far_beyond_the_ledger_is_reported(used: Harness) -> None:
    assert wrong(used) == {}
    used.now += 40 * DAY
    ((words,),) = wrong(used).values()
    assert words.startswith("the clock says 2027-01-13T00:00:00Z, and jumped by more than 3 days: no month is")


@pytest.mark.parametrize("content", [b"this is no database\n" * 100, b""])
def test_another_kind_of_file_in_its_place_is_reported(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ledger.db").write_bytes(content)
    ledger = LedgerFacts(read_only(tmp_path / "ledger.db"))
    with pytest.raises(StoreUnavailable, match="The ledger cannot be read: "):
        ledger.read()
    ledger.close()


def test_a_folder_with_odd_letters_is_found(tmp_path: Path, harness: Harness) -> None:
    folder = tmp_path / "a b?c#d%e"
    folder.mkdir()
    harness.close()
    (folder / "ledger.db").write_bytes((harness.folder / "ledger.db").read_bytes())
    ledger = LedgerFacts(read_only(folder / "ledger.db"))
    assert ledger.read().usage == {}
    ledger.close()
