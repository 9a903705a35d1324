"""Signing in with OpenID Connect, against a scripted provider: the way through, the callback, the person.

The real provider is in tests/e2e/test_oidc_client.py.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from tests.control.oidc_fake import (
    CALLBACK,
    DISCOVERY,
    EC_KEY,
    ISSUER,
    PERSON,
    SECRET,
    Provider,
    signed,
)

from tollgate.control.oidc_rules import OidcError, SignInStart
from tollgate.settings.model import OidcSettings


@pytest.fixture
def provider() -> Provider:
    return Provider()


# ---- a sign-in


async def test_sign_in_returns_the_identity(provider: Provider) -> None:
    assert await provider.run() == PERSON
    assert provider.paths == [DISCOVERY, "/keys", "/token"]


async def test_browser_is_sent_with_state_nonce_and_challenge_and_without_the_verifier(provider: Provider) -> None:
    start = await provider.client().start()
    address, _, _ = start.url.partition("?")
    query = {name: values[0] for name, values in parse_qs(urlsplit(start.url).query).items()}
    digest = hashlib.sha256(start.verifier.encode()).digest()
    assert address == f"{ISSUER}/auth"
    assert query == {
        "response_type": "code",
        "client_id": "tollgate",
        "redirect_uri": CALLBACK,
        "scope": "openid email profile",
        "state": start.state,
        "nonce": start.nonce,
        "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
        "code_challenge_method": "S256",
    }
    assert 43 <= len(start.verifier) <= 128


async def test_two_sign_ins_share_nothing(provider: Provider) -> None:
    client = provider.client()
    one, two = await client.start(), await client.start()
    assert not {one.state, one.nonce, one.verifier} & {two.state, two.nonce, two.verifier}


async def test_code_is_redeemed_with_the_verifier_and_encoded_basic_credentials(provider: Provider) -> None:
    await provider.run()
    request = provider.requests[-1]
    form = {name: values[0] for name, values in parse_qs(request.content.decode()).items()}
    basic = base64.b64decode(request.headers["Authorization"].removeprefix("Basic ")).decode()
    assert basic == "tollgate:s3cret%2B%2F+%25"
    assert len(form.pop("code_verifier")) == 43
    assert form == {"grant_type": "authorization_code", "code": "code-1", "redirect_uri": CALLBACK}


async def test_secret_is_posted_where_the_provider_takes_it_only_there(provider: Provider) -> None:
    provider.metadata["token_endpoint_auth_methods_supported"] = ["private_key_jwt", "client_secret_post"]
    await provider.run()
    form = parse_qs(provider.requests[-1].content.decode())
    assert (form["client_id"], form["client_secret"]) == (["tollgate"], [SECRET])
    assert "Authorization" not in provider.requests[-1].headers


async def test_issuer_with_a_slash_at_its_end_is_kept_as_it_is(provider: Provider) -> None:
    provider.metadata["issuer"] = provider.claims["iss"] = f"{ISSUER}/"
    settings = OidcSettings(issuer=f"{ISSUER}/", client_id="tollgate", client_secret=SECRET)
    assert (await provider.run(settings)).issuer == f"{ISSUER}/"
    assert provider.paths[0] == DISCOVERY


async def test_elliptic_curve_signature_is_accepted(provider: Provider) -> None:
    provider.keys.append(dict(EC_KEY.as_dict(private=False)))
    provider.sign = signed(EC_KEY, "ES256")
    assert await provider.run() == PERSON


async def test_keys_that_are_not_understood_do_not_spoil_the_others(provider: Provider) -> None:
    odd: list[dict[str, Any]] = [
        {"kty": "AKP"},
        {"kty": []},
        {"kty": "EC", "crv": "P-1"},
        {"kty": "RSA", "n": "!"},
    ]
    provider.keys = [*odd, {"kty": "oct", "k": "AAAA", "kid": "one"}, *provider.keys]
    assert await provider.run() == PERSON


async def test_cookies_of_the_provider_are_not_kept(provider: Provider) -> None:
    await provider.run()
    assert all("Cookie" not in request.headers for request in provider.requests)


@pytest.mark.parametrize(
    ("sent_claim", "verified"), [(True, True), ("true", True), (False, False), (1.5, False), (None, False)]
)
async def test_email_is_verified_only_where_the_provider_reports_it(
    provider: Provider, sent_claim: object, verified: bool
) -> None:
    provider.claims["email_verified"] = sent_claim
    assert (await provider.run()).email_verified is verified


async def test_name_is_cut_and_cleaned(provider: Provider) -> None:
    provider.claims["name"] = "Ada\n \u202eLovelace" + "x" * 1000
    assert (await provider.run()).name == ("Ada Lovelace" + "x" * 1000)[:200]


# ---- the callback


@pytest.mark.parametrize("state", ["wrong", "", None, "ä\ud800"])
async def test_wrong_state_is_refused_before_anything_is_requested(provider: Provider, state: str | None) -> None:
    with pytest.raises(OidcError, match=r"not started in this browser.*Start again"):
        await provider.run(state=state)
    assert "/token" not in provider.paths


@pytest.mark.parametrize("kept", [("", "n", "v"), ("s", "", "v"), ("s", "n", "")])
async def test_start_with_an_empty_part_is_refused(provider: Provider, kept: tuple[str, str, str]) -> None:
    with pytest.raises(OidcError, match="not started in this browser"):
        await provider.client().finish({"state": kept[0], "code": "c"}, SignInStart("", *kept))


async def test_answer_of_another_issuer_is_refused(provider: Provider) -> None:
    with pytest.raises(OidcError, match="did not come from the expected provider"):
        await provider.run(iss="https://evil.example.com")
    assert "/token" not in provider.paths


async def test_issuer_missing_from_the_answer_is_refused_where_it_is_announced(provider: Provider) -> None:
    provider.metadata["authorization_response_iss_parameter_supported"] = True
    assert await provider.run(iss=ISSUER) == PERSON
    for error in (None, "access_denied"):
        with pytest.raises(OidcError, match="did not come from the expected provider"):
            await provider.run(error=error)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("access_denied", r"cancelled at the provider\. Start again"),
        ("login_required", "sign in or to give consent there first"),
        ("temporarily_unavailable", "Try again in a few minutes"),
        ("invalid_scope", r"check `oidc\.scopes`"),
        ("unauthorized_client", "redirect URI"),
        ("<b>made up</b>", "did not sign you in"),
    ],
)
async def test_error_of_the_provider_becomes_plain_words(provider: Provider, error: str, words: str) -> None:
    with pytest.raises(OidcError, match=words) as caught:
        await provider.run(error=error, error_description="<script>raw</script>")
    assert "<" not in str(caught.value)


@pytest.mark.parametrize("code", [None, "", "ä", "\ud800", "x" * 5000])
async def test_callback_without_a_usable_code_is_refused(provider: Provider, code: str | None) -> None:
    with pytest.raises(OidcError, match="without a usable code"):
        await provider.run(code=code)


# ---- the token endpoint


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, b'{"error":"invalid_client","error_description":"raw"}', r"check `oidc\.client_id` and"),
        (401, b"raw", r"check `oidc\.client_id` and"),
        (400, b'{"error":"invalid_client"}', r"check `oidc\.client_id` and"),
        (400, b'{"error":"invalid_grant"}', r"took too long, or was finished before\. Start again"),
        (500, b'{"error":"server_error"}', "Try again in a few minutes"),
        (502, b"<html>raw</html>", r"did not finish the sign-in \(HTTP 502\)"),
        (400, b'{"error":["raw"]}', r"did not finish the sign-in \(HTTP 400\)"),
    ],
)
async def test_refused_code_is_reported_in_plain_words(
    provider: Provider, status: int, body: bytes, words: str
) -> None:
    provider.instead["/token"] = lambda _: httpx.Response(status, content=body)
    with pytest.raises(OidcError, match=words) as caught:
        await provider.run()
    assert "raw" not in str(caught.value)


async def test_answer_without_an_id_token_names_the_scope(provider: Provider) -> None:
    provider.instead["/token"] = lambda _: httpx.Response(200, json={"access_token": "a", "token_type": "Bearer"})
    with pytest.raises(OidcError, match="must contain `openid`"):
        await provider.run()


# ---- the email


async def test_email_is_requested_where_the_id_token_has_none(provider: Provider) -> None:
    for name in ("email", "email_verified", "name"):
        provider.userinfo[name] = provider.claims.pop(name)
    assert await provider.run() == PERSON
    assert provider.paths[-1] == "/me"
    assert provider.requests[-1].headers["Authorization"] == "Bearer at-1"


async def test_verification_of_one_source_does_not_vouch_for_the_email_of_another(provider: Provider) -> None:
    provider.userinfo["email"] = provider.claims.pop("email")
    claim = await provider.run()
    assert (claim.email, claim.email_verified, claim.name) == (PERSON.email, False, PERSON.name)


@pytest.mark.parametrize("sent_claim", [{"sub": "another"}, {}, {"sub": None}])
async def test_userinfo_of_another_subject_is_refused(provider: Provider, sent_claim: dict[str, object]) -> None:
    del provider.claims["email"]
    provider.userinfo = {"email": "eve@example.com", "email_verified": True, **sent_claim}
    with pytest.raises(OidcError, match="returned another person"):
        await provider.run()


@pytest.mark.parametrize("tokens", [{"token_type": "DPoP"}, {"access_token": "a\r\nX: y"}, {"access_token": "ä"}])
async def test_access_token_that_cannot_be_sent_is_refused(provider: Provider, tokens: dict[str, str]) -> None:
    del provider.claims["email"]
    provider.tokens |= tokens
    with pytest.raises(OidcError, match="no usable access token"):
        await provider.run()


@pytest.mark.parametrize(
    "email", ["", "ada", "a@b@c", "ada @example.com", "a\u202e@example.com", 5, None, "a@" + "b" * 254]
)
async def test_invalid_email_address_counts_as_none(provider: Provider, email: object) -> None:
    provider.claims["email"] = provider.userinfo["email"] = email
    with pytest.raises(OidcError, match="gave no email address"):
        await provider.run()


@pytest.mark.parametrize("endpoint", [True, False])
async def test_missing_email_names_the_scope(provider: Provider, endpoint: bool) -> None:
    del provider.claims["email"]
    if not endpoint:
        del provider.metadata["userinfo_endpoint"]
    with pytest.raises(OidcError, match="must allow the scope `email`"):
        await provider.run()
    without = OidcSettings(issuer=ISSUER, client_id="tollgate", client_secret=SECRET, scopes="openid profile")
    del provider.claims["nonce"]
    with pytest.raises(OidcError, match=r"add the scope `email` to `oidc\.scopes`"):
        await provider.run(without)


# ---- secrets


async def test_reprs_hide_secrets(provider: Provider) -> None:
    client = provider.client()
    start = await client.start()
    shown = f"{client!r} {start!r} {client} {start}"
    assert ISSUER in shown
    for secret in (SECRET, start.state, start.nonce, start.verifier):
        assert secret not in shown
