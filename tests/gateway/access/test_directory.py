"""The directory in memory: filled on a miss, bounded, and never behind the store for long."""

import asyncio
from typing import Any

import pytest
from tests.gateway.fakes import Clock, ScriptedStore, turns
from tests.gateway.worker import OTHER_TEAM, domain_grant, token_grant

from tollgate.errors import Overloaded
from tollgate.gateway.access.directory import MAX_LOOKUPS, CallerDirectory
from tollgate.settings import model
from tollgate.shm import metrics
from tollgate.store.base import Changes

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32


class House:
    """A directory on a scripted store."""

    def __init__(self, entries: int = 100) -> None:
        self.store = ScriptedStore()
        self.clock = Clock()
        self.regions = metrics.Regions(1)
        settings = model.Settings(directory=model.DirectorySettings(entries=entries, stale_seconds=600.0))
        self.directory = CallerDirectory(self.store, settings, self.regions.writer(0), self.clock)

    async def change(self, **what: Any) -> None:
        """The store says that this changed."""
        self.store.news.append(Changes(2, **what))
        await self.directory.refresh()

    def counted(self, outcome: str) -> int:
        return self.regions.totals().get((metrics.DIRECTORY_LOOKUPS.name, outcome), 0)


async def open_house(**options: Any) -> House:
    house = House(**options)
    house.store.tokens[A] = house.store.tokens[B] = token_grant()
    house.store.tokens[C] = token_grant(OTHER_TEAM)
    house.store.grants["example.com"] = domain_grant()
    house.store.grants["globex.org"] = domain_grant(OTHER_TEAM)
    await house.directory.refresh()
    return house


@pytest.fixture
async def house() -> House:
    return await open_house()


# --- Filling -----------------------------------------------------------------------------------------------


async def test_token_is_read_once_and_then_known(house: House) -> None:
    assert house.directory.tokens.get(A) is None
    found = await house.directory.find_token(A)
    assert found is not None
    assert found.grant == token_grant()
    assert house.directory.tokens.get(A) is found
    assert house.counted("found") == 1


async def test_host_is_looked_for_under_all_its_parents(house: House) -> None:
    found = await house.directory.find_host("a.b.example.com")
    assert found is not None
    assert house.store.asked == [("a.b.example.com", "b.example.com", "example.com", "com")]
    assert house.directory.known_host("a.b.example.com") is found
    assert house.directory.known_host("example.com") is None


async def test_requests_at_the_same_time_ask_the_store_once(house: House) -> None:
    house.store.gate = asyncio.Event()
    tasks = [asyncio.ensure_future(house.directory.find_token(A)) for _ in range(20)]
    await turns()
    house.store.gate.set()
    assert len({id(caller) for caller in await asyncio.gather(*tasks)}) == 1
    assert house.store.asked == [A]


async def test_one_cancelled_request_does_not_spoil_the_others(house: House) -> None:
    house.store.gate = asyncio.Event()
    first, second = (asyncio.ensure_future(house.directory.find_token(A)) for _ in range(2))
    await turns()
    first.cancel()
    await turns()
    house.store.gate.set()
    assert await second is not None


async def test_least_recently_used_is_dropped_first() -> None:
    house = await open_house(entries=2)
    await house.directory.find_token(A)
    await house.directory.find_token(B)
    house.directory.tokens.get(A)
    await house.directory.find_token(C)
    known = [house.directory.tokens.get(digest) is not None for digest in (A, B, C)]
    assert known == [True, False, True]


async def test_unknown_ones_are_bounded_too() -> None:
    house = await open_house(entries=2)
    for number in range(10):
        await house.directory.find_token(bytes([number]) * 32)
    remembered = [house.directory.unknown_token(bytes([number]) * 32) for number in range(10)]
    assert remembered == [False] * 8 + [True] * 2


async def test_unknown_token_is_remembered_for_a_while(house: House) -> None:
    unknown = b"x" * 32
    assert await house.directory.find_token(unknown) is None
    assert house.directory.unknown_token(unknown)
    house.clock.advance(5.1)
    assert not house.directory.unknown_token(unknown)
    assert house.counted("unknown") == 1


async def test_too_many_look_ups_at_once_are_refused(house: House) -> None:
    house.store.gate = asyncio.Event()
    tasks = [
        asyncio.ensure_future(house.directory.find_token(number.to_bytes(32, "big")))
        for number in range(MAX_LOOKUPS)
    ]
    await turns()
    with pytest.raises(Overloaded):
        await house.directory.find_token(A)
    house.store.gate.set()
    await asyncio.gather(*tasks)
    assert await house.directory.find_token(A) is not None


# --- Changes -----------------------------------------------------------------------------------------------


async def fill(house: House) -> None:
    for digest in (A, B, C):
        await house.directory.find_token(digest)
    for host in ("www.example.com", "example.com", "globex.org"):
        await house.directory.find_host(host)
    await house.directory.find_token(b"x" * 32)
    await house.directory.find_host("www.unknown.net")


def remembered(house: House) -> str:
    """What is in memory, in short."""
    tokens = [name for name, digest in zip("ABC", (A, B, C), strict=True) if house.directory.tokens.get(digest)]
    hosts = [host for host in ("www.example.com", "example.com", "globex.org") if house.directory.known_host(host)]
    unknown = ["x"] if house.directory.unknown_token(b"x" * 32) else []
    unknown += ["net"] if house.directory.unknown_host("www.unknown.net") else []
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
async def test_change_drops_what_it_names_and_nothing_else(what: dict[str, Any], left: str, house: House) -> None:
    await fill(house)
    assert remembered(house) == EVERYTHING
    await house.change(**what)
    assert remembered(house) == left


async def test_first_revision_drops_what_was_read_before_it() -> None:
    house = House()
    house.store.tokens[A] = token_grant()
    await house.directory.find_token(A)
    await house.directory.refresh()
    assert house.directory.tokens.get(A) is None


@pytest.mark.parametrize("known", [True, False])
async def test_look_up_that_overlaps_a_change_is_used_and_not_remembered(known: bool, house: House) -> None:
    digest = A if known else b"x" * 32
    house.store.gate = asyncio.Event()
    asked = asyncio.ensure_future(house.directory.find_token(digest))
    await turns()
    await house.change(tokens=(digest,))
    house.store.gate.set()
    assert (await asked is not None) is known
    assert house.directory.tokens.get(digest) is None
    assert not house.directory.unknown_token(digest)


async def test_request_after_a_change_does_not_share_a_look_up_from_before_it(house: House) -> None:
    """Or a deleted token would live on for as long as the store takes to answer."""
    house.store.gate = asyncio.Event()
    before = asyncio.ensure_future(house.directory.find_token(A))
    await turns()
    del house.store.tokens[A]
    await house.change(tokens=(A,))
    after = asyncio.ensure_future(house.directory.find_token(A))
    await turns()
    house.store.gate.set()
    await before
    assert await after is None


# --- The store is silent -----------------------------------------------------------------------------------


async def test_known_grants_go_on_for_a_bounded_time_and_come_back(house: House) -> None:
    await house.directory.find_token(A)
    house.store.down = True
    for _ in range(6):
        house.clock.advance(100.0)
        await house.directory.refresh()
        assert house.directory.stale is False
        assert house.directory.tokens.get(A) is not None
    house.clock.advance(0.1)
    await house.directory.refresh()
    assert house.directory.stale
    assert house.regions.totals()[metrics.DIRECTORY_STALE_SECONDS.name,] == 600
    house.store.down = False
    await house.directory.refresh()
    assert vars(house.directory)["stale"] is False
    assert house.regions.totals()[metrics.DIRECTORY_STALE_SECONDS.name,] == 0


async def test_unknown_caller_is_told_to_come_back_while_the_store_is_silent(house: House) -> None:
    house.store.down = True
    with pytest.raises(Overloaded):
        await house.directory.find_token(A)
    assert house.counted("failed") == 1
    assert not house.directory.unknown_token(A)
    house.store.down = False
    assert await house.directory.find_token(A) is not None
