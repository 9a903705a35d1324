"""Where a browser call comes from, and which domains a team may own.

Owns two rules: how an `Origin` header becomes a host, and what a root domain is. An origin is a claim of the
browser, so it is parsed as a URL and compared label by label, never as text: globs and suffixes of strings
let `notexample.com` or `example.com.evil.com` pass. `Referer` is never read.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path

import idna

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
# A URL as it is copied from a browser, which leaves out https://; the path and what follows it is not read.
_URL = re.compile(
    r"(?:https?://)?([^\s/?#@:\[\]\\]{1,253})(?::[0-9]{1,5})?(?:[/?#][^\s\\@]*)?", re.IGNORECASE | re.ASCII
)
_LOOPBACK = re.compile(
    r"(?:https?://)?(?:127(?:\.[0-9]{1,3}){1,3}|0\.0\.0\.0|\[::1\])(?=[:/?#]|$)", re.IGNORECASE | re.ASCII
)
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
    return last.isdigit() or re.fullmatch(r"0x[0-9a-f]*", last) is not None


def candidates(host: str) -> list[str]:
    """The names that would let this host pass: itself and its parents, longest first."""
    labels = host.split(".")
    return [".".join(labels[start:]) for start in range(max(0, len(labels) - _MAX_LABELS), len(labels))]


def preload() -> None:
    """Read the list of public suffixes, which takes a moment: before a request waits for it."""
    root_domain("example.com")


def root_in(text: str, *, allow_localhost: bool = False) -> str:
    """The root domain that a text names: a root itself, or any URL of a page below one.

    A name alone must be the root: one who writes app.example.com may not mean all of example.com.
    """
    text = text.strip()
    found = _URL.fullmatch(text)
    if found is None or found[1] == text:
        return root_domain(text, allow_localhost=allow_localhost)
    try:
        return root_domain(found[1], allow_localhost=allow_localhost)
    except NotARootDomain as refused:
        if not refused.suggestion:
            raise
        return refused.suggestion


def is_loopback(text: str) -> bool:
    """Whether an origin or URL has an address of the machine itself, as development servers print it."""
    return _LOOPBACK.match(text) is not None


def root_domain(name: str, *, allow_localhost: bool = False) -> str:
    """Return the name as it is whitelisted, or raise NotARootDomain with the root to use instead."""
    host = normal_host(name.strip())
    if host is None and is_loopback(name.strip()):
        raise NotARootDomain(
            f"{name!r} is an address of your own machine: open the page as http://localhost, and whitelist "
            "localhost."
        )
    if host is None:
        raise NotARootDomain(
            f"{name!r} is not a domain name: give a name such as example.com, without scheme, port or path."
        )
    if host == LOCALHOST:
        if allow_localhost:
            return host
        raise NotARootDomain("localhost may be whitelisted only with whitelist.allow_localhost = true.")
    labels = host.split(".")
    length = _suffix_length(labels)
    if not length:
        raise NotARootDomain(f"{host} is not under a known public suffix: give a domain such as example.com.")
    if length == len(labels):
        raise NotARootDomain(f"{host} is a public suffix, shared by many owners: give a domain below it.")
    root = ".".join(labels[-length - 1 :])
    if root != host:
        raise NotARootDomain(f"{host} is not a root domain: use {root}, which covers all its subdomains.", root)
    return root


def _suffix_length(labels: list[str]) -> int:
    """How many labels the public suffix of a name has (publicsuffix.org/list); 0: it has none."""
    rules = _suffixes()
    for start in range(len(labels)):
        name, parent = ".".join(labels[start:]), ".".join(labels[start + 1 :])
        if f"!{name}" in rules:
            return len(labels) - start - 1
        if name in rules or f"*.{parent}" in rules:
            return len(labels) - start
    return 0


@functools.cache
def _suffixes() -> frozenset[str]:
    """The rules of the list, private ones included, names as they are in DNS.

    From the list inside tldextract, never a download; read without it, since its tree of labels takes 9 MB and the
    libraries it downloads with 3 more.
    """
    spec = importlib.util.find_spec("tldextract")
    (folder,) = (spec.submodule_search_locations if spec is not None else None) or ("",)
    lines = Path(folder, ".tld_set_snapshot").read_text(encoding="utf-8").splitlines()
    rules = [line.split()[0] for line in lines if line.strip() and not line.startswith("//")]
    return frozenset((*(rule if rule.isascii() else _in_dns(rule) for rule in rules), *SHARED_GATEWAYS))


def _in_dns(rule: str) -> str:
    labels = (
        label if label.isascii() else "xn--" + label.encode("punycode").decode("ascii")
        for label in rule.split(".")
    )
    return ".".join(labels)
