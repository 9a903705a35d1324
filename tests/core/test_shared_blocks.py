"""Parts of a team that become one block: until there are enough rows, and as long as they follow each other."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.store.stored_blocks import batch_of

from tollgate.core import shared_blocks
from tollgate.core.blocks import VERSION, Broken, Run, written
from tollgate.core.entries import CallEntry, Entry, encode, pack
from tollgate.core.logs import LogFilter
from tollgate.core.posting import Opening, Rules, post
from tollgate.core.pricing import Price
from tollgate.core.shared_blocks import Part, SharedBlock, Stored, part_of, read_parts

# --- Writing and reading -----------------------------------------------------------------------------------


def test_format_of_version_2_is_pinned() -> None:
    """Its data has the form of a block's, and that version."""
    assert VERSION == 2
    parts = {"team_1": Part(3, Run(2, "2026-11", 5), 0, 1)}
    plain = msgspec.msgpack.encode({"team_1": (3, (2, "2026-11", 5), 0, 1)})
    assert (pack(parts), read_parts(plain)) == (plain, parts)


def entry(team: str, at: float, *methods: str) -> Entry:
    calls = tuple(CallEntry(method, "ok") for method in methods)
    return Entry(
        at=at, team_id=team, source_id="tok_1", network="eth/mainnet", source_name="ci", status=200, calls=calls
    )


def posted(*entries: Entry) -> list[SharedBlock]:
    batch = batch_of(entries)
    return post(batch, Opening({}, {}), Rules(lambda _: Price(), lambda *_: "2026-11")).shared


def stored(shared: SharedBlock, **changes: Any) -> Stored:
    made = {
        "entries": shared.entries,
        "records": shared.records,
        "parts": shared.parts,
        "data": shared.content.data,
    }
    return Stored(**{**made, **changes})


@pytest.mark.parametrize("methods", [("a",), ("a", "b")], ids=["single calls", "batches"])
def test_parts_come_together_until_a_block_has_enough_rows(
    methods: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_blocks, "SHARED_ENTRIES", 2 * len(methods) + 1)
    teams = ["team_10", "team_11", "team_1", "team_2"]
    made = posted(*[entry(team, at, *methods) for at, team in enumerate(teams, 5)], entry("team_2", 9, "c", "d"))
    assert [shared.entries for shared in made] == [3 * len(methods), len(methods) + 2]
    assert [(shared.least_at, shared.greatest_at) for shared in made] == [(5, 7), (8, 9)]
    assert part_of("team_1", made[1].parts) is None
    found = {}
    for shared in made:
        for team in teams:
            if (part := part_of(team, shared.parts)) is not None:
                found[team] = [
                    (row.seq, row.at, row.method) for row in stored(shared).opened(part).newer(LogFilter(team), 0)
                ]
    expected = {team: [(no, at, name) for no, name in enumerate(methods, 1)] for at, team in enumerate(teams, 5)}
    expected["team_2"] += [(len(methods) + 1, 9, "c"), (len(methods) + 2, 9, "d")]
    assert found == expected


def test_team_whose_name_begins_another_has_no_part() -> None:
    (shared,) = posted(entry("team_10", 5, "a"))
    assert part_of("team_1", shared.parts) is None
    assert part_of("team_10", shared.parts) == Part(1, Run(1, "2026-11", 0), 0, 1)


def test_block_is_full_with_just_enough_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_blocks, "SHARED_ENTRIES", 2)
    assert [shared.entries for shared in posted(*[entry(f"team_{n}", 5, "a") for n in range(5)])] == [2, 2, 1]


@pytest.mark.parametrize("place", [-1, 0, 1, 2])
@pytest.mark.parametrize("records", [0, 1, 2, 3])
def test_part_that_is_not_within_its_block_is_refused(place: int, records: int) -> None:
    (shared,) = posted(entry("team_1", 5, "a"), entry("team_2", 5, "a"))
    part = Part(1, Run(records, "2026-11", 0), place, records)
    broken = stored(shared, parts=pack({"team_1": part}))
    if place >= 0 < records and place + records <= 2:
        assert part.end_in(2) == place + records
        broken.opened(part)
        assert broken.content().parts == {"team_1": part}
        return
    with pytest.raises(Broken):
        broken.opened(part)
    with pytest.raises(Broken):
        broken.content()


def test_block_whose_records_have_other_rows_than_it_names_is_refused() -> None:
    (single,) = posted(entry("team_1", 5, "a"), entry("team_2", 5, "a"))
    (batches,) = posted(entry("team_1", 5, "a", "b"), entry("team_2", 5, "a"))
    payloads = [encode(entry("team_1", 5, "a", "b")), encode(entry("team_2", 5))]
    with pytest.raises(Broken, match="other rows"):
        stored(single, data=written(payloads, None)).content()
    with pytest.raises(Broken, match="other rows"):
        stored(batches, data=written(payloads, [1, 2])).content()
    other = {"team_1": Part(1, Run(1, "2026-11", 0), 0, 1)}
    with pytest.raises(Broken, match="a part has other rows"):
        stored(batches, parts=pack(other)).content()
