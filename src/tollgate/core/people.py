"""Accounts and how they sign in, as values: accounts, logins, memberships, invitations, the audit log.

Frozen; no behaviour that needs a clock or a store. Secrets are digests here, never clear, and a repr hides even
those.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from tollgate.api import me
from tollgate.core.pricing import dollars

# Columns whose values a repr never shows.
_HIDDEN = frozenset(
    {
        "password_hash",
        "digest",
        "refresh_digest",
        "old_refresh_digest",
        "code_digest",
        "body_digest",
        "answer",
        "secret",
    }
)


class _Guarded(Struct, frozen=True):
    def __rich_repr__(self) -> list[tuple[str, Any]]:
        shown = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return [(name, "…" if value and name in _HIDDEN else value) for name, value in shown]

    def __repr__(self) -> str:
        words = (f"{name}={'…' if value == '…' else repr(value)}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({', '.join(words)})"


class Account(_Guarded, frozen=True):
    """A person."""

    id: str
    email: str
    """Lower-cased."""
    created_at: float
    name: str = ""
    password_hash: str = ""
    """Argon2id in PHC form; empty where only a provider signs this person in."""
    verified_at: float | None = None
    """Since when the address is known to be theirs."""
    active: bool = True
    operator: bool = False
    """Whether they see the operator's pages."""


# Kinds of factors.
PASSKEY, TOTP, RECOVERY = "passkey", "totp", "recovery"


class Factor(_Guarded, frozen=True):
    """What signs an account in beside its password, or after it."""

    id: str
    account_id: str
    kind: str
    name: str
    created_at: float
    secret: bytes
    """A passkey's public key, the sealed secret of a TOTP, or the digest of a recovery code."""
    credential: bytes | None = None
    """The id of a passkey."""
    counter: int = 0
    """How often a passkey was used, by its own counter; of a TOTP the newest step that was accepted."""
    last_used_at: float | None = None
    active: bool = True
    """Whether a TOTP was confirmed by a first code."""


class Identity(Struct, frozen=True):
    """An account at an OpenID Connect provider that signs a person in."""

    id: str
    account_id: str
    issuer: str
    subject: str
    created_at: float


# Kinds of logins.
CONSOLE, TOOL, PERSONAL = me.KINDS


class Login(_Guarded, frozen=True):
    """A login of an account: a browser's session, the tool's login, or a personal access token."""

    id: str
    account_id: str
    kind: str
    name: str
    created_at: float
    digest: bytes
    expires_at: float | None = None
    """When the secret runs out; of a tool's login the access token."""
    last_used_at: float | None = None
    address: str = ""
    """The client address that it was created from."""
    agent: str = ""
    refresh_digest: bytes | None = None
    old_refresh_digest: bytes | None = None
    """The previous one: used again, either it was stolen or the tool lost the response."""
    refreshed_at: float | None = None
    refresh_until: float | None = None
    team_id: str | None = None
    """The one team that a personal access token is for."""
    read_only: bool = False
    """Whether a personal access token can only read."""
    authenticated_at: float | None = None
    """When its owner last authenticated: of a tool's login and a personal token, for the session that approved or
    created it. None: not known."""


# What a device login may be.
PENDING, APPROVED, DENIED = "pending", "approved", "denied"


class DeviceLogin(_Guarded, frozen=True):
    """A tool that waits for a person to approve it (RFC 8628)."""

    id: str
    digest: bytes
    """Of the device code, which the tool holds."""
    code_digest: bytes
    """Of the user code, which the person types."""
    machine: str
    address: str
    agent: str
    created_at: float
    expires_at: float
    interval: int
    polled_at: float | None = None
    state: str = PENDING
    account_id: str | None = None
    authenticated_at: float | None = None
    """When the person who approved it last authenticated."""


class Member(Struct, frozen=True):
    """An account in a team."""

    id: str
    team_id: str
    account_id: str
    role: str
    created_at: float
    created_by: str = ""


class Invitation(_Guarded, frozen=True):
    """A link for one person to join a team or, from the operator, to sign up for the service."""

    id: str
    email: str
    digest: bytes
    created_at: float
    expires_at: float
    created_by: str = ""
    team_id: str | None = None
    role: str = ""
    by_operator: bool = False
    """Whether an account can be created with it while sign-up is closed."""

    @property
    def by_oneself(self) -> bool:
        """Whether it was requested at sign-up: only the mailbox of this address has received it."""
        return self.created_by == self.email and self.team_id is None

    @property
    def proves_address(self) -> bool:
        """Whether having the link verifies the address."""
        return self.by_operator or self.by_oneself


class ResetLink(_Guarded, frozen=True):
    """A link that lets a password be set, once."""

    id: str
    account_id: str
    digest: bytes
    created_at: float
    expires_at: float


class Failures(Struct, frozen=True):
    """Failed attempts at one thing: an account's password, an address, a person's codes."""

    id: str
    count: int
    created_at: float
    """When the last one failed."""


class Replay(_Guarded, frozen=True):
    """What was answered to a request with an `Idempotency-Key`; `status` 0 while it runs."""

    id: str
    body_digest: bytes
    created_at: float
    status: int = 0
    answer: bytes = b""


class AuditEntry(Struct, frozen=True):
    """Who changed what, when, from where."""

    id: str
    created_at: float
    action: str
    """`token.create` and the like."""
    actor: str
    """The person's address, or `operator`."""
    actor_id: str | None = None
    team_id: str | None = None
    target: str = ""
    name: str = ""
    details: str = "{}"
    """JSON; never a secret."""
    address: str = ""
    via: str = ""
    """How the actor was logged in."""
    request_id: str = ""
    chain: str = ""
    """These five by `audit_chain`."""
    number: int = 0
    previous: str = ""
    hash: str = ""
    mac: str = ""


# How names of amounts end, and of times.
_MICROS, _TIMES, _PRICE = "_micros", ("_at", "_until"), "micros_per_million"


def detail_texts(details: Mapping[str, Any]) -> list[tuple[str, str]]:
    """An audit entry's details as texts: of a change, from what to what."""
    before, after = details.get("before"), details.get("after")
    if not isinstance(before, dict) or not isinstance(after, dict):
        return [(_label(name), _text(name, value)) for name, value in details.items()]
    changed = [
        (_label(name), f"{_text(name, before.get(name))} → {_text(name, value)}")
        for name, value in after.items()
        if before.get(name) != value
    ]
    rest = {name: value for name, value in details.items() if name not in ("before", "after")}
    return [*changed, *detail_texts(rest)]


def _label(name: str) -> str:
    if name == _PRICE:
        return "price for a million"
    return name.removesuffix(_MICROS).removesuffix("_at").replace("_", " ")


def _text(name: str, value: object) -> str:
    """A value as it is read: a list is its items."""
    if value is None or value in ("", [], ()):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) and (name.endswith(_MICROS) or name == _PRICE):
        return dollars(int(value))
    if isinstance(value, int | float) and name.endswith(_TIMES):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(_text("", each) for each in value)
    return " ".join(value.split()) if isinstance(value, str) else json.dumps(value)
