"""What is read from the table of differences between the versions of Starknet's specification.

That the simulated chain shows each difference is in tests/demo/test_starknet_versions.py.
"""

import pytest

from tollgate.chains.catalogue import Catalogue
from tollgate.chains.starknet_versions import (
    DIFFERENCES,
    RELEASES,
    SAME_IN_ALL,
    VERSIONS,
    Kind,
    error_message,
    has,
    in_form,
    missing_parameters,
    next_tag,
    path,
    subscriptions,
    tags,
    version_of,
)
from tollgate.chains.subscriptions_starknet import METHODS


def test_versions_are_in_order_and_each_has_a_release() -> None:
    assert VERSIONS == ("0.8", "0.9", "0.10")
    assert [version_of(RELEASES[version]) for version in VERSIONS] == list(VERSIONS)
    assert [path(version) for version in VERSIONS] == ["/rpc/v0_8", "/rpc/v0_9", "/rpc/v0_10"]


@pytest.mark.parametrize(
    ("release", "version"),
    [
        ("0.10.1", "0.10"),
        ("0.10.3", "0.10"),
        ("0.9", "0.9"),
        ("v0.8.1", "0.8"),
        ("0.10.0-rc.2", "0.10"),
        ("0.11.0", "0.11"),
        ("", ""),
        ("0", ""),
        ("10", ""),
        ("0.x.1", ""),
        ("0.10.1 ", ""),
        ("0.10\n", ""),
        ("0." + "1" * 5_000, ""),
    ],
)
def test_a_patch_release_is_the_same_version(release: str, version: str) -> None:
    assert version_of(release) == version


def test_tags_of_each_version() -> None:
    assert tags("0.8") == {"latest", "pending"}
    assert tags("0.9") == tags("0.10") == {"latest", "pre_confirmed", "l1_accepted"}
    assert [next_tag(version) for version in VERSIONS] == ["pending", "pre_confirmed", "pre_confirmed"]


def test_subscriptions_of_each_version() -> None:
    assert subscriptions("0.8") - subscriptions("0.9") == {"starknet_subscribePendingTransactions"}
    assert subscriptions("0.9") - subscriptions("0.8") == {
        "starknet_subscribeNewTransactions",
        "starknet_subscribeNewTransactionReceipts",
    }
    assert subscriptions("0.10") == subscriptions("0.9")
    every = frozenset[str]().union(*map(subscriptions, VERSIONS))
    assert every | {"starknet_unsubscribe"} == METHODS


def test_what_the_table_does_not_name_is_in_all_versions() -> None:
    assert all(has(version, Kind.MEMBER, "BLOCK_HEADER", "timestamp") for version in VERSIONS)
    assert missing_parameters("0.8", "starknet_call") == frozenset()


def test_an_object_is_written_in_the_form_of_a_version() -> None:
    every: dict[str, object] = {"keys": [], "transaction_index": 1, "event_index": 2}
    assert in_form("0.9", "EMITTED_EVENT", every) == {"keys": []}
    assert in_form("0.10", "EMITTED_EVENT", every) == every


def test_errors_have_the_message_of_their_version() -> None:
    assert error_message("0.9", 21) == "Requested entrypoint does not exist in the contract"
    assert error_message("0.10", 21) == "Requested entry point does not exist in the contract"
    assert [error_message(version, 65) for version in VERSIONS] == ["", *["Transaction fee below minimum"] * 2]


def test_each_difference_is_listed_once_and_is_one() -> None:
    places = [(each.kind, each.of, each.name) for each in DIFFERENCES]
    assert len(set(places)) == len(places)
    for each in DIFFERENCES:
        assert 0 < len(each.versions) < len(VERSIONS), each


def test_methods_in_the_table_are_in_the_catalogue() -> None:
    known = Catalogue("starknet").methods
    assert known >= SAME_IN_ALL
    named = {each.of for each in DIFFERENCES if each.of.startswith("starknet_")}
    assert {name for name in named if not name.startswith("starknet_subscription")} <= known


def test_methods_of_one_form_differ_in_nothing() -> None:
    assert not [each for each in DIFFERENCES if each.of in SAME_IN_ALL]
