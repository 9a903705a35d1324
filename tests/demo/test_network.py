"""Submitted transactions of a simulated network: in the next block, each once, and never more than are kept."""

import pytest

from tollgate.demo.chain import SimulatedChain, transaction_count
from tollgate.demo.network import MAX_SUBMITTED, ChainView, Submitted
from tollgate.demo.params import RpcError

CHAIN = SimulatedChain("eth", "mainnet", 1_800_000_000)
HEAD = 100
KNOWN = RpcError(-32000, "already known")


def name(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_a_submitted_transaction_is_pending_and_then_the_last_of_its_block() -> None:
    view = ChainView(CHAIN, HEAD, Submitted())
    view.submit(name(1), KNOWN)
    view.submit(name(2), KNOWN)
    assert view.find(name(1)) is None
    assert view.pending(name(1)) is not None
    later = view._replace(head=HEAD + 1)
    assert later.pending(name(1)) is None
    found = [later.find(name(number)) for number in (1, 2)]
    assert later.transfers(HEAD + 1)[-2:] == found
    assert [tx.index for tx in found if tx] == [transaction_count(HEAD + 1), transaction_count(HEAD + 1) + 1]
    assert later.count(HEAD + 1) == len(later.transfers(HEAD + 1))


def test_what_was_submitted_is_not_taken_again() -> None:
    view = ChainView(CHAIN, HEAD, Submitted())
    view.submit(name(1), KNOWN)
    with pytest.raises(RpcError, match="already known"):
        view._replace(head=HEAD + 9).submit(name(1), KNOWN)


def test_the_number_of_submitted_transactions_that_are_kept_has_a_bound() -> None:
    view = ChainView(CHAIN, HEAD, Submitted())
    for number in range(MAX_SUBMITTED + 5):
        view._replace(head=HEAD + number // 1000).submit(name(number), KNOWN)
    assert len(view.submitted.by_hash) == MAX_SUBMITTED == sum(map(len, view.submitted.by_height.values()))
    assert [number for number in range(8) if name(number) in view.submitted.by_hash] == [5, 6, 7]
