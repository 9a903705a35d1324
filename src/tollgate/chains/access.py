"""Which methods callers may call on a network: what the catalogue declares, and what the operator has opened.

Pure. Rules by a method's name; what tokens for some contracts may call depends on parameters too (`contracts`).

any caller          not what steers a node, unless it is opened; only what the catalogue knows where the network is
                    strict; what the network's lists allow
whitelisted domain  of that, only what the catalogue knows to be harmless and cheap, unless it is opened to domains
"""

from __future__ import annotations

from collections.abc import Sequence

from tollgate.chains.catalogue import KNOWN, Catalogue, steers
from tollgate.chains.methods import Cost
from tollgate.core.methods import Policy, is_name, listed, matches

_CLOSED = (
    "it needs a token: send the header Authorization: Bearer <token>, or let the operator open it to domains "
    "(`domain_methods`)."
)


def refusal_of(method: str, catalogue: Catalogue, policy: Policy) -> str | None:
    """Why a method is closed on a network, or None where it may be called."""
    if steers(method) and not matches(method, policy.opened):
        return "It steers a node, writes its files or uses its keys: the operator can open it (`open_methods`)."
    if not is_name(method):
        return "A method's name has printable ASCII characters and no space."
    if policy.strict and catalogue.method(method) is None and not matches(method, policy.opened + policy.domains):
        return (
            "It is not in the catalogue of this family, and the network is strict: the operator can open it "
            "(`open_methods`)."
        )
    return listed(method, policy)


def domain_refusal_of(method: str, catalogue: Catalogue, policy: Policy) -> str | None:
    """Why a caller from a whitelisted domain may not call a method that is open, or None where it may."""
    if matches(method, policy.domains):
        return None
    if not catalogue.methods:
        return f"The family {catalogue.family} has no catalogue of methods, so {_CLOSED}"
    known = catalogue.method(method)
    if known is None:
        return f"It is not in the catalogue of this family, so {_CLOSED}"
    if steers(method):
        return f"It steers a node, writes its files or uses its keys, so {_CLOSED}"
    return f"It is expensive, so {_CLOSED}" if known.cost is Cost.EXPENSIVE else None


def may_be_called(pattern: str, opened: Sequence[str]) -> bool:
    """Whether a pattern of a token's list can let anything through where these methods are opened."""
    open_names = (*opened, *(name for name in KNOWN if not steers(name)))
    return not steers(pattern) or matches(pattern, opened) or any(matches(each, [pattern]) for each in open_names)
