"""Rules for the messages of an OpenID Connect provider: plain functions, each refusal with its message.

Owns the values of a sign-in, its one error, and every check of the provider's documents, its callback and its id
token. No request, clock or state must enter: `oidc.py` does the I/O. Errors repeat nothing that the provider wrote
and nothing secret.

Authlib validates the claims of an id token; joserfc, the successor of Authlib's JOSE part, checks signatures.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from tollgate.errors import TollgateError
from tollgate.lazy_module import LazyModule
from tollgate.settings.model import OidcSettings

if TYPE_CHECKING:
    import httpx
    from authlib.oidc import core as id_tokens  # type: ignore[import-untyped]
    from joserfc import errors, jwk, jws, jwt
else:
    # Only installations with a provider need them.
    httpx, id_tokens = LazyModule("httpx"), LazyModule("authlib.oidc.core")
    errors, jwk, jws, jwt = (LazyModule(f"joserfc.{name}") for name in ("errors", "jwk", "jws", "jwt"))

LEEWAY_SECONDS = 60
SUBJECT_CHARACTERS = 255  # OpenID Connect Core 1.0, section 2
EMAIL_CHARACTERS = 254
NAME_CHARACTERS = 200

# Only asymmetric ones: with HS256 a public key would be a shared secret, and `none` proves nothing. EdDSA is
# omitted because RFC 9864 retires that name, and hardly any provider signs id tokens with it.
ALGORITHMS = frozenset(f"{family}{bits}" for family in ("RS", "PS", "ES") for bits in (256, 384, 512))
KEY_TYPES = frozenset({"RSA", "EC"})
CODE = re.compile(r"[\x20-\x7e]{1,4096}")
AUTH_METHODS = ("client_secret_basic", "client_secret_post")

AGAIN = "Start again from the sign-in page."
LATER = "Try again in a few minutes."
CONTACT = "If it persists, contact the operator of this service"

# RFC 6749 (4.1.2.1 and 5.2) and OpenID Connect Core 1.0 (3.1.2.6).
_SIGN_IN_THERE = f"The sign-in provider requires you to sign in or to give consent there first. {AGAIN}"
_INTERNAL_ERROR = f"The sign-in provider reports an internal error. {LATER}"
_NOT_UNDERSTOOD = (
    "The sign-in provider does not accept this service's requests. Contact the operator of this service: at the"
    " provider, the client must be allowed the authorization code flow, and this service's redirect URI."
)
REFUSALS = {
    "access_denied": "The sign-in was cancelled at the provider. Start again, or sign in another way.",
    "login_required": _SIGN_IN_THERE,
    "consent_required": _SIGN_IN_THERE,
    "interaction_required": _SIGN_IN_THERE,
    "account_selection_required": _SIGN_IN_THERE,
    "server_error": _INTERNAL_ERROR,
    "temporarily_unavailable": _INTERNAL_ERROR,
    "invalid_request": _NOT_UNDERSTOOD,
    "unauthorized_client": _NOT_UNDERSTOOD,
    "unsupported_response_type": _NOT_UNDERSTOOD,
    "unsupported_grant_type": _NOT_UNDERSTOOD,
    "invalid_scope": (
        "The sign-in provider refuses the scopes that this service asks for. Contact the operator of this service:"
        " check `oidc.scopes`."
    ),
    "invalid_client": (
        "The sign-in provider does not accept this service's credentials. Contact the operator of this service:"
        " check `oidc.client_id` and `oidc.client_secret`."
    ),
    "invalid_grant": f"The sign-in took too long, or was finished before. {AGAIN}",
}

_CLOCK = f"is not valid at this time. {AGAIN} {CONTACT}: its clock may be wrong."
_AUDIENCE = "is meant for another service. Contact the operator of this service: check `oidc.client_id`."
UNTRUSTED = {
    "exp": _CLOCK,
    "iat": _CLOCK,
    "nbf": _CLOCK,
    "aud": _AUDIENCE,
    "azp": _AUDIENCE,
    "iss": "comes from another provider. Contact the operator of this service: check `oidc.issuer`.",
    "nonce": f"belongs to another sign-in. {AGAIN}",
}


class OidcError(TollgateError):
    """The sign-in failed. The message is for the person at the browser and includes what to do next."""


class ProviderIdentity(Struct, frozen=True):
    """A person's identity at the provider: issuer and subject together. An email can change."""

    issuer: str
    subject: str
    email: str
    email_verified: bool
    name: str


class SignInStart(Struct, frozen=True):
    """A sign-in in progress: where the browser is sent, and what is needed when it returns."""

    url: str
    state: str
    nonce: str
    verifier: str

    def __repr__(self) -> str:
        # The query of the URL carries the state and the nonce.
        return f"Start(url={self.url.partition('?')[0]!r}, …)"


class Metadata(Struct, frozen=True):
    """The members of a discovery document that are used. Defaults are those of OpenID Connect Discovery 1.0."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    id_token_signing_alg_values_supported: tuple[str, ...] = ("RS256",)
    authorization_response_iss_parameter_supported: bool = False


class KeyDocument(Struct, frozen=True):
    """The provider's keys as it publishes them."""

    keys: tuple[dict[str, Any], ...]


class OidcProvider(Struct, frozen=True):
    """The provider's metadata and keys, as read at one moment."""

    metadata: Metadata
    keys: jwk.KeySet
    read_at: float


class ProviderTokens(Struct, frozen=True):
    """The tokens that a code was redeemed for."""

    id_token: str = ""
    access_token: str = ""
    token_type: str = ""

    def __repr__(self) -> str:
        return "Tokens(…)"


class _TokenRefusal(Struct, frozen=True):
    error: str = ""


# ---- settings and the provider's documents


def check_settings(settings: OidcSettings) -> None:
    """Refuse settings that would make sign-in unsafe."""
    if not is_safe_url(settings.issuer, local=True) or httpx.URL(settings.issuer).query:
        raise OidcError(
            "`oidc.issuer` must be an https:// URL without query and fragment (http:// for a provider on this"
            " machine): write it as the provider's discovery document does."
        )
    if not settings.client_id or not settings.client_secret:
        raise OidcError("Set `oidc.client_id` and `oidc.client_secret` to what the provider gave to this service.")


def is_local(url: str) -> bool:
    host = httpx.URL(url).host
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_safe_url(url: str, *, local: bool) -> bool:
    """Return whether secrets may be sent there: over TLS, or, where `local` allows it, on this machine."""
    try:
        urlsplit(url)  # as Authlib will; it refuses hosts that httpx lets pass
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        return False
    if not parsed.host or parsed.userinfo or parsed.fragment:
        return False
    return parsed.scheme == "https" or (parsed.scheme == "http" and local and is_local(url))


def check_metadata(metadata: Metadata, issuer: str) -> None:
    """Refuse a discovery document of another provider, or an unsafe one."""
    if metadata.issuer != issuer:
        raise OidcError(
            "The sign-in provider reports another issuer than this service expects. Contact the operator of this"
            " service: `oidc.issuer` must be written exactly as `issuer` in the provider's discovery document, a"
            " slash at its end included."
        )
    urls = [metadata.authorization_endpoint, metadata.token_endpoint, metadata.jwks_uri]
    if metadata.userinfo_endpoint:
        urls.append(metadata.userinfo_endpoint)
    if not all(is_safe_url(url, local=is_local(issuer)) for url in urls):
        raise OidcError(
            "The sign-in provider names addresses that are not safe. Contact the operator of this service: every"
            " endpoint in the provider's discovery document must be an https:// URL."
        )
    signing_algorithms(metadata)
    auth_method(metadata)


def signing_algorithms(metadata: Metadata) -> list[str]:
    """Return those of the provider's signing algorithms that are accepted: at least one."""
    names = sorted(ALGORITHMS.intersection(metadata.id_token_signing_alg_values_supported))
    # Never an empty list: joserfc then uses its defaults, HS256 included.
    if not names:
        raise OidcError(
            "The sign-in provider offers no accepted signature. Contact the operator of this service: at the"
            " provider, id tokens must be signed with RS256 or another RS, PS or ES algorithm."
        )
    return names


def auth_method(metadata: Metadata) -> str:
    for name in AUTH_METHODS:
        if name in metadata.token_endpoint_auth_methods_supported:
            return name
    raise OidcError(
        "The sign-in provider accepts no client secret. Contact the operator of this service:"
        f" the provider must allow {AUTH_METHODS[0]} or {AUTH_METHODS[1]}."
    )


def import_keys(document: KeyDocument) -> jwk.KeySet:
    """Return the keys that may sign id tokens. Keys that cannot be read are skipped."""
    keys: list[jwk.Key] = []
    for data in document.keys:
        try:
            if data.get("kty") in KEY_TYPES and data.get("use", "sig") == "sig":
                keys.append(jwk.JWKRegistry.import_key(data))
        except (errors.JoseError, ValueError, TypeError, KeyError):
            continue
    return jwk.KeySet(keys)


# ---- the callback and the token endpoint


def check_start(params: Mapping[str, str], start: SignInStart) -> None:
    """Refuse a callback of a sign-in that this browser did not start."""
    given, kept = (text.encode("utf-8", "surrogatepass") for text in (params.get("state", ""), start.state))
    # Authlib does not compare an empty nonce.
    if not hmac.compare_digest(given, kept) or not (start.state and start.nonce and start.verifier):
        raise OidcError(f"This sign-in was not started in this browser, or is too old. {AGAIN}")


def callback_code(params: Mapping[str, str], metadata: Metadata) -> str:
    """Return the code that the provider sent with the browser; raise OidcError if there is none."""
    # RFC 9207: a code of another provider must not be redeemed at this one.
    issuer = params.get("iss")
    missing = issuer is None and metadata.authorization_response_iss_parameter_supported
    if missing or issuer not in (None, metadata.issuer):
        raise OidcError(f"The answer did not come from the expected provider. {AGAIN}")
    if "error" in params:
        raise OidcError(REFUSALS.get(params["error"], f"The sign-in provider did not sign you in. {AGAIN}"))
    code = params.get("code", "")
    if not CODE.fullmatch(code):
        raise OidcError(f"The sign-in provider answered without a usable code. {AGAIN}")
    return code


def token_refusal(status: int, body: bytes) -> OidcError:
    try:
        error = msgspec.json.decode(body, type=_TokenRefusal).error
    except (msgspec.MsgspecError, ValueError, RecursionError):
        error = ""
    if status == httpx.codes.UNAUTHORIZED:
        error = "invalid_client"
    return OidcError(
        REFUSALS.get(error, f"The sign-in provider did not finish the sign-in (HTTP {status}). {AGAIN}")
    )


# ---- the id token and the person


def verified_claims(
    provider: OidcProvider, tokens: ProviderTokens, client_id: str, nonce: str, now: float
) -> dict[str, Any]:
    """Return the claims of a valid id token; raise `InvalidKeyIdError` for an unknown key."""
    metadata = provider.metadata
    rules = {
        "iss": {"essential": True, "value": metadata.issuer},
        "sub": {"essential": True},
        "aud": {"essential": True, "value": client_id},
    }
    # `at_hash`, if present, binds the access token to the id token.
    facts = {"nonce": nonce, "client_id": client_id, "access_token": tokens.access_token}
    registry = jws.JWSRegistry(algorithms=signing_algorithms(metadata), strict_check_header=False)
    try:
        token = jwt.decode(tokens.id_token, provider.keys, registry=registry)
        claims = id_tokens.CodeIDToken(token.claims, token.header, rules, facts)
        claims.validate(now=int(now), leeway=LEEWAY_SECONDS)
    except errors.InvalidKeyIdError:
        raise
    except (errors.JoseError, ValueError, TypeError, RecursionError) as error:
        raise untrusted(error) from error
    return dict(claims)


def untrusted(error: Exception) -> OidcError:
    """Return the error for an id token that is not valid."""
    if isinstance(error, errors.ClaimError):
        why = UNTRUSTED.get(error.claim, f"is incomplete or contradicts itself. {AGAIN} {CONTACT}.")
    else:
        why = f"has no signature that this service trusts. {AGAIN} {CONTACT}."
    return OidcError(f"The sign-in provider's statement about you {why}")


def subject_of(claims: Mapping[str, Any]) -> str:
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_CHARACTERS:
        raise OidcError(f"The sign-in provider did not return your identity. {AGAIN} {CONTACT}.")
    return subject


def email_of(claims: Mapping[str, Any]) -> str:
    """Return the email address of the claims, or an empty text."""
    email = claims.get("email")
    if not isinstance(email, str) or len(email) > EMAIL_CHARACTERS or not email.isprintable():
        return ""
    return email if re.fullmatch(r"[^\s@]+@[^\s@]+", email) else ""


def name_of(claims: Mapping[str, Any]) -> str:
    """Return the name of the claims, or an empty text if it has unprintable characters."""
    name = claims.get("name")
    if not isinstance(name, str):
        return ""
    return "".join(character for character in " ".join(name.split()) if character.isprintable())[:NAME_CHARACTERS]


def make_claim(
    issuer: str, claims: Mapping[str, Any], userinfo: Mapping[str, Any], scopes: str
) -> ProviderIdentity:
    """Build a person's identity; the email and its verification come from the same source."""
    source = claims if email_of(claims) else userinfo
    email = email_of(source)
    if not email:
        raise OidcError(
            "The sign-in provider gave no email address. Add one to your account there; if it has one, contact the"
            " operator of this service: "
            + (
                "the provider must allow the scope `email` to this client."
                if "email" in scopes.split()
                else "add the scope `email` to `oidc.scopes`."
            )
        )
    # Some providers write booleans as strings.
    verified = source.get("email_verified") in (True, "true")
    return ProviderIdentity(issuer, subject_of(claims), email, verified, name_of(source) or name_of(claims))
