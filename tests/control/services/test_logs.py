"""Reading request logs: pages that do not shift while rows arrive, cursors bound to a team, filters."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.control.log_harness import BASE_URL, PEPPER, LogHarness, seqs
from tests.store.log_rows import ACME, CI, DAY, NOON, RIVAL, THEIRS, WEB, entry

from tollgate.api.logs import AttemptVerdict, LogQuery
from tollgate.api.tokens import Rotation
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import InvalidInput, NoSuchTeam, NotFound, RoleNeeded
from tollgate.control.service_context import Actor
from tollgate.control.services import logs
from tollgate.control.services.logs import Cursors, LogPosition, filters_of
from tollgate.core.entries import AttemptEntry
from tollgate.core.logs import LogEntry, LogFilter
from tollgate.core.people import PERSONAL, Login
from tollgate.core.roles import Role
from tollgate.core.sealed import Seal
from tollgate.settings.model import LedgerSettings, Settings
from tollgate.store.base import StoreUnavailable


@pytest.fixture
def store(tmp_path: Path, loop: asyncio.Runner) -> Iterator[LogHarness]:
    opened = LogHarness(tmp_path, loop)
    yield opened
    opened.close()


@pytest.fixture
def short_sighted(tmp_path: Path, loop: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogHarness]:
    """Opens one block for each query, with two queries for a page."""
    ticks = itertools.count()
    opened = LogHarness(tmp_path, loop, look_seconds=1, clock=lambda: float(next(ticks)))
    monkeypatch.setattr(logs, "MAX_LOOKS", 2)
    yield opened
    opened.close()


def pages(store: LogHarness, **query: Any) -> list[list[int]]:
    """All pages; between them a second passes, a row arrives, and so does one of an ended worker."""
    found = []
    page = store.page(**query)
    while True:
        found.append(seqs(page))
        if page.next is None:
            return found
        store.ledger.now += 1
        store.ledger.commit(entry(store.ledger.now), entry(NOON - DAY), entry(store.ledger.now, WEB))
        page = store.page(**{**query, "after": page.next})


# --- Pages --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 30, 31, 1_000])
def test_every_row_of_before_the_first_page_appears_once_for_any_page_size(store: LogHarness, limit: int) -> None:
    for _ in range(10):
        store.ledger.commit(entry(NOON), entry(NOON, THEIRS), entry(NOON, WEB), entry(NOON - 60))
        store.ledger.now += DAY / 4
    there = [row.seq for row in store.ledger.rows[::-1] if row.team_id == ACME]
    found = pages(store, limit=limit)
    assert [seq for page in found for seq in page] == there
    assert [len(page) for page in found[:-1]] == [limit] * (len(found) - 1)


def test_first_page_fixes_the_start_of_since(store: LogHarness) -> None:
    store.ledger.commit(*(entry(NOON - age) for age in (61, 60, 59, 2, 1, 0)))
    found = pages(store, limit=1, since="60s")
    # Meanwhile the rows grow older than the minute that was requested.
    assert found == [[6], [5], [4], [3], [2]]


def test_since_need_not_be_given_again(store: LogHarness) -> None:
    store.ledger.commit(*(entry(NOON - age) for age in (100, 50, 0)))
    first = store.page(limit=1, since="60s")
    store.ledger.now += 30
    assert seqs(store.page(after=first.next)) == [2]


def test_since_may_be_added_to_a_list_or_changed_on_the_way(store: LogHarness) -> None:
    store.ledger.commit(*(entry(NOON - age) for age in (200, 100, 50, 0)))
    cursor = store.page(limit=1).next
    assert seqs(store.page(after=cursor)) == [3, 2, 1]
    assert seqs(store.page(after=cursor, since="60s")) == [3]
    narrow = store.page(limit=1, since="60s").next
    assert seqs(store.page(after=narrow, since="150s")) == [3, 2]


def test_filter_that_finds_little_ends_its_page_early_and_goes_on(short_sighted: LogHarness) -> None:
    for number in range(5):
        short_sighted.ledger.commit(entry(NOON, request_id=b"r%d" % number), entry(NOON, request_id=b"other"))
    assert pages(short_sighted, request_id="r0") == [[], [], [1]]


def test_request_id_is_a_filter_like_the_others(store: LogHarness) -> None:
    store.ledger.commit(*(entry(NOON, request_id=b"r%d" % (number % 3)) for number in range(9)))
    page = store.page(limit=2, request_id="r1")
    assert seqs(page) == [8, 5]
    assert seqs(store.page(limit=2, request_id="r1", after=page.next)) == [2]
    store.refused(InvalidInput, limit=2, request_id="r2", after=page.next)


def test_empty_logs(store: LogHarness) -> None:
    page = store.page()
    assert (page.rows, page.next, page.team.name) == ([], None, "acme")
    store.ledger.commit(entry(NOON))
    assert seqs(store.page(newer=page.newer)) == [1]


# --- What is newer ------------------------------------------------------------------------------------------


def test_following_starts_at_the_newest_of_the_first_page(store: LogHarness) -> None:
    store.ledger.commit(entry(NOON), entry(NOON))
    first = store.page(limit=1)
    store.ledger.commit(entry(NOON), entry(NOON, THEIRS), entry(NOON - DAY))
    # Also from a later page of the same list.
    second = store.page(limit=1, after=first.next)
    for page in (first, second):
        fresh = store.page(newer=page.newer)
        assert (seqs(fresh), fresh.next) == ([3, 4], None)
    assert seqs(store.page(newer=fresh.newer)) == []
    store.ledger.commit(entry(NOON), entry(NOON))
    one = store.page(newer=fresh.newer, limit=1)
    two = store.page(newer=one.newer, limit=1)
    assert (seqs(one), seqs(two), seqs(store.page(newer=two.newer))) == ([5], [6], [])


def test_newer_keeps_filters_and_start(store: LogHarness) -> None:
    first = store.page(since="60s", errors=True)
    store.ledger.commit(
        entry(NOON),
        entry(NOON, outcome="node_error"),
        entry(NOON - 61, outcome="node_error"),
        entry(NOON - 60, outcome="node_error"),
    )
    store.ledger.now += 1_000
    assert seqs(store.page(newer=first.newer, errors=True)) == [2, 4]
    assert seqs(store.page(newer=first.newer, errors=True, since="60s")) == [2, 4]


# --- Cursors and ids ----------------------------------------------------------------------------------------


def test_cursor_is_valid_for_its_team_alone(store: LogHarness) -> None:
    store.ledger.commit(*(entry(NOON, source) for source in (CI, THEIRS, CI, THEIRS)))
    theirs = store.page("outsider", "rival", limit=1)
    for query in ({"after": theirs.next}, {"newer": theirs.newer}):
        problem = store.refused(InvalidInput, **query)
        (field,) = query
        assert problem.extras["field"] == field
        assert "earlier page of the same list, or none to start" in problem.detail


def test_cursor_goes_with_its_filters(store: LogHarness) -> None:
    store.ledger.commit(*(entry(NOON, status=429) for _ in range(3)))
    page = store.page(limit=1, status=429, token=CI)
    assert page.next is not None
    assert seqs(store.page(after=page.next, status=429, token="ci")) == [2, 1]
    for query in ({}, {"status": 200, "token": CI}, {"status": 429}, {"status": 429, "token": CI, "errors": True}):
        problem = store.refused(InvalidInput, after=page.next, **query)
        assert "other filters" in problem.detail
        assert problem.extras["field"] == "after"


def test_cursors_of_both_kinds_are_not_mixed_up(store: LogHarness) -> None:
    store.ledger.commit(entry(NOON), entry(NOON))
    page = store.page(limit=1)
    assert page.next is not None
    assert "`next`" in store.refused(InvalidInput, after=page.newer).detail
    assert "`newer`" in store.refused(InvalidInput, newer=page.next).detail


@pytest.mark.parametrize("cursor", ["", "x", "old_", "old_" + "A" * 80, "new_" + "A" * 80, "e30", "ü" * 84])
def test_made_up_cursor_is_refused(store: LogHarness, cursor: str) -> None:
    for query in ({"after": cursor}, {"newer": cursor}):
        assert "not one of this team's logs" in store.refused(InvalidInput, **query).detail


@pytest.mark.parametrize(("kind", "prefix"), [("after", "old_"), ("newer", "new_")])
def test_cursor_of_version_1_is_pinned_and_one_of_another_version_is_refused(
    store: LogHarness, kind: str, prefix: str
) -> None:
    store.ledger.commit(entry(NOON), entry(NOON))
    assert LogPosition.VERSION == 1
    place = LogPosition(2, 2, float("-inf"), 0, filters_of(LogFilter(ACME)))
    form, seal = struct.Struct(">BxxQQdQ12s"), Seal(PEPPER, prefix, 47)
    packed = form.pack(1, 2, 2, float("-inf"), 0, place.filters)
    assert place.packed() == packed
    assert store.plane.logs.cursors.write(kind, ACME, place) == seal.close(ACME, packed)
    other = form.pack(2, 2, 2, float("-inf"), 0, place.filters)
    problem = store.refused(InvalidInput, **{kind: seal.close(ACME, other)})
    assert (problem.status, problem.extras["field"]) == (400, kind)
    assert "another version of Tollgate. Start again without one." in problem.detail
    theirs = seal.close(RIVAL, packed)
    assert "not one of this team's logs" in store.refused(InvalidInput, **{kind: theirs}).detail


def test_neither_ids_nor_cursors_show_the_ledgers_numbers(store: LogHarness) -> None:
    """Two rows of ours with a thousand of others between them look like any two."""
    store.ledger.commit(entry(NOON), *(entry(NOON, THEIRS) for _ in range(1_000)), entry(NOON))
    first, second = (store.page(limit=1), store.page(limit=2))
    rows = second.rows
    ids = [store.plane.logs.cursors.id_of(row) for row in rows]
    assert all(len(each) == 36 and each.startswith("ent_") for each in ids)
    assert len({text[:8] for text in ids}) == 2
    assert first.next is not None
    assert len(first.next) == len(first.newer) == 88
    assert first.newer == second.newer, "the same place is the same text"


def test_id_is_the_same_for_ever_and_another_for_each_team() -> None:
    cursors, later = Cursors(PEPPER), Cursors(PEPPER)
    mine, theirs = (LogEntry(7, NOON, "r", team, *[""] * 20) for team in (ACME, RIVAL))  # type: ignore[arg-type]
    assert cursors.id_of(mine) == later.id_of(mine)
    assert cursors.id_of(mine) != cursors.id_of(theirs)
    assert cursors.id_of(mine) != Cursors(b"q" * 32).id_of(mine)


def test_a_place_comes_back_as_it_was() -> None:
    for place in (
        LogPosition(1, 2, float("-inf"), 0, b"f" * 12),
        LogPosition(2**63, 2**63, -1.5e16, 12_096_000_000_000_000, bytes(12)),
    ):
        assert len(place.packed()) == LogPosition.SIZE
        assert LogPosition.unpacked(place.packed()) == place


def test_longest_duration_covers_all_logs(store: LogHarness) -> None:
    store.ledger.commit(entry(NOON), entry(NOON))
    page = store.page(since="999999999w" * 20, limit=1)
    assert seqs(store.page(after=page.next)) == [1]


# --- Whose rows ---------------------------------------------------------------------------------------------


def test_tokens_and_domains_are_named_by_id_or_by_name(store: LogHarness) -> None:
    store.ledger.commit(entry(NOON), entry(NOON, WEB), entry(NOON, THEIRS))
    assert seqs(store.page(token=CI)) == seqs(store.page(token="ci")) == [1]
    for name in (WEB, "web.example", "WEB.example."):
        assert seqs(store.page(domain=name)) == [2]


def rotated(store: LogHarness, token: str) -> str:
    return store.do(store.plane.tokens.rotate(store.actor(), "acme", token, Rotation(0)))[0].id


def test_a_rotated_token_keeps_its_logs_by_its_name_and_every_id(store: LogHarness) -> None:
    second = rotated(store, CI)
    third = rotated(store, second)
    other = "tok_other00000000000"
    store.ledger.commit(entry(NOON), entry(NOON, second), entry(NOON, other), entry(NOON, third))
    for given in ("ci", CI, second, third):
        assert seqs(store.page(token=given)) == [4, 2, 1]
        assert seqs(store.page(token=given, method="eth_chainId")) == []
    for token in (second, CI):
        store.do(store.plane.tokens.delete(store.actor(), "acme", token))
        for given in ("ci", CI, second, third):
            assert seqs(store.page(token=given)) == [4, 2, 1], f"{token} is deleted"
    assert seqs(store.page(token=other)) == [3]


def test_a_cursor_of_a_tokens_logs_outlives_its_rotation(store: LogHarness) -> None:
    store.ledger.commit(entry(NOON), entry(NOON))
    page = store.page(token="ci", limit=1)
    new = rotated(store, CI)
    store.ledger.commit(entry(NOON, new))
    assert seqs(store.page(token="ci", after=page.next)) == [1]
    assert seqs(store.page(token="ci", newer=page.newer)) == [3]
    assert seqs(store.page(token=new, newer=page.newer)) == [3]


def test_logs_of_a_deleted_token_are_read_by_its_id(store: LogHarness) -> None:
    gone = "tok_gone000000000000"
    store.ledger.commit(entry(NOON, gone))
    assert seqs(store.page(token=gone)) == [1]
    assert seqs(store.page(domain="dom_gone000000000000")) == []


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"token": "unknown"}, "no token 'unknown': list them with `tollgate rpc tokens list --team acme`"),
        ({"token": "theirs"}, "no token 'theirs'"),
        ({"token": WEB}, "no token"),
        ({"token": "tok_short"}, "no token 'tok_short'"),
        ({"domain": "other.example"}, "list them with `tollgate rpc whitelist list --team acme`"),
        ({"domain": "127.0.0.1"}, "no whitelisted domain '127.0.0.1'"),
        ({"domain": CI}, "no whitelisted domain"),
    ],
)
def test_unknown_token_or_domain_is_not_found(store: LogHarness, query: dict[str, str], words: str) -> None:
    assert words in store.refused(NotFound, **query).detail


def test_token_of_another_team_shows_nothing(store: LogHarness) -> None:
    store.ledger.commit(entry(NOON, THEIRS), entry(NOON, THEIRS))
    page = store.page(token=THEIRS, limit=1)
    assert (page.rows, page.next) == ([], None)


def test_token_and_domain_together_are_refused(store: LogHarness) -> None:
    assert "one of the two" in store.refused(InvalidInput, token="ci", domain="web.example").detail


# --- Who may read -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [Role.OWNER, Role.ADMIN, Role.DEVELOPER, Role.VIEWER])
def test_members_read_the_logs(store: LogHarness, role: Role) -> None:
    store.ledger.commit(entry(NOON))
    assert seqs(store.page(role.value)) == [1]
    assert seqs(store.page(role.value, ACME)) == [1], "by the team's id as well"


def test_billing_members_do_not_read_the_logs(store: LogHarness) -> None:
    assert "read request logs" in store.refused(RoleNeeded, "billing").detail


def test_outsiders_are_refused_before_anything_else_is_checked(store: LogHarness) -> None:
    for query in ({}, {"after": "x"}, {"token": "unknown"}, {"token": "ci", "domain": "web.example"}):
        assert "no team" in store.refused(NoSuchTeam, "outsider", **query).detail


def test_without_a_ledger_logs_are_unavailable(store: LogHarness) -> None:
    bare = ControlPlane(store.store, Settings(), PEPPER, BASE_URL, lambda: NOON)
    with pytest.raises(StoreUnavailable):
        store.do(bare.logs.page(store.actor(), "acme", LogQuery()))


# --- Names of upstreams -------------------------------------------------------------------------------------

TRIED = (
    AttemptEntry("acme-node", 0, 700, AttemptVerdict.STATUS, 503),
    AttemptEntry("beta", 710, 900, AttemptVerdict.ANSWERED),
)


def upstreams(row: LogEntry) -> tuple[str, ...]:
    return (row.upstream, *(attempt.upstream for attempt in row.attempts))


@pytest.mark.parametrize(
    ("show", "who", "names"),
    [
        (True, "owner", ("beta", "acme-node", "beta")),
        (False, "owner", ("upstream 2", "upstream 1", "upstream 2")),
        (False, "operator", ("beta", "acme-node", "beta")),
        (False, "operator of a team", ("upstream 2", "upstream 1", "upstream 2")),
    ],
)
def test_names_of_upstreams_are_for_teams_whose_operator_shows_them_and_for_operators(
    store: LogHarness, show: bool, who: str, names: tuple[str, ...]
) -> None:
    store.plane.change(Settings(ledger=LedgerSettings(show_upstreams=show)))
    store.ledger.commit(entry(NOON, upstream="beta", attempts=TRIED, duration_micros=950))
    owner = store.actor().account
    assert owner is not None
    account = replace(owner, operator=who != "owner")
    login = (
        Login("lgn_1", account.id, PERSONAL, "ci", NOON, b"d" * 32, team_id=ACME)
        if who == "operator of a team"
        else None
    )
    actor = Actor(account, login)
    logs = store.plane.logs
    page = store.do(logs.page(actor, "acme", LogQuery()))
    _, row = store.do(logs.entry(actor, "acme", logs.cursors.id_of(page.rows[0])))
    newer = store.do(logs.page(actor, "acme", LogQuery(newer=page.newer)))
    assert (upstreams(page.rows[0]), upstreams(row), newer.rows) == (names, names, [])
    assert page.rows[0].attempts[0].end_micros == 700


def test_tail_that_all_members_share_names_no_upstreams_where_teams_see_none(store: LogHarness) -> None:
    store.plane.change(Settings(ledger=LedgerSettings(show_upstreams=False)))
    store.ledger.commit(entry(NOON, upstream="beta", attempts=TRIED))
    rows, _ = store.do(store.plane.logs.fresh(LogFilter(ACME), 0, 10))
    assert upstreams(rows[0]) == ("upstream 2", "upstream 1", "upstream 2")
