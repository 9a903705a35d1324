"""What particular settings must satisfy beyond their type: a table of rules.

Owns one small function for each rule. A rule takes the value at its place, whose own type is right while
the parts of a table may still be anything, and yields what is wrong and what to do. Pure: no file, no
network, no environment. A rule never quotes a secret.
"""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from tollgate.chains.catalogue import Catalogue
from tollgate.core.methods import is_pattern
from tollgate.settings.lines import KeyPath, dotted
from tollgate.settings.model import DEFAULT_METRICS_PORT, DEFAULT_PORT
from tollgate.settings.providers import expand, provider_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    # Which part of the value is meant, for its line, and what is wrong.
    Finding = tuple[KeyPath, str]
    Rule = Callable[[str, Any], Iterator[Finding]]

MIN_PEPPER = 32

_NAME = re.compile(r"[a-z0-9-]{1,32}")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PRINTABLE = re.compile(r"[ -~]*")
_URL_CHARACTERS = re.compile(r"[!-~]+")
# As examples and providers' pages write a key that is yet to come.
_PLACEHOLDER = re.compile(r"\byour[-_ ]?(api[-_ ]?)?(key|token)\b|<[a-z_-]*key>", re.IGNORECASE)
_DATABASE_URL = re.compile(r"[a-z][a-z0-9+]*://.*", re.DOTALL)
_SHARED_SCHEMES = ("valkey", "valkeys", "redis", "rediss")
# Written by the gateway itself for each request; a second copy would let two readers disagree about it.
_OWN_HEADERS = frozenset({
    "connection", "content-encoding", "content-length", "content-type", "expect", "host", "keep-alive",
    "te", "traceparent", "tracestate", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip


def rules_for(path: KeyPath, value: Any) -> Iterator[Finding]:
    in_families = path[:1] == ("families",)
    place = tuple("*" if in_families and depth in _CHOSEN_DEPTHS else part for depth, part in enumerate(path))
    for rule in _RULES.get(place, ()):
        yield from rule(dotted(path), value)
    if place in _NAMED and not _NAME.fullmatch(str(path[-1])):
        yield (), f"`{dotted(path)}` cannot be part of an address: name it with 1 to 32 of a-z, 0-9 and -"


def _family(key: str, networks: dict[str, Any]) -> Iterator[Finding]:
    if not networks:
        yield (), f"{key} has no networks: add [[{key}.mainnet.upstreams]] with name and url"


def _network(key: str, network: dict[str, Any]) -> Iterator[Finding]:
    upstreams = network.get("upstreams", [])
    if upstreams == []:
        yield (), f"{key} has no upstreams: add [[{key}.upstreams]] with name and url"
    if not isinstance(upstreams, list):
        return
    names: set[str] = set()
    for index, upstream in enumerate(upstreams):
        name = upstream.get("name") if isinstance(upstream, dict) else None
        if not isinstance(name, str):
            continue
        if name in names:
            part = ("upstreams", index, "name")
            yield part, f"{key} has a second upstream named {name!r}: give each a name of its own"
        names.add(name)


def _strict(key: str, network: dict[str, Any]) -> Iterator[Finding]:
    family = key.split(".")[1]
    is_open = network.get("open_methods") or network.get("domain_methods")
    if network.get("strict") is True and not is_open and not Catalogue(family).methods:
        advice = f"remove it, or name methods in `{key}.open_methods`"
        yield (
            ("strict",),
            f"`{key}.strict` refuses every method, as the family {family} has no catalogue: {advice}",
        )


def _tls(key: str, server: dict[str, Any]) -> Iterator[Finding]:
    for name, other in (("tls_certificate", "tls_key"), ("tls_key", "tls_certificate")):
        if server.get(name) and not server.get(other):
            yield (name,), f"`{key}.{name}` is set without `{key}.{other}`: set both, or neither for plain HTTP"


def _ports(key: str, server: dict[str, Any]) -> Iterator[Finding]:
    port, metrics_port = server.get("port", DEFAULT_PORT), server.get("metrics_port", DEFAULT_METRICS_PORT)
    if port == metrics_port != 0:
        part = ("metrics_port",) if "metrics_port" in server else ("port",)
        yield part, f"`{key}.metrics_port` is the same as `{key}.port`: metrics need a port of their own"


def _trusted_proxies(key: str, entries: list[Any]) -> Iterator[Finding]:
    for index, entry in enumerate(entries):
        if not isinstance(entry, str):
            continue
        try:
            network = ip_network(entry, strict=False)
        except ValueError:
            yield (index,), f"`{key}` has {entry!r}, no IP address or network: write one such as 10.0.0.0/8"
            continue
        if network.prefixlen == 0:
            yield (index,), f"`{key}` has {entry!r}, so callers could choose their address: name the proxies"


def _base_url(key: str, url: str) -> Iterator[Finding]:
    if not url:
        return
    advice = "write scheme and host alone, such as https://rpc.example.com"
    try:
        parts = _split(url)
    except ValueError as error:
        yield (), f"`{key}` {error}: {advice}"
        return
    if parts.scheme not in {"http", "https"}:
        yield (), f"`{key}` must begin with http:// or https://: {advice}"
    elif parts.path or parts.query or parts.fragment or url.endswith(("?", "#")):
        yield (), f"`{key}` must not have a path, a query or a trailing slash: {advice}"


def _upstream_url(key: str, url: str) -> Iterator[Finding]:
    if not url:
        return
    if _PLACEHOLDER.search(url):
        yield (), f"`{key}` still holds a placeholder: put your own key in its place"
        return
    try:
        if provider_of(url) is None:
            _split(url)
        else:
            _, family, network, *_ = key.split(".")
            expand(url, family, network)
    except ValueError as error:
        yield (), f"`{key}` {error}"
        return
    if "#" in url:
        yield (), f"`{key}` has a fragment (#…), which is never sent: remove it"


def _split(url: str) -> SplitResult:
    """Take a URL apart; the error names what is wrong and what to do, without quoting it."""
    # Checked first, because the standard parser drops tabs and line breaks silently.
    if not _URL_CHARACTERS.fullmatch(url):
        raise ValueError("has a space, control or non-ASCII character; percent-encode it, or use punycode")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("has a host or port that is not valid") from None
    if port == 0:
        raise ValueError("has port 0; give one between 1 and 65535, or none")
    if not parts.hostname:
        raise ValueError("has no host; write it after the two slashes")
    if "@" in parts.netloc:
        raise ValueError("has user-info before the host; send credentials in a header instead")
    return parts


def _headers(key: str, headers: dict[str, Any]) -> Iterator[Finding]:
    seen: set[str] = set()
    for position, (name, value) in enumerate(headers.items(), start=1):
        if not _TOKEN.fullmatch(name):
            # Not quoted: it may be a whole header line, value included.
            yield (name,), f"`{key}`: the name of header {position} has a character that is not allowed there"
            continue
        if name.lower() in seen:
            yield (name,), f"`{key}`: `{name}` is written twice: header names do not differ by case"
        seen.add(name.lower())
        if name.lower() in _OWN_HEADERS:
            yield (name,), f"`{key}`: `{name}` is set by the gateway itself: remove it"
        if isinstance(value, str) and _PLACEHOLDER.search(value):
            yield (name,), f"`{key}`: `{name}` still holds a placeholder: put your own key in its place"
        if isinstance(value, str) and not _PRINTABLE.fullmatch(value):
            yield (name,), f"`{key}`: the value of `{name}` may hold printable ASCII characters only"


def _methods(key: str, patterns: list[Any]) -> Iterator[Finding]:
    for index, pattern in enumerate(patterns):
        if isinstance(pattern, str) and not is_pattern(pattern):
            advice = "write a method such as eth_call, or a pattern such as debug_*"
            yield (index,), f"`{key}` has {pattern!r}: {advice}"


def _one_factor_key(key: str, secrets: dict[str, Any]) -> Iterator[Finding]:
    if secrets.get("factor_key") and secrets.get("factor_key_file"):
        yield ("factor_key_file",), f"`{key}.factor_key` and `{key}.factor_key_file` are both set: remove one"


def _pepper(key: str, pepper: str) -> Iterator[Finding]:
    if pepper and len(pepper) < MIN_PEPPER:
        advice = "such as those of `openssl rand -hex 32`, or leave it empty to have one made"
        yield (), f"`{key}` is too short: give {MIN_PEPPER} characters or more, {advice}"


def _store_url(key: str, url: str) -> Iterator[Finding]:
    if url and not _DATABASE_URL.fullmatch(url):
        yield (), f"`{key}` is not a database URL: write sqlite:////var/lib/tollgate/control.db or postgresql://…"


def _shared_url(key: str, url: str) -> Iterator[Finding]:
    if not url:
        return
    advice = "write valkey://host:6379/0, or redis://…"
    try:
        parts = urlsplit(url)
        # Read for its error.
        parts.port  # noqa: B018
    except ValueError:
        yield (), f"`{key}` has a host or port that is not valid: {advice}"
        return
    if parts.scheme not in _SHARED_SCHEMES or not parts.hostname or not _URL_CHARACTERS.fullmatch(url):
        yield (), f"`{key}` is not the address of a Valkey or Redis server: {advice}"
    elif parts.path.strip("/") and not parts.path.strip("/").isdecimal():
        yield (), f"`{key}` has a path that is no number of a database: {advice}"


def _traces_url(key: str, url: str) -> Iterator[Finding]:
    if not url:
        return
    advice = "write the address of an OTLP receiver, such as http://127.0.0.1:4318/v1/traces"
    try:
        parts = _split(url)
    except ValueError as error:
        yield (), f"`{key}` {error}: {advice}"
        return
    if parts.scheme not in ("http", "https") or parts.path in ("", "/"):
        yield (), f"`{key}` has no path, or begins with neither http:// nor https://: {advice}"


def _resolvers(key: str, entries: list[Any]) -> Iterator[Finding]:
    for index, entry in enumerate(entries):
        if isinstance(entry, str) and not _is_server(entry):
            yield (index,), f"`{key}` has {entry!r}, no DNS server: write an address such as 1.1.1.1 or [::1]:5353"


def _is_server(entry: str) -> bool:
    host, colon, port = entry.rpartition(":") if "." in entry or entry.startswith("[") else (entry, "", "")
    if entry.endswith("]") or not colon:
        host, port = entry, "53"
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return port.isdecimal() and 0 < int(port) < 65536


def _oidc(key: str, oidc: dict[str, Any]) -> Iterator[Finding]:
    issuer = oidc.get("issuer")
    if not isinstance(issuer, str) or not issuer:
        return
    advice = "write the provider's issuer URL, such as https://login.example.com"
    try:
        parts = _split(issuer)
    except ValueError as error:
        yield ("issuer",), f"`{key}.issuer` {error}: {advice}"
        return
    local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme != "https" and not (local and parts.scheme == "http"):
        yield ("issuer",), f"`{key}.issuer` must begin with https://: {advice}"
    elif parts.query or parts.fragment:
        yield ("issuer",), f"`{key}.issuer` must not have a query or a fragment: {advice}"
    for name in ("client_id", "client_secret"):
        if not oidc.get(name):
            yield ("issuer",), f"`{key}.issuer` is set without `{key}.{name}`: set what the provider gave to you"


def _mail(key: str, mail: dict[str, Any]) -> Iterator[Finding]:
    if mail.get("host") and not mail.get("sender"):
        yield ("host",), f"`{key}.host` is set without `{key}.sender`: set the address that mail comes from"
    if bool(mail.get("username")) != bool(mail.get("password")):
        name, other = ("username", "password") if mail.get("username") else ("password", "username")
        yield (name,), f"`{key}.{name}` is set without `{key}.{other}`: set both, or neither"


# Depths in `families.<family>.<network>.upstreams[<n>]` that hold a chosen name or a position.
_CHOSEN_DEPTHS = frozenset({1, 2, 4})
_NAMED = frozenset({("families", "*"), ("families", "*", "*")})
_RULES: dict[KeyPath, tuple[Rule, ...]] = {
    ("server",): (_tls, _ports),
    ("server", "trusted_proxies"): (_trusted_proxies,),
    ("server", "base_url"): (_base_url,),
    ("secrets", "pepper"): (_pepper,),
    ("secrets", "previous_pepper"): (_pepper,),
    ("secrets", "factor_key"): (_pepper,),
    ("secrets",): (_one_factor_key,),
    ("whitelist", "resolvers"): (_resolvers,),
    ("oidc",): (_oidc,),
    ("mail",): (_mail,),
    ("store", "url"): (_store_url,),
    ("shared", "url"): (_shared_url,),
    ("telemetry", "traces_url"): (_traces_url,),
    ("telemetry", "traces_headers"): (_headers,),
    ("families", "*"): (_family,),
    ("families", "*", "*"): (_network, _strict),
    ("families", "*", "*", "allow_methods"): (_methods,),
    ("families", "*", "*", "deny_methods"): (_methods,),
    ("families", "*", "*", "open_methods"): (_methods,),
    ("families", "*", "*", "domain_methods"): (_methods,),
    ("families", "*", "*", "upstreams", "*", "url"): (_upstream_url,),
    ("families", "*", "*", "upstreams", "*", "ws_url"): (_upstream_url,),
    ("families", "*", "*", "upstreams", "*", "allow_methods"): (_methods,),
    ("families", "*", "*", "upstreams", "*", "deny_methods"): (_methods,),
    ("families", "*", "*", "upstreams", "*", "headers"): (_headers,),
}
