"""Whatever callers send and nodes answer: reading never raises, and what may be wrong is never kept."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from tests.chains.calls import params, result

from tollgate.chains.catalogue import Catalogue, Holds, Keep, Scope

CATALOGUES = {family: Catalogue(family) for family in ("eth", "starknet", "solana")}
NAMES = [(family, name) for family, catalogue in CATALOGUES.items() for name in sorted(catalogue.methods)]
KEPT = [(family, name) for family, name in NAMES if name in CATALOGUES[family].cached]

words = st.sampled_from(
    ["latest", "pending", "earliest", "safe", "finalized", "pre_confirmed", "l1_accepted", "0x1", "0x", "0xff"]
)
numbers = st.integers(-(1 << 70), 1 << 70)
scalars = st.none() | st.booleans() | numbers | st.floats(allow_nan=False) | st.text(max_size=80) | words
STARKNET_MEMBERS = ["block_id", "block_number", "block_hash", "filter", "from_block", "to_block"]
ETH_MEMBERS = ["blockNumber", "blockHash", "fromBlock", "toBlock", "requireCanonical"]
members = st.sampled_from(STARKNET_MEMBERS + ETH_MEMBERS) | st.text(max_size=5)
trees = st.recursive(
    scalars | numbers.map(hex),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(members, inner, max_size=4),
    max_leaves=12,
)
calls = st.none() | st.lists(trees, max_size=4) | st.dictionaries(members, trees, max_size=4)


def scope_of(family: str, name: str, given_params: Any) -> Scope:
    return CATALOGUES[family].scope(name, None if given_params is None else params(given_params))


@settings(max_examples=3 * settings().max_examples)
@given(st.sampled_from([*NAMES, ("solana", "getSlot"), ("eth", "foo_bar")]), calls)
def test_reading_a_call_never_raises(named: tuple[str, str], given_params: Any) -> None:
    scope = scope_of(*named, given_params)
    assert scope.number is None or 0 <= scope.number < 1 << 62
    assert scope.oldest is None or 0 <= scope.oldest < 1 << 62
    assert scope.number is None or scope.oldest is None or scope.oldest <= scope.number
    assert scope.holds not in {Holds.BLOCK, Holds.RANGE} or scope.number is not None
    if scope.holds is Holds.TIP and named[1] != "starknet_specVersion":
        assert scope.tip


@given(st.sampled_from(NAMES), st.lists(st.binary(max_size=40), max_size=4))
def test_invalid_json_does_not_raise(named: tuple[str, str], texts: list[bytes]) -> None:
    family, name = named
    CATALOGUES[family].scope(name, [Raw(text) for text in texts])
    for text in texts:
        CATALOGUES[family].scope(name, {"block_id": Raw(text), "filter": Raw(text)})


def test_deep_nesting_does_not_raise() -> None:
    deep = Raw(b'{"blockHash":' + b"[" * 50_000 + b"]" * 50_000 + b"}")
    for family, name in NAMES:
        catalogue = CATALOGUES[family]
        for given_params in ([deep] * 3, {"block_id": deep, "filter": deep}):
            scope = catalogue.scope(name, given_params)
            catalogue.keep(scope, deep, 10, 5)
            catalogue.revealed(name, scope, deep)


heights = st.integers(-1, 2_000)
blocks = st.integers(0, 2_500)
answers = trees | st.builds(
    lambda number, rest: {**rest, "blockNumber": hex(number), "number": hex(number), "block_number": number},
    blocks,
    st.dictionaries(
        st.sampled_from(["block_hash", "status", "finality_status", "hash"]),
        st.sampled_from(["ACCEPTED_ON_L1", "ACCEPTED_ON_L2", "PRE_CONFIRMED", "0x5", None]),
    ),
)


@settings(max_examples=3 * settings().max_examples)
@given(st.sampled_from(KEPT), calls, answers, heights, heights)
def test_only_answers_about_existing_blocks_are_cached(
    named: tuple[str, str], given_params: Any, answer: Any, head: int, finalized: int
) -> None:
    catalogue = CATALOGUES[named[0]]
    scope = scope_of(*named, given_params)
    keep = catalogue.keep(scope, result(answer), head, finalized)
    assert keep.holds in {Holds.NEVER, Holds.TIP, Holds.BLOCK, Holds.FOREVER}
    assert keep.number <= head
    if answer is None or scope.holds is Holds.NEVER or (scope.number is not None and scope.number > head):
        assert keep.holds is Holds.NEVER
    if answer in ([], {}, "", "0x"):
        assert keep.holds in {Holds.NEVER, Holds.TIP}
    if keep.holds is Holds.BLOCK:
        assert keep.number > finalized
    if keep.holds is Holds.FOREVER and scope.holds in {Holds.BLOCK, Holds.RANGE, Holds.MINED}:
        assert keep.number <= finalized


@given(st.sampled_from(KEPT), st.none() | st.lists(trees, max_size=3), heights, heights)
def test_null_is_never_cached(named: tuple[str, str], given_params: Any, head: int, finalized: int) -> None:
    scope = scope_of(*named, given_params)
    for nothing in (Raw(b"null"), b"null", b"", b"\nnull "):
        assert CATALOGUES[named[0]].keep(scope, nothing, head, finalized) == Keep(Holds.NEVER)


TAGS = {"eth": "pending", "starknet": "pre_confirmed"}


@given(st.sampled_from(KEPT), answers, heights)
def test_pending_answers_are_never_cached(named: tuple[str, str], answer: Any, head: int) -> None:
    family, name = named
    method = CATALOGUES[family].method(name)
    assert method is not None
    given_params: list[Any]
    if method.holds is Holds.BLOCK:
        assert method.block is not None
        given_params = [0] * method.block + [TAGS[family]]
    elif method.holds is Holds.RANGE:
        tag = TAGS[family]
        given_params = [{"toBlock": tag, "to_block": tag}]
    else:
        return
    assert CATALOGUES[family].keep(scope_of(family, name, given_params), result(answer), head, head).holds is (
        Holds.NEVER
    )


@settings(deadline=None)
@given(st.sampled_from(NAMES), calls, trees | st.binary(max_size=50))
def test_reading_an_answer_never_raises(named: tuple[str, str], given_params: Any, answer: Any) -> None:
    family, name = named
    raw = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
    shown = CATALOGUES[family].revealed(name, scope_of(family, name, given_params), raw)
    assert shown is None or 0 <= shown < 1 << 62
