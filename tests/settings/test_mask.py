from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from msgspec import inspect as mi

from tollgate.core.masking import SecretMask
from tollgate.settings.mask import effective, endpoint, secrets_in, shown, store_url, upstream_secrets
from tollgate.settings.model import NetworkSettings, Settings, StoreSettings, UpstreamSettings
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


# --- In texts of others ----------------------------------------------------------------------------------------

KEY = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    "fields",
    [
        {"url": f"https://eth-mainnet.example.com/v2/{KEY}"},
        {"url": f"https://node.example.com/{KEY}/"},
        {"url": f"https://node.example.com/?apikey={KEY}"},
        {"url": f"https://user:{KEY}@node.example.com/rpc"},
        {"url": f"https://{KEY}@node.example.com/rpc"},
        {"url": "https://node.example.com/rpc", "ws_url": f"wss://node.example.com/ws/v3/{KEY}"},
        {"url": "https://node.example.com/rpc", "headers": {"X-Api-Key": KEY}},
        {"url": "https://node.example.com/rpc", "headers": {"Authorization": f"Bearer {KEY}"}},
    ],
)
def test_what_an_upstream_is_sent_as_a_secret_is_taken_out_of_texts(fields: dict[str, Any]) -> None:
    upstream = UpstreamSettings(name="a", **fields)
    mask = upstream_secrets((upstream,))
    assert mask.text(f"mainnet v2 rpc: Must be authenticated: /v2/{KEY}!") == (
        "mainnet v2 rpc: Must be authenticated: /v2/…!"
    )
    everything = Settings(families={"eth": {"mainnet": NetworkSettings(upstreams=(upstream,))}})
    assert KEY not in secrets_in(everything).text(f"failed: {upstream.url} {upstream.ws_url} {upstream.headers}")


def test_user_and_password_are_found_as_a_header_writes_them() -> None:
    mask = upstream_secrets((UpstreamSettings(name="a", url="https://me:pass%2Fword@node.example.com/"),))
    sent = base64.b64encode(b"me:pass/word").decode()
    for text in ("pass%2Fword", "pass/word", sent):
        assert mask.text(f"not allowed: {text}") == "not allowed: …"


def test_words_of_urls_are_no_secrets() -> None:
    settings = Settings(
        store=StoreSettings(url="postgresql://me:hunter22@db-17.example.com/tollgate1234?sslmode=require"),
        families={
            "starknet": {
                "mainnet": NetworkSettings(
                    upstreams=(
                        UpstreamSettings(name="a", url="https://node.example.com/rpc/v0_10?network=sepolia"),
                    )
                )
            }
        },
    )
    told = "tollgate1234 at db-17.example.com requires sslmode=require; rpc/v0_10 of sepolia"
    assert secrets_in(settings).text(told + " hunter22") == told + " …"


def test_secret_is_taken_out_of_json_however_it_is_written() -> None:
    mask = SecretMask(["key/with=slash&more", KEY])
    written = b'{"code":-32000,"message":"at key\\/with\\u003dslash\\u0026more","data":{"%b":["%b",1.50]}}' % (
        KEY.encode(),
        KEY.encode(),
    )
    assert msgspec.json.decode(mask.json(written)) == {
        "code": -32000,
        "message": "at …",
        "data": {"…": ["…", 1.5]},
    }


@pytest.mark.parametrize("written", [b'{"code":3,"message":"a\\/b","data":1.50}', b'{ "code": 3 }'])
def test_json_without_a_secret_stays_as_it_was_written(written: bytes) -> None:
    assert SecretMask([KEY]).json(written) == written
    assert SecretMask([]).json(written) == written


def test_json_that_cannot_be_searched_is_not_shown() -> None:
    deep = b'{"message":"%b","data":%b' % (KEY.encode(), b"[" * 100_000)
    assert KEY.encode() not in SecretMask([KEY]).json(deep)
