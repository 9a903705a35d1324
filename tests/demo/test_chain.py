"""The simulated chain: links, look-ups by hash, and accounts that add up, at any height."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.demo.chain import (
    ACCOUNTS,
    AMOUNT,
    BLOCK_SECONDS,
    DAY_SECONDS,
    GRANT,
    HISTORY_BLOCKS,
    SimulatedChain,
    genesis_before,
    holding,
    keccak256,
    sent_count,
    transaction_count,
    transactions_before,
)

GENESIS = 1_800_000_000
ETH = SimulatedChain("eth", "mainnet", GENESIS)
STARKNET = SimulatedChain("starknet", "mainnet", GENESIS, hash_bits=251)

chains = st.sampled_from([ETH, STARKNET])
heights = st.integers(0, 2**40)
moments = st.floats(0, 2**40)


@given(moments)
def test_a_demo_starts_with_history_and_no_block_from_the_future(now: float) -> None:
    chain = SimulatedChain("eth", "mainnet", genesis_before(now))
    head = chain.head(now)
    assert head >= HISTORY_BLOCKS
    assert chain.timestamp(head) <= now < chain.timestamp(head + 1)


def test_a_demo_restarted_on_the_same_day_goes_on_with_the_same_chain() -> None:
    midnight = 20_000 * DAY_SECONDS
    assert genesis_before(midnight) == genesis_before(midnight + DAY_SECONDS - 1)
    assert genesis_before(midnight) != genesis_before(midnight + DAY_SECONDS)


def test_the_head_advances_by_one_block_each_block_time() -> None:
    start = GENESIS + 1000 * BLOCK_SECONDS
    heads = [ETH.head(start + seconds) for seconds in range(3 * BLOCK_SECONDS)]
    assert heads == [1000 + seconds // BLOCK_SECONDS for seconds in range(3 * BLOCK_SECONDS)]


def test_before_genesis_there_is_only_the_first_block() -> None:
    assert ETH.head(0) == 0


@given(chains, heights)
def test_a_block_is_found_by_its_hash(chain: SimulatedChain, height: int) -> None:
    assert chain.block_height(chain.block_hash(height)) == height


@given(chains, heights, st.integers(0, 5))
def test_a_transaction_is_found_by_its_hash_where_its_block_has_one(
    chain: SimulatedChain, height: int, position: int
) -> None:
    transfer = chain.transfer(height, position)
    expected = transfer if position < transaction_count(height) else None
    assert chain.find_transfer(transfer.hash) == expected


@given(chains, st.binary(max_size=40))
def test_bytes_that_are_no_hash_are_found_nowhere(chain: SimulatedChain, value: bytes) -> None:
    assert chain.block_height(value) is None
    assert chain.find_transfer(value) is None


@given(chains, heights, st.integers(0, 255))
def test_a_hash_with_one_bit_changed_is_found_nowhere(chain: SimulatedChain, height: int, bit: int) -> None:
    changed = int.from_bytes(chain.block_hash(height), "big") ^ (1 << bit)
    assert chain.block_height(changed.to_bytes(32, "big")) is None


@given(heights)
def test_hashes_of_one_kind_or_chain_are_unknown_to_another(height: int) -> None:
    block_hash = ETH.block_hash(height)
    assert ETH.find_transfer(block_hash) is None
    assert SimulatedChain("eth", "sepolia", GENESIS).block_height(block_hash) is None
    assert SimulatedChain("eth", "mainnet", GENESIS + DAY_SECONDS).block_height(block_hash) is None


@given(heights, st.integers(0, 2))
def test_starknet_hashes_are_field_elements(height: int, position: int) -> None:
    for value in (STARKNET.block_hash(height), STARKNET.transfer(height, position).hash):
        assert int.from_bytes(value, "big") < 2**251


def test_the_first_block_has_no_parent_and_no_transactions() -> None:
    assert ETH.block_hash(-1) == bytes(32)
    assert ETH.transfers(0) == []


def test_addresses_outlive_a_restart_on_another_day() -> None:
    assert ETH.lasting_digest("account", 1) == SimulatedChain("eth", "mainnet", 0).lasting_digest("account", 1)
    assert ETH.digest("account", 1) != SimulatedChain("eth", "mainnet", 0).digest("account", 1)


def test_formulas_agree_with_adding_up_every_transaction() -> None:
    nonces = [0] * ACCOUNTS
    held = [GRANT] * ACCOUNTS
    count = 0
    for height in range(200):
        assert transactions_before(height) == count
        for transfer in ETH.transfers(height):
            assert transfer.nonce == nonces[transfer.sender]
            nonces[transfer.sender] += 1
            held[transfer.sender] -= AMOUNT
            held[transfer.recipient] += AMOUNT
            count += 1
        assert [sent_count(account, height) for account in range(ACCOUNTS)] == nonces
        assert [holding(account, height) for account in range(ACCOUNTS)] == held


@given(heights)
def test_nothing_is_made_or_lost_at_any_height(height: int) -> None:
    assert sum(holding(account, height) for account in range(ACCOUNTS)) == ACCOUNTS * GRANT


@given(st.integers(1, 2**40))
def test_a_sender_s_nonce_before_a_transaction_is_what_the_transaction_carries(height: int) -> None:
    transfer = ETH.transfer(height, 0)
    assert sent_count(transfer.sender, height - 1) == transfer.nonce


@given(st.integers(1, 2**40))
def test_any_three_blocks_have_ten_transactions(height: int) -> None:
    assert sum(transaction_count(one) for one in range(height, height + 3)) >= 10


@pytest.mark.parametrize("chain", [ETH, STARKNET])
def test_hashes_do_not_repeat(chain: SimulatedChain) -> None:
    hashes = [chain.block_hash(height) for height in range(500)]
    hashes += [transfer.hash for height in range(500) for transfer in chain.transfers(height)]
    assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize(
    ("data", "digest"),
    [
        (b"", "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"),
        (b"abc", "4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45"),
    ],
)
def test_keccak_is_the_one_before_sha_3(data: bytes, digest: str) -> None:
    assert keccak256(data).hex() == digest
