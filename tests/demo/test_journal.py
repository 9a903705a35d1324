"""Deeds in a file that several nodes share."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from tollgate.demo.chain import BLOCK_SECONDS, Chain
from tollgate.demo.chain_params import RpcError
from tollgate.demo.course import Deed, Mined, Paused, Reorganised
from tollgate.demo.eth import EthNode
from tollgate.demo.journal import LARGEST_JOURNAL, OwnJournal, SharedJournal
from tollgate.errors import StartError

GENESIS = 1_800_000_000
NOW = GENESIS + 5_001 * BLOCK_SECONDS + 0.5
CHAIN = Chain("eth", "mainnet", GENESIS)


def test_each_reader_gets_every_deed_once_and_in_order(tmp_path: Path) -> None:
    first, second = (SharedJournal(tmp_path / "deeds", CHAIN) for _ in range(2))
    done: list[Deed] = [Mined(1.0, 2), Reorganised(2.0, 7, longer=True, name="a\nb"), Paused(3.0)]
    for number, deed in enumerate(done):
        writer = (first, second)[number % 2]
        with writer.turn():
            writer.add(deed)
    late = SharedJournal(tmp_path / "deeds", CHAIN)
    for reader in (first, second, late):
        assert reader.news() == done
        assert reader.news() == []


def test_a_line_that_is_still_being_written_is_left_for_later(tmp_path: Path) -> None:
    journal = SharedJournal(tmp_path / "deeds", CHAIN)
    line = b'{"type":"Mined","at":1.0,"blocks":2}\n'
    with (tmp_path / "deeds").open("ab", buffering=0) as file:
        file.write(line + line[:9])
        assert journal.news() == [Mined(1.0, 2)]
        file.write(line[9:])
    assert journal.news() == [Mined(1.0, 2)]


@pytest.mark.parametrize("change", [{"seed": 1}, {"genesis": 1}, {"block_seconds": 1.0}, {"network": "sepolia"}])
def test_the_journal_of_another_chain_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    SharedJournal(tmp_path / "deeds", CHAIN)
    with pytest.raises(StartError, match="another chain"):
        SharedJournal(tmp_path / "deeds", replace(CHAIN, **change))


def test_a_full_journal_takes_no_more(tmp_path: Path) -> None:
    journal = SharedJournal(tmp_path / "deeds", CHAIN)
    with (tmp_path / "deeds").open("r+b") as file:
        file.truncate(LARGEST_JOURNAL)
    with pytest.raises(RpcError, match="full"), journal.turn():
        journal.add(Paused(1.0))


def test_a_journal_of_one_s_own_gives_back_what_was_added() -> None:
    journal = OwnJournal()
    with journal.turn():
        journal.add(Paused(1.0))
    assert journal.news() == [Paused(1.0)]
    assert journal.news() == []


def test_nodes_that_share_a_journal_answer_alike(tmp_path: Path) -> None:
    one, other = (EthNode("mainnet", GENESIS, shared=tmp_path) for _ in range(2))
    name = one.answer("eth_sendRawTransaction", ["0x01"], NOW)
    with pytest.raises(RpcError, match="already known"):
        other.answer("eth_sendRawTransaction", ["0x01"], NOW)
    one.do(lambda course, at: Reorganised(at, course.head(at) - 2), NOW)
    other.do(lambda _, at: Mined(at, 4), NOW)
    for method, params in (
        ("eth_getBlockByNumber", ["latest", True]),
        ("eth_getTransactionReceipt", [name]),
        ("eth_getLogs", [{"fromBlock": hex(4_990)}]),
    ):
        assert one.answer(method, params, NOW) == other.answer(method, params, NOW) is not None
    late = EthNode("mainnet", GENESIS, shared=tmp_path)
    assert late.view(NOW) == one.view(NOW)


def test_a_deed_has_the_time_of_one_s_turn_however_long_one_waited_for_it(tmp_path: Path) -> None:
    one, other = (EthNode("mainnet", GENESIS, shared=tmp_path) for _ in range(2))
    one.clock = lambda: NOW + 3 * BLOCK_SECONDS
    name = one.answer("eth_sendRawTransaction", ["0x01"], NOW)
    shown = other.view(NOW + 3 * BLOCK_SECONDS)
    assert [*shown.slots.values()] == [shown.head + 1]
    assert other.answer("eth_getTransactionReceipt", [name], NOW + 3 * BLOCK_SECONDS) is None


def test_nodes_without_one_share_only_what_time_makes() -> None:
    one, other = (EthNode("mainnet", GENESIS, seed=4) for _ in range(2))
    assert one.view(NOW) == other.view(NOW)
    one.answer("eth_sendRawTransaction", ["0x01"], NOW)
    assert other.answer("eth_sendRawTransaction", ["0x01"], NOW)
