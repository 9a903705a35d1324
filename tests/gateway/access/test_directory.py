"""The directory in memory: filled on a miss, bounded, and never behind the store for long."""

import asyncio
from typing import Any

import pytest
from tests.gateway.callers import OTHER_TEAM, domain_grant, token_grant
from tests.gateway.fakes import Clock, ScriptedStore, run_pending

from tollgate.errors import Overloaded
from tollgate.gateway.access.directory import MAX_LOOKUPS, CallerDirectory
from tollgate.settings import model
from tollgate.shm import metrics
from tollgate.store.base import Changes

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32


class Harness:
    """A directory on a scripted store."""

    def __init__(self, entries: int = 100) -> None:
        self.store = ScriptedStore()
        self.clock = Clock()
        self.regions = metrics.Regions(1)
        settings = model.Settings(directory=model.DirectorySettings(entries=entries, stale_seconds=600.0))
        self.directory = CallerDirectory(self.store, settings, self.regions.writer(0), self.clock)

    async def change(self, **what: Any) -> None:
        """The store reports that this changed."""
        self.store.news.append(Changes(2, **what))
        await self.directory.refresh()

    def counted(self, outcome: str) -> int:
        return self.regions.totals().get((metrics.DIRECTORY_LOOKUPS.name, outcome), 0)


async def open_harness(**options: Any) -> Harness:
    harness = Harness(**options)
    harness.store.tokens[A] = harness.store.tokens[B] = token_grant()
    harness.store.tokens[C] = token_grant(OTHER_TEAM)
    harness.store.grants["example.com"] = domain_grant()
    harness.store.grants["globex.org"] = domain_grant(OTHER_TEAM)
    await harness.directory.refresh()
    return harness


@pytest.fixture
async def harness() -> Harness:
    return await open_harness()


# --- Filling -----------------------------------------------------------------------------------------------


async def test_token_is_read_once_and_then_known(harness: Harness) -> None:
    assert harness.directory.tokens.get(A) is None
    found = await harness.directory.find_token(A)
    assert found is not None
    assert found.grant == token_grant()
    assert harness.directory.tokens.get(A) is found
    assert harness.counted("found") == 1


async def test_host_is_looked_for_under_all_its_parents(harness: Harness) -> None:
    found = await harness.directory.find_host("a.b.example.com")
    assert found is not None
    assert harness.store.lookups == [("a.b.example.com", "b.example.com", "example.com", "com")]
    assert harness.directory.known_host("a.b.example.com") is found
    assert harness.directory.known_host("example.com") is None


async def test_requests_at_the_same_time_query_the_store_once(harness: Harness) -> None:
    harness.store.gate = asyncio.Event()
    tasks = [asyncio.ensure_future(harness.directory.find_token(A)) for _ in range(20)]
    await run_pending()
    harness.store.gate.set()
    assert len({id(caller) for caller in await asyncio.gather(*tasks)}) == 1
    assert harness.store.lookups == [A]


async def test_one_cancelled_request_does_not_spoil_the_others(harness: Harness) -> None:
    harness.store.gate = asyncio.Event()
    first, second = (asyncio.ensure_future(harness.directory.find_token(A)) for _ in range(2))
    await run_pending()
    first.cancel()
    await run_pending()
    harness.store.gate.set()
    assert await second is not None


async def test_least_recently_used_is_dropped_first() -> None:
    harness = await open_harness(entries=2)
    await harness.directory.find_token(A)
    await harness.directory.find_token(B)
    harness.directory.tokens.get(A)
    await harness.directory.find_token(C)
    known = [harness.directory.tokens.get(digest) is not None for digest in (A, B, C)]
    assert known == [True, False, True]


async def test_unknown_ones_are_bounded_too() -> None:
    harness = await open_harness(entries=2)
    for number in range(10):
        await harness.directory.find_token(bytes([number]) * 32)
    remembered = [harness.directory.unknown_token(bytes([number]) * 32) for number in range(10)]
    assert remembered == [False] * 8 + [True] * 2


async def test_unknown_token_is_remembered_for_a_while(harness: Harness) -> None:
    unknown = b"x" * 32
    assert await harness.directory.find_token(unknown) is None
    assert harness.directory.unknown_token(unknown)
    harness.clock.advance(5.0)
    assert not harness.directory.unknown_token(unknown)
    assert harness.counted("unknown") == 1


async def test_too_many_look_ups_at_once_are_refused(harness: Harness) -> None:
    harness.store.gate = asyncio.Event()
    tasks = [
        asyncio.ensure_future(harness.directory.find_token(number.to_bytes(32, "big")))
        for number in range(MAX_LOOKUPS)
    ]
    await run_pending()
    with pytest.raises(Overloaded):
        await harness.directory.find_token(A)
    harness.store.gate.set()
    await asyncio.gather(*tasks)
    assert await harness.directory.find_token(A) is not None


# --- Changes -----------------------------------------------------------------------------------------------


async def fill(harness: Harness) -> None:
    for digest in (A, B, C):
        await harness.directory.find_token(digest)
    for host in ("www.example.com", "example.com", "globex.org"):
        await harness.directory.find_host(host)
    await harness.directory.find_token(b"x" * 32)
    await harness.directory.find_host("www.unknown.net")


def remembered(harness: Harness) -> str:
    """What is in memory, in short."""
    tokens = [name for name, digest in zip("ABC", (A, B, C), strict=True) if harness.directory.tokens.get(digest)]
    hosts = [
        host for host in ("www.example.com", "example.com", "globex.org") if harness.directory.known_host(host)
    ]
    unknown = ["x"] if harness.directory.unknown_token(b"x" * 32) else []
    unknown += ["net"] if harness.directory.unknown_host("www.unknown.net") else []
    return " ".join(tokens + hosts + unknown)


EVERYTHING = "A B C www.example.com example.com globex.org x net"


@pytest.mark.parametrize(
    ("what", "left"),
    [
        ({}, EVERYTHING),
        ({"tokens": (A,)}, "B C www.example.com example.com globex.org x net"),
        ({"tokens": (b"x" * 32,)}, "A B C www.example.com example.com globex.org net"),
        ({"domains": ("example.com",)}, "A B C globex.org x net"),
        ({"domains": ("unknown.net",)}, "A B C www.example.com example.com globex.org x"),
        ({"domains": ("ample.com",)}, EVERYTHING),
        ({"teams": ("team_1",)}, "C globex.org x net"),
        ({"teams": ("team_2",), "tokens": (B,)}, "A www.example.com example.com x net"),
        ({"everything": True}, ""),
    ],
)
async def test_change_drops_what_it_names_and_nothing_else(
    what: dict[str, Any], left: str, harness: Harness
) -> None:
    await fill(harness)
    assert remembered(harness) == EVERYTHING
    await harness.change(**what)
    assert remembered(harness) == left


async def test_first_revision_drops_what_was_read_before_it() -> None:
    harness = Harness()
    harness.store.tokens[A] = token_grant()
    await harness.directory.find_token(A)
    await harness.directory.refresh()
    assert harness.directory.tokens.get(A) is None


@pytest.mark.parametrize("known", [True, False])
async def test_look_up_that_overlaps_a_change_is_used_and_not_remembered(known: bool, harness: Harness) -> None:
    digest = A if known else b"x" * 32
    harness.store.gate = asyncio.Event()
    lookup = asyncio.ensure_future(harness.directory.find_token(digest))
    await run_pending()
    await harness.change(tokens=(digest,))
    harness.store.gate.set()
    assert (await lookup is not None) is known
    assert harness.directory.tokens.get(digest) is None
    assert not harness.directory.unknown_token(digest)


async def test_request_after_a_change_does_not_share_a_look_up_from_before_it(harness: Harness) -> None:
    """Or a deleted token would live on for as long as the store takes to answer."""
    harness.store.gate = asyncio.Event()
    before = asyncio.ensure_future(harness.directory.find_token(A))
    await run_pending()
    del harness.store.tokens[A]
    await harness.change(tokens=(A,))
    after = asyncio.ensure_future(harness.directory.find_token(A))
    await run_pending()
    harness.store.gate.set()
    await before
    assert await after is None


# --- The store is silent -----------------------------------------------------------------------------------


async def test_known_grants_go_on_for_a_bounded_time_and_come_back(harness: Harness) -> None:
    await harness.directory.find_token(A)
    harness.store.down = True
    for _ in range(6):
        harness.clock.advance(100.0)
        await harness.directory.refresh()
        assert harness.directory.stale is False
        assert harness.directory.tokens.get(A) is not None
    harness.clock.advance(0.1)
    await harness.directory.refresh()
    assert harness.directory.stale
    assert harness.regions.totals()[metrics.DIRECTORY_STALE_SECONDS.name,] == 600
    harness.store.down = False
    await harness.directory.refresh()
    assert vars(harness.directory)["stale"] is False
    assert harness.regions.totals()[metrics.DIRECTORY_STALE_SECONDS.name,] == 0


async def test_cached_callers_are_dropped_when_grants_may_have_changed(harness: Harness) -> None:
    informed: list[str] = []
    cause = "nothing"
    harness.directory.changed = lambda: informed.append(cause)
    await harness.directory.find_token(A)
    before = await harness.directory.find_host("example.com")
    await harness.directory.refresh()
    cause = "limits"
    harness.directory.change(model.LimitSettings())
    after = harness.directory.known_host("example.com")
    assert before is not None
    assert after is not None
    assert after is not before
    assert after.grant is before.grant
    cause = "grants"
    await harness.change(tokens=(B,))
    cause = "silence"
    harness.store.down = True
    for _ in range(2):
        harness.clock.advance(601.0)
        await harness.directory.refresh()
    assert informed == ["limits", "grants", "silence"]


async def test_entries_are_counted(harness: Harness) -> None:
    for digest in (A, B):
        await harness.directory.find_token(digest)
    await harness.directory.find_host("example.com")
    await harness.directory.refresh()
    assert harness.regions.totals()[metrics.DIRECTORY_ENTRIES.name,] == 3


async def test_unknown_caller_is_directed_to_come_back_while_the_store_is_silent(harness: Harness) -> None:
    harness.store.down = True
    with pytest.raises(Overloaded):
        await harness.directory.find_token(A)
    assert harness.counted("failed") == 1
    assert not harness.directory.unknown_token(A)
    harness.store.down = False
    assert await harness.directory.find_token(A) is not None
