from __future__ import annotations

import pytest
from msgspec import inspect as mi

from tollgate.settings.mask import effective, endpoint, shown, store_url
from tollgate.settings.model import NetworkSettings, Settings, UpstreamSettings
from tollgate.settings.schema import SettingNode


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("https://node.example.com/v1/KEY", "https://node.example.com/…"),
        ("https://node.example.com:8443/?key=KEY", "https://node.example.com:8443/…"),
        ("https://user:KEY@node.example.com/", "https://node.example.com/"),
        ("http://127.0.0.1:8545", "http://127.0.0.1:8545"),
        ("http://[::1/KEY", "…"),
    ],
)
def test_of_an_upstream_only_scheme_and_host_are_shown(url: str, masked: str) -> None:
    assert endpoint(url) == masked


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("postgresql+psycopg://user:KEY@host:5432/db", "postgresql+psycopg://user:…@host:5432/db"),
        ("postgresql://user:K@E:/Y@host/db", "postgresql://user:…@host/db"),
        ("postgresql://user@host/db?password=KEY&sslmode=require", "postgresql://user@host/db?password=…&sslmode=require"),
        ("postgresql://host:5432/db", "postgresql://host:5432/db"),
        ("sqlite:////var/lib/tollgate/control.db", "sqlite:////var/lib/tollgate/control.db"),
    ],
)  # fmt: skip
def test_of_a_store_url_only_the_password_is_hidden(url: str, masked: str) -> None:
    assert store_url(url) == masked


def test_a_secret_without_a_mask_of_its_own_is_hidden_whole() -> None:
    secret = SettingNode(mi.StrType(), secret=True)
    assert shown(("new", "secret"), secret, "KEY") == "…"
    assert shown(("new", "secret"), secret, "") == ""


def test_an_upstream_shows_the_names_of_its_headers_without_their_values() -> None:
    upstream = UpstreamSettings(name="a", url="https://node/KEY", headers={"Authorization": "Bearer KEY"})
    values = effective(Settings(families={"eth": {"mainnet": NetworkSettings(upstreams=(upstream,))}}))
    assert values["families.eth.mainnet.upstreams[0].headers"] == {"Authorization": "…"}
    assert values["families.eth.mainnet.upstreams[0].name"] == "a"
