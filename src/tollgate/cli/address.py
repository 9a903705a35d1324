"""Parsing of server addresses. Pure."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit, urlunsplit

from tollgate.cli.failures import WrongUsage

DEFAULT_URL = "http://127.0.0.1:8402"

_FORM = "write it like https://tollgate.example.com or http://127.0.0.1:8402"
_DEFAULT_PORTS = {"http": 80, "https": 443}


def normal(text: str, *, named: str) -> str:
    """Return an address in the normal form under which logins are stored; `named` is its source, for messages."""
    if not text.isprintable() or " " in text:
        raise WrongUsage(f"{named} is not an address: {_FORM}.")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise WrongUsage(f"{named} is not an address: {_FORM}.") from None
    if parts.scheme not in _DEFAULT_PORTS or not host:
        raise WrongUsage(f"{named} must start with http:// or https:// and a host: {_FORM}.")
    if parts.username is not None or parts.query or parts.fragment:
        raise WrongUsage(f"{named} may have neither user, query nor fragment: {_FORM}.")
    place = f"[{host}]" if ":" in host else host
    if port is not None and port != _DEFAULT_PORTS[parts.scheme]:
        place = f"{place}:{port}"
    return urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))


def is_loopback(url: str) -> bool:
    """Whether an address never leaves this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def from_here(link: str, url: str) -> str:
    """Return a server's link as it can be opened from here, where the server's address is `url`.

    A server without `server.base_url` writes 127.0.0.1, which may be another machine here.
    """
    if not is_loopback(link) or is_loopback(url):
        return link
    base, parts = urlsplit(url), urlsplit(link)
    return urlunsplit((base.scheme, base.netloc, base.path + parts.path, parts.query, parts.fragment))


def is_exposed(url: str) -> bool:
    """Whether secrets would be sent to it unencrypted over a network."""
    return url.startswith("http://") and not is_loopback(url)
