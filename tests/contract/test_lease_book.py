"""What every book of leases does: hands out shares that never add up to more than there is."""

from collections.abc import AsyncIterator

import pytest
from tests.contract.backends import params
from tests.contract.lease_books import BOOKS, server

from tollgate.core.leases import LeaseReport, leased
from tollgate.store.base import LeaseBook, SharedUnreachable
from tollgate.store.valkey import ValkeyLeaseBook, prefix

A, B, C = "node-a", "node-b", "node-c"
LIMIT = "00000000000000aa"


@pytest.fixture(params=params(BOOKS))
async def book(request: pytest.FixtureRequest) -> AsyncIterator[LeaseBook]:
    made = BOOKS[request.param]()
    yield made
    await made.close()


def report(want: float, lowered: float | None = None, freed: float = 0.0, mark: str = LIMIT) -> LeaseReport:
    return LeaseReport(mark, 60.0, 100.0, want, lowered, freed)


async def joined(book: LeaseBook, *nodes: str) -> None:
    for node in nodes:
        await book.exchange(node, [])


async def share(book: LeaseBook, node: str, *reports: LeaseReport) -> float:
    answer = await book.exchange(node, reports)
    [lease] = answer.leases
    return lease.share


async def test_nodes_are_counted_from_their_second_tick_on(book: LeaseBook) -> None:
    first = await book.exchange(A, [])
    assert (first.nodes, first.known, first.leases) == (1, False, ())
    assert (await book.exchange(B, [])).nodes == 2
    second = await book.exchange(A, [])
    assert (second.nodes, second.known) == (2, True)


async def test_node_that_leaves_is_not_counted(book: LeaseBook) -> None:
    await joined(book, A, B)
    await book.leave(B)
    assert (await book.exchange(A, [])).nodes == 1


async def test_limit_without_demand_is_not_leased(book: LeaseBook) -> None:
    await joined(book, A, B)
    assert (await book.exchange(A, [report(0.0)])).leases == ()


async def test_share_grows_only_after_others_went_down(book: LeaseBook) -> None:
    await joined(book, A, B)
    pool = leased(2, 100)
    assert await share(book, A, report(1.0)) == pytest.approx(pool / 2), "B has its half, and does not know yet"
    assert await share(book, A, report(1.0)) == pytest.approx(pool / 2)
    assert await share(book, B) == pytest.approx(0.0), "B is directed to go down"
    assert await share(book, A, report(1.0)) == pytest.approx(pool / 2), "it has not reported that it did"
    await share(book, B, report(0.0, lowered=0.0, freed=20.0))
    answer = await book.exchange(A, [report(1.0)])
    assert answer.leases[0].share == pytest.approx(pool)
    assert answer.leases[0].tokens == pytest.approx(20.0), "with the burst that B gave up"
    assert (await book.exchange(A, [report(1.0)])).leases[0].tokens == 0.0


async def test_node_gives_up_at_most_the_burst_it_had(book: LeaseBook) -> None:
    await joined(book, A, B)
    pool = leased(2, 100)
    await share(book, A, report(1.0))
    await share(book, B, report(0.0, lowered=0.0, freed=1_000.0))
    assert (await book.exchange(A, [report(1.0)])).leases[0].tokens == pytest.approx(60.0 * pool / 2)


async def test_small_demand_is_met_and_the_rest_is_divided(book: LeaseBook) -> None:
    await joined(book, A, B, C)
    pool = leased(3, 100)
    for _ in range(3):
        for node, want in ((A, 1.0), (B, 1.0), (C, 0.1)):
            answer = (await book.exchange(node, [report(want)])).leases[0].share
            await book.exchange(node, [report(want, lowered=answer)])
    shares = [await share(book, node, report(want)) for node, want in ((A, 1.0), (B, 1.0), (C, 0.1))]
    assert shares == pytest.approx([(pool - 0.1) / 2, (pool - 0.1) / 2, 0.1], abs=0.01)


async def test_node_that_joins_gets_only_what_is_free(book: LeaseBook) -> None:
    await joined(book, A, B)
    await share(book, A, report(1.0))
    await share(book, B, report(0.0, lowered=0.0))
    await share(book, A, report(1.0))
    answer = await book.exchange(C, [])
    assert answer.nodes == 3
    assert answer.leases[0].share == pytest.approx(0.0)


async def test_node_that_comes_back_has_nothing_left_of_what_others_took(book: LeaseBook) -> None:
    await joined(book, A, B)
    await share(book, A, report(1.0))
    await book.leave(B)
    assert await share(book, A, report(1.0)) == pytest.approx(leased(1, 100))
    assert await share(book, B, report(1.0)) == pytest.approx(0.0), "A has all of it, and does not know yet"


async def test_quiet_limit_goes_back_to_equal_parts_and_is_forgotten(book: LeaseBook) -> None:
    await joined(book, A, B)
    await share(book, A, report(1.0))
    await share(book, B, report(0.0, lowered=0.0))
    await share(book, A, report(1.0))
    down = await share(book, A, report(0.0))
    assert down == pytest.approx(leased(2, 100) / 2)
    await book.exchange(A, [report(0.0, lowered=down)])
    assert await share(book, B, report(0.0)) == pytest.approx(down, abs=0.01)
    await book.exchange(B, [report(0.0)])
    assert (await book.exchange(A, [report(0.0)])).leases == ()


async def test_leased_limits_are_bounded(book: LeaseBook) -> None:
    await joined(book, A, B)
    answer = await book.exchange(A, [report(1.0, mark=f"{number:016x}") for number in range(300)])
    assert len(answer.leases) == 256


# --- A Valkey that others write to ---------------------------------------------------------------------------


@pytest.mark.e2e
@pytest.mark.parametrize(
    "poison",
    [
        [("SET", "{}nodes", "x")],
        [("SET", "{}leased", "x")],
        [("ZADD", "{}leased", "9e15", "m"), ("SET", "{}lease:m", "x")],
        [("ZADD", "{}leased", "9e15", "m"), ("HSET", "{}lease:m", "window", "x", "count", "y", "free", "z")],
        [("ZADD", "{}leased", "9e15", "m"), ("HSET", "{}lease:m", "window", "nan", "count", "5", "free", "0")],
        [("ZADD", "{}leased", "9e15", "m"), ("HSET", "{}lease:m", "window", "-1", "count", "5", "free", "1e308")],
    ],
)
async def test_leases_that_others_wrote_are_an_outage_until_they_are_gone(poison: list[tuple[str, ...]]) -> None:
    name = prefix(b"poisoned")
    server().command("FLUSHALL")
    book = ValkeyLeaseBook(server().url, name, seconds=10)
    for command in poison:
        server().command(*(word.format(name) for word in command))
    with pytest.raises(SharedUnreachable):
        await book.exchange("a", [LeaseReport("m", 1.0, 100.0, 1.0)])
    server().command("FLUSHALL")
    assert (await book.exchange("a", [])).nodes == 1
    await book.close()
