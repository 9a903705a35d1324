"""The catalogues: what a method does decides whether it may be sent twice."""

import pytest

from tollgate.chains.catalogue import OTHER, Catalogue, Kind
from tollgate.chains.eth import ETH_METHODS
from tollgate.chains.starknet import STARKNET_METHODS
from tollgate.core.methods import Policy, refusal_of

ETH = Catalogue("eth")
STARKNET = Catalogue("starknet")
TABLES = {"eth": ETH_METHODS, "starknet": STARKNET_METHODS}
PREFIXES = {
    "eth": ("eth_", "net_", "web3_", "txpool_", "debug_", "trace_"),
    "starknet": ("starknet_",),
}


@pytest.mark.parametrize(
    ("catalogue", "method", "kind"),
    [
        (ETH, "eth_chainId", Kind.READ),
        (ETH, "eth_getBalance", Kind.READ),
        (ETH, "net_version", Kind.READ),
        (ETH, "eth_newFilter", Kind.FILTER),
        (ETH, "eth_getFilterChanges", Kind.FILTER),
        (ETH, "eth_subscribe", Kind.SUBSCRIBE),
        (ETH, "eth_sendRawTransaction", Kind.WRITE),
        (STARKNET, "starknet_chainId", Kind.READ),
        (STARKNET, "starknet_specVersion", Kind.READ),
        (STARKNET, "starknet_subscribeNewHeads", Kind.SUBSCRIBE),
        (STARKNET, "starknet_addInvokeTransaction", Kind.WRITE),
        (STARKNET, "eth_chainId", Kind.UNKNOWN),
        (ETH, "starknet_chainId", Kind.UNKNOWN),
        (ETH, "eth_chainid", Kind.UNKNOWN),
        (ETH, "", Kind.UNKNOWN),
    ],
)
def test_method_has_its_kind(catalogue: Catalogue, method: str, kind: Kind) -> None:
    assert catalogue.kind(method) is kind


@pytest.mark.parametrize(
    ("catalogue", "method"),
    [
        (ETH, "eth_sendRawTransaction"),
        (ETH, "eth_sendTransaction"),
        (STARKNET, "starknet_addInvokeTransaction"),
        (STARKNET, "starknet_addDeclareTransaction"),
        (STARKNET, "starknet_addDeployAccountTransaction"),
    ],
)
def test_write_is_never_repeated(catalogue: Catalogue, method: str) -> None:
    assert catalogue.kind(method) is Kind.WRITE
    assert not catalogue.repeatable(method)


@pytest.mark.parametrize("method", ["eth_sendBundle", "eth_sendRawTransactionSync", "foo_bar", "ETH_CALL", ""])
def test_unknown_method_may_be_a_write_and_is_not_repeated(method: str) -> None:
    assert ETH.kind(method) is Kind.UNKNOWN
    assert not ETH.repeatable(method)


@pytest.mark.parametrize("family", TABLES)
def test_reads_and_nothing_else_are_repeatable(family: str) -> None:
    catalogue = Catalogue(family)
    assert {name for name in catalogue.methods if catalogue.repeatable(name)} == set(TABLES[family]["read"])


@pytest.mark.parametrize("family", TABLES)
def test_methods_have_the_prefixes_of_their_family(family: str) -> None:
    assert [name for name in Catalogue(family).methods if not name.startswith(PREFIXES[family])] == []


@pytest.mark.parametrize("family", TABLES)
def test_no_method_stands_twice(family: str) -> None:
    names = [name for methods in TABLES[family].values() for name in methods]
    assert len(names) == len(set(names)) == len(Catalogue(family).methods)


@pytest.mark.parametrize("family", TABLES)
def test_names_that_change_a_chain_or_sign_are_no_reads(family: str) -> None:
    words = ("_send", "_add", "_sign", "Filter", "ubscribe", "_set")
    assert [name for name in TABLES[family]["read"] if any(word in name for word in words)] == []


@pytest.mark.parametrize("family", TABLES)
def test_no_catalogue_names_what_is_never_forwarded(family: str) -> None:
    assert [name for name in Catalogue(family).methods if refusal_of(name, Policy())] == []


def test_family_without_a_catalogue_has_only_unknown_methods() -> None:
    catalogue = Catalogue("solana")
    assert catalogue.methods == frozenset()
    assert catalogue.kind("getSlot") is Kind.UNKNOWN
    assert not catalogue.repeatable("getSlot")


def test_label_is_a_name_of_the_catalogue_or_other() -> None:
    assert ETH.label("eth_call") == "eth_call"
    assert ETH.label("made_up_by_a_caller") == OTHER == "other"
    assert Catalogue("solana").label("getSlot") == OTHER
