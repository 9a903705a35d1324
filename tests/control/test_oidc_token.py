"""Which id tokens are believed: signed by a key of the provider, for this service, for this sign-in, now."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.control.oidc_fake import (
    DISCOVERY,
    ISSUER,
    KEY,
    NEXT_KEY,
    NOON,
    PERSON,
    SECRET,
    Provider,
    by_hand,
    half_hash,
    signed,
)

from tollgate.control.oidc_rules import OidcError


@pytest.fixture
def provider() -> Provider:
    return Provider()


# ---- the id token

UNSIGNED = "has no signature that this service trusts"


async def test_algorithm_none_is_refused(provider: Provider) -> None:
    for name in ("none", "None", "NONE"):
        provider.sign = by_hand({"alg": name, "kid": "one"}, None)
        with pytest.raises(OidcError, match=UNSIGNED):
            await provider.run()


async def test_public_key_is_no_shared_secret(provider: Provider) -> None:
    for secret in (KEY.as_pem(private=False), json.dumps(KEY.as_dict(private=False)).encode(), SECRET.encode()):
        provider.sign = by_hand({"alg": "HS256", "kid": "one"}, secret)
        with pytest.raises(OidcError, match=UNSIGNED):
            await provider.run()


async def test_symmetric_key_of_the_provider_is_not_used(provider: Provider) -> None:
    provider.keys.append(
        {"kty": "oct", "k": base64.urlsafe_b64encode(b"k" * 32).decode().rstrip("="), "kid": "mac"}
    )
    provider.sign = by_hand({"alg": "HS256", "kid": "mac"}, b"k" * 32)
    with pytest.raises(OidcError, match=UNSIGNED):
        await provider.run()


async def test_algorithm_that_the_provider_does_not_announce_is_refused(provider: Provider) -> None:
    provider.sign = signed(alg="PS256")
    with pytest.raises(OidcError, match=UNSIGNED):
        await provider.run()


async def test_signature_of_another_key_is_refused(provider: Provider) -> None:
    provider.sign = signed(NEXT_KEY, kid="one")
    with pytest.raises(OidcError, match=UNSIGNED):
        await provider.run()


async def test_changed_claims_are_refused(provider: Provider) -> None:
    def forge(claims: dict[str, Any]) -> str:
        head, _, tail = signed()(claims).split(".")
        body = base64.urlsafe_b64encode(json.dumps({**claims, "sub": "another"}).encode()).decode().rstrip("=")
        return f"{head}.{body}.{tail}"

    provider.sign = forge
    with pytest.raises(OidcError, match=UNSIGNED):
        await provider.run()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"iss": "https://evil.example.com"}, "comes from another provider"),
        ({"iss": f"{ISSUER}/"}, "comes from another provider"),
        ({"aud": "another"}, r"meant for another service.*`oidc\.client_id`"),
        ({"aud": []}, "meant for another service"),
        ({"aud": ["tollgate", "another"]}, "meant for another service"),
        ({"aud": ["tollgate", "another"], "azp": "another"}, "meant for another service"),
        ({"azp": "another"}, "meant for another service"),
        ({"exp": NOON - 61}, "not valid at this time.*clock"),
        ({"exp": "tomorrow"}, "not valid at this time"),
        ({"exp": float("nan")}, "not valid at this time"),
        ({"exp": None}, "not valid at this time"),
        ({"iat": NOON + 62}, "not valid at this time"),
        ({"nbf": NOON + 62}, "not valid at this time"),
        ({"nonce": "of-another-sign-in"}, "belongs to another sign-in.*Start again"),
        ({"nonce": None}, "belongs to another sign-in"),
        ({"at_hash": "AAAA"}, "contradicts itself"),
        ({"at_hash": 5}, "contradicts itself"),
        ({"sub": ""}, "is incomplete"),
        ({"sub": 5}, "is incomplete"),
        ({"sub": "x" * 256}, "did not return your identity"),
    ],
)
async def test_claims_are_checked(provider: Provider, changes: dict[str, object], words: str) -> None:
    provider.claims |= changes
    with pytest.raises(OidcError, match=words):
        await provider.run()


@pytest.mark.parametrize("name", ["iss", "sub", "aud", "exp", "iat", "nonce"])
async def test_claim_that_must_be_there_is_missed(provider: Provider, name: str) -> None:
    def sign(claims: dict[str, Any]) -> str:
        return signed()({key: claims[key] for key in claims if key != name})

    provider.sign = sign
    with pytest.raises(OidcError, match="The sign-in provider's statement about you"):
        await provider.run()


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": NOON - 59},
        {"iat": NOON + 59},
        {"aud": ["tollgate"]},
        {"aud": ["tollgate", "another"], "azp": "tollgate"},
        {"at_hash": half_hash("at-1")},
    ],
)
async def test_claims_within_the_rules_pass(provider: Provider, changes: dict[str, object]) -> None:
    provider.claims |= changes
    assert await provider.run() == PERSON


async def test_new_key_is_fetched_once_and_kept(provider: Provider) -> None:
    client = provider.client()
    assert await provider.sign_in(client) == PERSON
    provider.keys, provider.sign = [dict(NEXT_KEY.as_dict(private=False))], signed(NEXT_KEY)
    for _ in range(2):
        del provider.claims["nonce"]
        assert await provider.sign_in(client) == PERSON
    assert provider.paths == [DISCOVERY, "/keys", "/token", "/token", DISCOVERY, "/keys", "/token"]


async def test_key_that_stays_unknown_is_looked_for_once(provider: Provider) -> None:
    provider.sign = signed(NEXT_KEY)
    with pytest.raises(OidcError, match=UNSIGNED):
        await provider.run()
    assert provider.paths == [DISCOVERY, "/keys", "/token", DISCOVERY, "/keys"]


@given(st.text(st.characters(codec="utf-8"), max_size=40) | st.from_regex(r"\A[\w-]{0,9}(\.[\w-]{0,9}){0,4}\Z"))
async def test_no_text_in_place_of_an_id_token_is_more_than_refused(token: str) -> None:
    provider = Provider()
    provider.sign = lambda _: token
    with pytest.raises(OidcError):
        await provider.run()
