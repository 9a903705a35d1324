"""Where a browser call comes from, and which domains a team may own.

Owns two rules: how an `Origin` header becomes a host, and what a root domain is. An origin is a claim of the
browser, so it is parsed as a URL and compared label by label, never as text: globs and suffixes of strings
let `notexample.com` or `example.com.evil.com` pass. `Referer` is never read.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from typing import TYPE_CHECKING

import idna

if TYPE_CHECKING:
    from tldextract import TLDExtract

LOCALHOST = "localhost"

# Shared gateways that give every user a subdomain but are missing in the public suffix list. Without them one
# user of eth.limo could whitelist, and be billed for, all the others.
SHARED_GATEWAYS = (
    "ipfs.io",
    "dweb.link",
    "ipfs.dweb.link",
    "ipns.dweb.link",
    "eth.limo",
    "eth.link",
    "fleek.co",
)

# RFC 6454: scheme "://" host [ ":" port ], nothing else. No user-info, no path, no brackets (IPv6).
_ORIGIN = re.compile(r"(https?)://([^\s/?#@:\[\]\\]{1,253})(?::([0-9]{1,5}))?", re.IGNORECASE | re.ASCII)
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")

# Roots have few labels: the longest suffix in the list has five. More would only feed the store.
_MAX_LABELS = 8


class NotARootDomain(ValueError):
    """A name that cannot be whitelisted; `suggestion` is the root to use instead, if there is one."""

    def __init__(self, message: str, suggestion: str = "") -> None:
        self.suggestion = suggestion
        super().__init__(message)


def host_of(origin: str, *, allow_localhost: bool) -> str | None:
    """Return the host that an Origin header names, or None where none can ever be whitelisted."""
    match = _ORIGIN.fullmatch(origin)
    if match is None or int(match[3] or 0) > 65535:
        return None
    host = normal_host(match[2])
    if host is None:
        return None
    if host == LOCALHOST or host.endswith("." + LOCALHOST):
        return host if allow_localhost else None
    return host if match[1].lower() == "https" else None


def normal_host(name: str) -> str | None:
    """IDNA-encode and lower-case a host name, without one trailing dot; None for what is not a name."""
    name = name.removesuffix(".")
    if not name.isascii():
        try:
            name = idna.encode(name, uts46=True).decode()
        except idna.IDNAError:
            return None
    name = name.lower()
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        return None
    return None if _is_address(name) else name


def _is_address(name: str) -> bool:
    # Browsers read 127.1, 0x7f.1 and 2130706433 as IPv4 addresses: a name whose last label is a number is one.
    last = name.rpartition(".")[2]
    if last.isdigit() or re.fullmatch(r"0x[0-9a-f]*", last):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def candidates(host: str) -> list[str]:
    """The names that would let this host pass: itself and its parents, longest first."""
    labels = host.split(".")
    return [".".join(labels[start:]) for start in range(max(0, len(labels) - _MAX_LABELS), len(labels))]


def preload() -> None:
    """Read the list of public suffixes, which takes a fifth of a second: before anybody waits for it."""
    root_domain("example.com")


def root_domain(name: str, *, allow_localhost: bool = False) -> str:
    """Return the name as it is whitelisted, or raise NotARootDomain with the root to use instead."""
    host = normal_host(name.strip())
    if host is None:
        raise NotARootDomain(
            f"{name!r} is not a domain name: give a name such as example.com, without scheme, port or path."
        )
    if host == LOCALHOST:
        if allow_localhost:
            return host
        raise NotARootDomain("localhost may be whitelisted only with whitelist.allow_localhost = true.")
    parts = _extract()(host)
    root = parts.top_domain_under_public_suffix
    if not parts.suffix:
        raise NotARootDomain(f"{host} is not under a known public suffix: give a domain such as example.com.")
    if not root:
        raise NotARootDomain(f"{host} is a public suffix, shared by many owners: give a domain below it.")
    if root != host:
        raise NotARootDomain(f"{host} is not a root domain: use {root}, which covers all its subdomains.", root)
    return root


@functools.cache
def _extract() -> TLDExtract:
    # The list inside the package, never a download; imported late because the gateway does not need it.
    from tldextract import TLDExtract  # noqa: PLC0415

    return TLDExtract(
        suffix_list_urls=(),
        cache_dir=None,
        fallback_to_snapshot=True,
        include_psl_private_domains=True,
        extra_suffixes=SHARED_GATEWAYS,
    )
