"""The live tail: what a feed holds, what it leaves out, and how many share it."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from tests.control.console.site import BOB, Site
from tests.store.account_rows import ACME, calls

from tollgate.api.members import InvitationLink, NewInvitation, RoleChange
from tollgate.control.console import tail
from tollgate.control.console.tail import MAX_LINES, MAX_LOOKED, Hub, TailFeed
from tollgate.control.problems import Busy, RoleNeeded
from tollgate.core.logs import LogEntry, LogFilter

WANTED = LogFilter(ACME)
ADA = "acc_ada"


def row(number: int) -> LogEntry:
    entry = calls(1)
    return LogEntry(
        seq=number, at=entry.at, request_id="r", team_id=ACME, source_id="tok_x", source_name="ci", address="",
        agent="", origin="", network="eth/mainnet", method="eth_call", status=200, outcome="ok", code=None,
        request_bytes=1, response_bytes=1, duration_micros=900, upstream="", attempts=(), cache="miss",
        billable=True, cost=0, month="2026-11", stands_for=1,
    )  # fmt: skip


class Ledger:
    """What a feed reads: rows with numbers from 1 on. Counts how often it is read."""

    def __init__(self) -> None:
        self.last = 10
        self.looks = 0
        self.cursors = SimpleNamespace(id_of=lambda each: f"ent_{each.seq}")

    async def newest(self, _wanted: LogFilter) -> int:
        self.looks += 1
        return self.last

    async def fresh(self, _wanted: LogFilter, above: int, limit: int) -> tuple[list[LogEntry], int]:
        numbers = range(above + 1, min(self.last, above + limit) + 1)
        return [row(number) for number in numbers], numbers[-1]


class Watched:
    """A hub over a ledger, with a stopped clock."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.now = 100.0
        self.hub = Hub(cast("Any", SimpleNamespace(logs=self.ledger)), lambda: self.now)
        self.open = ExitStack()

    def join(self, account: str = ADA, address: str = "", wanted: LogFilter = WANTED) -> TailFeed:
        """Open a tail; from an address of its account's own unless one is given."""
        return self.open.enter_context(self.hub.joined("acme", wanted, account, address or account)).feed

    def look(self, feed: TailFeed, new: int = 0) -> None:
        self.ledger.last += new
        self.now += tail.TICK_SECONDS
        asyncio.run(feed.look())


@pytest.fixture
def watched() -> Watched:
    return Watched()


def sent(feed: TailFeed, number: int) -> tuple[int, bool]:
    """How many lines a tail gets that has seen everything up to an entry, and whether some are left out."""
    event = feed.above(number)
    if event.startswith(b":"):
        return 0, False
    name, _, line = event.partition(b"\n")
    assert name == b"id: %d" % feed.position
    data = msgspec.json.decode(line.removeprefix(b"data: ").strip())
    return len(data["lines"]), data["more"]


def test_earlier_entries_are_not_sent(watched: Watched) -> None:
    feed = watched.join()
    watched.look(feed)
    assert sent(feed, feed.position) == (0, False)


def test_first_entries_of_a_new_team_are_sent(watched: Watched) -> None:
    watched.ledger.last = 0
    feed = watched.join()
    watched.look(feed)
    seen = feed.position
    watched.look(feed, 2)
    assert sent(feed, seen) == (2, False)


def test_new_entries_are_sent_once(watched: Watched) -> None:
    feed = watched.join()
    watched.look(feed)
    seen = feed.position
    watched.look(feed, 3)
    assert sent(feed, seen) == (3, False)
    assert sent(feed, feed.position) == (0, False)


def test_browser_that_reconnects_gets_the_entries_it_missed(watched: Watched) -> None:
    feed = watched.join()
    asyncio.run(feed.look(7))
    assert sent(feed, 7) == (3, False)
    watched.look(feed, 1)
    assert sent(feed, 10) == (1, False)
    other = watched.join(wanted=LogFilter(ACME, errors=True))
    asyncio.run(other.look(10**17))
    assert other.position == watched.ledger.last


@pytest.mark.parametrize(
    ("given", "seen"), [("", None), ("12", 12), ("-1", None), ("x", None), ("٣", None), ("9" * 19, None)]
)
def test_last_event_of_a_browser(given: str, seen: int | None) -> None:
    request = cast("Any", SimpleNamespace(headers={"last-event-id": given} if given else {}))
    assert tail._last_seen(request) == seen


@pytest.mark.parametrize("new", [MAX_LINES + 1, MAX_LOOKED, MAX_LOOKED + 1, 1_000_000])
def test_busy_second_shows_the_newest_and_notes_that_others_are_left_out(watched: Watched, new: int) -> None:
    feed = watched.join()
    watched.look(feed)
    seen = feed.position
    watched.look(feed, new)
    assert sent(feed, seen) == (MAX_LINES, True)
    assert feed.position == watched.ledger.last


def test_tails_with_the_same_filters_share_one_look_a_second(watched: Watched) -> None:
    feeds = [watched.join(f"acc_{number}", wanted=LogFilter(ACME)) for number in range(200)]
    assert len({id(feed) for feed in feeds}) == 1
    for feed in feeds:
        asyncio.run(feed.look())
    assert watched.ledger.looks == 1
    assert watched.join(wanted=LogFilter(ACME, errors=True)) is not feeds[0]


def test_feed_ends_with_its_last_tail_and_tails_are_bounded(watched: Watched) -> None:
    first = watched.join()
    with watched.hub.joined("acme", WANTED, ADA, ADA) as second:
        assert second.feed is first
    assert watched.join() is first
    watched.open.close()
    assert watched.hub.tails == 0
    assert watched.join() is not first
    for number in range(tail.MAX_TAILS - 1 + tail.MAX_LEAVING):
        watched.join(f"acc_{number}")
    with pytest.raises(Busy):
        watched.join("acc_another")


def test_oldest_tail_is_closed_for_an_account_without_one(watched: Watched) -> None:
    with ExitStack() as held:

        def join(number: int) -> tail.Tail:
            return held.enter_context(
                watched.hub.joined("acme", WANTED, f"acc_{number}", f"198.{number // 250}.{number % 250}.1")
            )

        tails = [join(number) for number in range(tail.MAX_TAILS)]
        with pytest.raises(Busy):
            join(1)
        join(tail.MAX_TAILS)
        join(tail.MAX_TAILS + 1)
        assert [each.is_over for each in tails[:3]] == [True, True, False]


def fill(watched: Watched, account: str, address: str = "") -> int:
    """Open tails until one is refused; how many there were."""
    opened = 0
    with suppress(Busy):
        while opened < tail.MAX_TAILS:
            watched.join(account, address)
            opened += 1
    return opened


def test_tails_of_one_account_are_few_and_others_still_get_one(watched: Watched) -> None:
    with watched.hub.joined("acme", LogFilter(ACME, status=0), ADA, ADA):
        assert fill(watched, ADA) == 19
        watched.join("acc_bob")
    watched.join()


def test_many_accounts_of_one_address_leave_tails_to_others(watched: Watched) -> None:
    assert sum(fill(watched, f"acc_{number}", "192.0.2.1") for number in range(50)) == 75
    assert sum(fill(watched, f"acc_{number}") for number in range(50, 65)) < 150
    assert fill(watched, "acc_another") > 2


def test_tail_ends_when_its_reader_loses_the_right_to_read_logs(site: Site) -> None:
    owner = site.team(site.account())
    link = site.do(site.plane.invitations.create(owner, "acme", NewInvitation(BOB, "developer"))).link
    joined = site.do(site.plane.invitations.accept(site.actor(site.account(BOB)), InvitationLink(link)))
    assert joined is not None
    browser = site.signed_in(BOB)
    request = cast(
        "Any", SimpleNamespace(cookies={site.cookie: browser.session}, scope={}, headers={}, query_params={})
    )
    assert site.do(tail._sees(request, site.plane, "acme"))
    site.do(site.plane.teams.set_role(owner, "acme", joined.member.id, RoleChange("billing")))
    with pytest.raises(RoleNeeded):
        site.do(tail._sees(request, site.plane, "acme"))
