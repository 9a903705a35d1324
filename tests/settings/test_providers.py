"""Shorthands of providers: a row of the table each, what they refuse, and that no key shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tollgate.settings.check import check
from tollgate.settings.file import SettingsError, load
from tollgate.settings.mask import effective, endpoint
from tollgate.settings.providers import PROVIDERS, expand
from tollgate.settings.schema import describe

ROWS = """
alchemy://K eth/mainnet https://eth-mainnet.g.alchemy.com/v2/K wss://eth-mainnet.g.alchemy.com/v2/K
alchemy://K eth/sepolia https://eth-sepolia.g.alchemy.com/v2/K wss://eth-sepolia.g.alchemy.com/v2/K
alchemy://K eth/base https://base-mainnet.g.alchemy.com/v2/K wss://base-mainnet.g.alchemy.com/v2/K
alchemy://K eth/optimism https://opt-mainnet.g.alchemy.com/v2/K wss://opt-mainnet.g.alchemy.com/v2/K
alchemy://K eth/arbitrum https://arb-mainnet.g.alchemy.com/v2/K wss://arb-mainnet.g.alchemy.com/v2/K
alchemy://K eth/polygon https://polygon-mainnet.g.alchemy.com/v2/K wss://polygon-mainnet.g.alchemy.com/v2/K
alchemy://K starknet/mainnet https://starknet-mainnet.g.alchemy.com/starknet/version/rpc/v0_10/K -
alchemy://K starknet/sepolia https://starknet-sepolia.g.alchemy.com/starknet/version/rpc/v0_10/K -
infura://K eth/mainnet https://mainnet.infura.io/v3/K wss://mainnet.infura.io/ws/v3/K
infura://K eth/sepolia https://sepolia.infura.io/v3/K wss://sepolia.infura.io/ws/v3/K
infura://K eth/base https://base-mainnet.infura.io/v3/K wss://base-mainnet.infura.io/ws/v3/K
infura://K eth/optimism https://optimism-mainnet.infura.io/v3/K wss://optimism-mainnet.infura.io/ws/v3/K
infura://K eth/arbitrum https://arbitrum-mainnet.infura.io/v3/K wss://arbitrum-mainnet.infura.io/ws/v3/K
infura://K eth/polygon https://polygon-mainnet.infura.io/v3/K wss://polygon-mainnet.infura.io/ws/v3/K
infura://K starknet/mainnet https://starknet-mainnet.infura.io/v3/K -
infura://K starknet/sepolia https://starknet-sepolia.infura.io/v3/K -
quicknode://n/K eth/mainnet https://n.quiknode.pro/K/ wss://n.quiknode.pro/K/
quicknode://n/K eth/sepolia https://n.ethereum-sepolia.quiknode.pro/K/ wss://n.ethereum-sepolia.quiknode.pro/K/
quicknode://n/K eth/base https://n.base-mainnet.quiknode.pro/K/ wss://n.base-mainnet.quiknode.pro/K/
quicknode://n/K eth/optimism https://n.optimism.quiknode.pro/K/ wss://n.optimism.quiknode.pro/K/
quicknode://n/K eth/arbitrum https://n.arbitrum-mainnet.quiknode.pro/K/ wss://n.arbitrum-mainnet.quiknode.pro/K/
quicknode://n/K eth/polygon https://n.matic.quiknode.pro/K/ wss://n.matic.quiknode.pro/K/
quicknode://n/K starknet/mainnet https://n.strk-mainnet.quiknode.pro/K/ -
quicknode://n/K starknet/sepolia https://n.strk-sepolia.quiknode.pro/K/ -
drpc://K eth/mainnet https://lb.drpc.org/ogrpc?network=ethereum&dkey=K wss://lb.drpc.org/ogws?network=ethereum&dkey=K
drpc://K eth/sepolia https://lb.drpc.org/ogrpc?network=sepolia&dkey=K wss://lb.drpc.org/ogws?network=sepolia&dkey=K
drpc://K eth/base https://lb.drpc.org/ogrpc?network=base&dkey=K wss://lb.drpc.org/ogws?network=base&dkey=K
drpc://K eth/optimism https://lb.drpc.org/ogrpc?network=optimism&dkey=K wss://lb.drpc.org/ogws?network=optimism&dkey=K
drpc://K eth/arbitrum https://lb.drpc.org/ogrpc?network=arbitrum&dkey=K wss://lb.drpc.org/ogws?network=arbitrum&dkey=K
drpc://K eth/polygon https://lb.drpc.org/ogrpc?network=polygon&dkey=K wss://lb.drpc.org/ogws?network=polygon&dkey=K
drpc://K starknet/mainnet https://lb.drpc.org/ogrpc?network=starknet&dkey=K -
ankr://K eth/mainnet https://rpc.ankr.com/eth/K -
ankr://K eth/sepolia https://rpc.ankr.com/eth_sepolia/K -
ankr://K eth/base https://rpc.ankr.com/base/K -
ankr://K eth/optimism https://rpc.ankr.com/optimism/K -
ankr://K eth/arbitrum https://rpc.ankr.com/arbitrum/K -
ankr://K eth/polygon https://rpc.ankr.com/polygon/K -
publicnode:// eth/mainnet https://ethereum-rpc.publicnode.com wss://ethereum-rpc.publicnode.com
publicnode:// eth/sepolia https://ethereum-sepolia-rpc.publicnode.com wss://ethereum-sepolia-rpc.publicnode.com
publicnode:// eth/base https://base-rpc.publicnode.com wss://base-rpc.publicnode.com
publicnode:// eth/optimism https://optimism-rpc.publicnode.com wss://optimism-rpc.publicnode.com
publicnode:// eth/arbitrum https://arbitrum-one-rpc.publicnode.com wss://arbitrum-one-rpc.publicnode.com
publicnode:// eth/polygon https://polygon-bor-rpc.publicnode.com wss://polygon-bor-rpc.publicnode.com
publicnode:// starknet/mainnet https://starknet-rpc.publicnode.com -
publicnode:// starknet/sepolia https://starknet-sepolia-rpc.publicnode.com -
"""
TABLE = [line.split() for line in ROWS.strip().splitlines()]


@pytest.mark.parametrize(("shorthand", "path", "url", "ws_url"), TABLE)
def test_a_shorthand_expands_to_the_providers_addresses(shorthand: str, path: str, url: str, ws_url: str) -> None:
    family, _, network = path.partition("/")
    assert expand(shorthand, family, network) == (url, "" if ws_url == "-" else ws_url)


def test_every_row_of_the_table_has_its_test() -> None:
    tested = {(row[0].partition("://")[0], row[1]) for row in TABLE}
    rows = {(name, path) for name, each in PROVIDERS.items() for path in {*each.networks, *each.special}}
    assert tested == rows


def test_the_settings_accept_every_provider() -> None:
    (row,) = (row for row in describe() if row.key.endswith("upstreams[<n>].url"))
    assert all(f"{name}://" in row.help for name in PROVIDERS)
    for name in PROVIDERS:
        url = {"quicknode": "quicknode://name/abc", "publicnode": "publicnode://"}.get(name, f"{name}://abc")
        assert not check({"families": {"eth": {"mainnet": {"upstreams": [{"name": "a", "url": url}]}}}})


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("alchemy://", "must read alchemy://KEY"),
        ("alchemy://k/SECRET", "must read alchemy://KEY"),
        ("quicknode://SECRET", "must read quicknode://NAME/KEY"),
        ("infura://SECRET?x=y", "must read infura://KEY"),
        ("ankr://evil.example.com#", "must read ankr://KEY"),
        ("publicnode://SECRET", "must read publicnode://"),
        ("alchemy://YOUR-KEY", "still holds a placeholder: put your own key in its place"),
        ("https://eth.example.com/v2/YOUR_API_KEY", "still holds a placeholder"),
    ],
)
def test_an_invalid_shorthand_is_refused_without_quoting_its_key(url: str, message: str) -> None:
    problems = check({"families": {"eth": {"mainnet": {"upstreams": [{"name": "a", "url": url}]}}}})
    assert [message in problem.text for problem in problems] == [True]
    assert "SECRET" not in problems[0].text


def test_an_unknown_network_of_a_provider_is_refused_with_the_known_ones() -> None:
    (problem,) = check({"families": {"eth": {"gnosis": {"upstreams": [{"name": "a", "url": "ankr://SECRET"}]}}}})
    assert "not known for eth/gnosis (only eth/arbitrum, eth/base," in problem.text
    assert "SECRET" not in problem.text


def test_a_placeholder_in_a_header_is_refused() -> None:
    headers = {"Authorization": "Bearer YOUR-KEY"}
    upstream = {"name": "a", "url": "https://eth.example.com", "headers": headers}
    (problem,) = check({"families": {"eth": {"mainnet": {"upstreams": [upstream]}}}})
    assert "`Authorization` still holds a placeholder" in problem.text


def test_a_shorthand_is_loaded_as_addresses_and_shown_without_its_key(tmp_path: Path) -> None:
    file = tmp_path / "tollgate.toml"
    file.write_text(
        '[families.eth.mainnet]\nchain_id = 1\n[[families.eth.mainnet.upstreams]]\nname = "a"\n'
        'url = "alchemy://SECRET"\n[[families.eth.mainnet.upstreams]]\nname = "b"\n'
        'url = "infura://SECRET"\nws_url = ""\n'
    )
    settings = load(file, {}).settings
    network = settings.families["eth"]["mainnet"]
    assert network.chain_id == "0x1"
    assert network.upstreams[0].url == "https://eth-mainnet.g.alchemy.com/v2/SECRET"
    assert network.upstreams[0].ws_url == "wss://eth-mainnet.g.alchemy.com/v2/SECRET"
    assert network.upstreams[1].ws_url == ""
    assert "SECRET" not in str(effective(settings))
    assert "SECRET" not in repr(settings)


def test_an_invalid_chain_id_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tollgate.toml"
    file.write_text(
        '[families.eth.mainnet]\nchain_id = true\n[[families.eth.mainnet.upstreams]]\nname = "a"\n'
        'url = "publicnode://"\n'
    )
    with pytest.raises(SettingsError, match="chain_id` must be a string, not a boolean"):
        load(file, {})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("alchemy://SECRET", "alchemy://…"),
        ("quicknode://n/SECRET", "quicknode://…"),
        ("publicnode://", "publicnode://"),
    ],
)
def test_a_shorthand_is_masked(url: str, shown: str) -> None:
    assert endpoint(url) == shown
