"""Callers: which credential decides, what is refused, and how often unknown callers may call."""

import gc
import tracemalloc
from typing import Any

import pytest
from tests.gateway.callers import OTHER_TEAM, TOKEN, digest, request, token_grant, with_token
from tests.gateway.calls import identify, refusal
from tests.gateway.fake_gateway import FakeGateway

from tollgate.core import secrets
from tollgate.errors import (
    OriginNotAllowed,
    TokenExpired,
    TokenInvalid,
    TokenMissing,
)
from tollgate.gateway.access import credentials
from tollgate.gateway.messages import Request


def in_path(token: str, **headers: Any) -> Request:
    incoming = request(**headers)
    incoming.path_token = token.encode()
    return incoming


# --- Which credential decides ------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER ", "Bearer   "])
async def test_token_is_known_by_its_header_with_the_scheme_in_any_case(scheme: str, gateway: FakeGateway) -> None:
    for _ in range(2):
        caller = await identify(gateway, request(authorization=f"{scheme}{TOKEN}"))
        assert caller.grant == token_grant()
    assert gateway.store.lookups == [digest(TOKEN)]


@pytest.mark.parametrize("header", ["Basic abc", TOKEN, "Bearer", "", f"Token {TOKEN}", f"path {TOKEN}"])
async def test_other_schemes_are_refused_without_a_look_up(header: str, gateway: FakeGateway) -> None:
    refused = await refusal(gateway, request(authorization=header, origin="https://example.com"))
    assert isinstance(refused, TokenInvalid)
    assert gateway.store.lookups == []


async def test_scheme_that_looks_like_a_token_of_the_path_is_refused_too(gateway: FakeGateway) -> None:
    gateway.store.tokens[digest(TOKEN)] = token_grant(allow_in_url=True)
    await identify(gateway, in_path(TOKEN))
    assert isinstance(await refusal(gateway, request(authorization=f"path {TOKEN}")), TokenInvalid)


async def test_authorization_decides_alone(gateway: FakeGateway) -> None:
    other = secrets.new_token()
    gateway.store.tokens[digest(other)] = token_grant(OTHER_TEAM, allow_in_url=True)
    caller = await identify(gateway, in_path(other, authorization=f"Bearer {TOKEN}", origin="https://example.com"))
    assert caller.team_id == "team_1"
    unknown = f"Bearer {secrets.new_token()}"
    bad = await refusal(gateway, request(authorization=unknown, origin="https://example.com"))
    assert isinstance(bad, TokenInvalid)


async def test_token_of_the_path_comes_before_the_origin(gateway: FakeGateway) -> None:
    gateway.store.tokens[digest(TOKEN)] = token_grant(OTHER_TEAM, allow_in_url=True)
    for _ in range(2):
        caller = await identify(gateway, in_path(TOKEN, origin="https://example.com"))
        assert caller.team_id == "team_2"


async def test_token_of_the_path_must_allow_it(gateway: FakeGateway) -> None:
    for _ in range(2):
        refused = await refusal(gateway, in_path(TOKEN))
        assert isinstance(refused, TokenInvalid)
        assert "Authorization header" in refused.message
    assert (await identify(gateway, with_token())).team_id == "team_1"
    assert isinstance(await refusal(gateway, in_path(TOKEN)), TokenInvalid)


@pytest.mark.parametrize(
    "host", ["example.com", "app.example.com", "a.b.example.com", "EXAMPLE.com", "example.com."]
)
async def test_whitelisted_domain_and_its_subdomains_pass(host: str, gateway: FakeGateway) -> None:
    for _ in range(2):
        assert (await identify(gateway, request(origin=f"https://{host}:8443"))).grant.domain is not None
    assert len(gateway.store.lookups) == 1


async def test_no_credentials_at_all(gateway: FakeGateway) -> None:
    assert isinstance(await refusal(gateway, request(referer="https://example.com/")), TokenMissing)


# --- Refusals ----------------------------------------------------------------------------------------------


async def test_mistyped_token_is_refused_without_a_look_up(gateway: FakeGateway) -> None:
    mistyped = TOKEN[:10] + ("a" if TOKEN[10] != "a" else "b") + TOKEN[11:]
    for token in (mistyped, TOKEN + "x", TOKEN[:-1], "tg_", "x" * 5_000, "ä" * 41):
        for incoming in (with_token(token=token), in_path(token)):
            assert isinstance(await refusal(gateway, incoming), TokenInvalid)
    assert gateway.store.lookups == []
    assert gateway.meters.taken == []


async def test_unknown_and_disabled_tokens_answer_alike(gateway: FakeGateway) -> None:
    del gateway.store.tokens[digest(TOKEN)]
    first = await refusal(gateway, with_token())
    again = await refusal(gateway, with_token())
    unknown = await refusal(gateway, with_token(token=secrets.new_token()))
    assert {(type(each), each.message, each.headers) for each in (first, again, unknown)} == {
        (TokenInvalid, TokenInvalid.hint, ((b"www-authenticate", b"Bearer"),))
    }


async def test_token_expires_at_its_moment_also_when_it_is_in_memory(gateway: FakeGateway) -> None:
    gateway.store.tokens[digest(TOKEN)] = token_grant(expires_at=gateway.wall() + 60)
    await identify(gateway, with_token())
    gateway.wall.advance(59)
    await identify(gateway, with_token())
    gateway.wall.advance(1)
    assert isinstance(await refusal(gateway, with_token()), TokenExpired)


async def test_origin_that_is_not_whitelisted_is_named_with_the_command_that_would_allow_it(
    gateway: FakeGateway,
) -> None:
    for _ in range(2):
        refused = await refusal(gateway, request(origin="https://app.unknown.co.uk"))
        assert isinstance(refused, OriginNotAllowed)
        assert "https://app.unknown.co.uk" in refused.message
        assert "tollgate rpc whitelist add unknown.co.uk --team <TEAM>" in refused.message
        assert refused.data == {"origin": "https://app.unknown.co.uk"}
    assert len(gateway.store.lookups) == 1


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://example.com",
        "https://user@example.com",
        "https://192.0.2.1",
        "https://[::1]",
        "http://localhost",
        "https://example.com/",
        "https://example.com,https://example.com",
        "ftp://example.com",
        "https://" + "a." * 20_000 + "example.com",
    ],
)
async def test_origin_that_can_never_be_whitelisted_is_refused_without_a_look_up(
    origin: str, gateway: FakeGateway
) -> None:
    refused = await refusal(gateway, request(origin=origin))
    assert isinstance(refused, OriginNotAllowed)
    assert "Authorization: Bearer" in refused.message
    assert len(refused.message) < 1_000
    assert gateway.store.lookups == []


@pytest.mark.parametrize("host", ["notexample.com", "example.com.evil.org", "example.org"])
async def test_look_alike_is_refused(host: str, gateway: FakeGateway) -> None:
    assert isinstance(await refusal(gateway, request(origin=f"https://{host}")), OriginNotAllowed)


async def test_invented_origins_do_not_fill_the_memory(gateway: FakeGateway) -> None:
    tracemalloc.start()
    for number in range(500):
        await refusal(gateway, request(origin=f"https://{number}" + "x" * 60_000))
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 3_000_000


async def test_what_is_remembered_of_credentials_is_bounded(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "_MAX_DIGESTS", 2)
    monkeypatch.setattr(credentials, "_MAX_HOSTS", 2)
    remembered = []
    for name in "abc":
        await identify(gateway, request(origin=f"https://{name}.example.com"))
        await refusal(gateway, with_token(token=secrets.new_token()))
        remembered.append((len(gateway.credentials._hosts), len(gateway.credentials._digests)))
    assert remembered == [(1, 1), (2, 2), (1, 1)]


async def test_of_an_origin_that_can_never_be_whitelisted_the_beginning_is_shown(gateway: FakeGateway) -> None:
    refused = await refusal(gateway, request(origin="ftp://" + "x" * 300))
    assert refused.data == {"origin": "ftp://" + "x" * 250}
