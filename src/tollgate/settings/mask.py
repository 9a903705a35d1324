"""How a setting is shown to people: secrets masked, everything else as it is.

Owns the masks, and which texts are secrets. A secret without a mask of its own is hidden whole, so that a new
secret setting is safe before anyone thinks of it.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec

from tollgate.core.masking import HIDDEN, SecretMask
from tollgate.settings.lines import KeyPath, dotted
from tollgate.settings.providers import PROVIDERS, provider_of
from tollgate.settings.schema import SettingNode, leaves, root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tollgate.settings.model import Settings, UpstreamSettings

# The last `@` ends the user-info, as in SQLAlchemy: a password may hold an unescaped one.
_PASSWORD = re.compile(r"^([^:/]+://[^:/@]*):.*@", re.DOTALL)
# A part of a path that is no word: `v2` and `mainnet` are none, `rpc/v0_10` neither.
_KEY = re.compile(r"^(?=.*[0-9]).{10}|^.{20}")
_PASSWORD_PARAMETER = re.compile(r"([?&][^=&]*(?:pass|secret|token|key)[^=&]*=)[^&]*", re.IGNORECASE)
_SECRET_NAME = re.compile(r"pass|secret|token|key|auth", re.IGNORECASE)
# Providers put keys into paths; the path of a database is its name.
_OF_NODES = frozenset({"http", "https", "ws", "wss"})


def effective(settings: Settings) -> dict[str, Any]:
    """List every setting by its dotted key, fit to be shown."""
    values = msgspec.to_builtins(settings)
    return {dotted(path): shown(path, place, value) for path, place, value in leaves(root(), values)}


def shown(path: KeyPath, place: SettingNode, value: Any) -> Any:
    """Return the value of a setting, masked when it is a secret."""
    if not place.secret or not value:
        return value
    mask = _MASKS.get((path[0], path[-1]))
    return HIDDEN if mask is None else mask(value)


def endpoint(url: str) -> str:
    """Keep scheme, host and port of a URL: providers put API keys into the path. A shorthand is a key."""
    if (provider := provider_of(url)) is not None:
        return f"{provider}://{HIDDEN}" if PROVIDERS[provider].form != f"{provider}://" else url
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    host = parts.netloc.rpartition("@")[2]
    rest = parts.path.strip("/") or parts.query or parts.fragment
    return f"{parts.scheme}://{host}" + (f"/{HIDDEN}" if rest else parts.path)


def store_url(url: str) -> str:
    """Hide the password of a database URL."""
    return _PASSWORD_PARAMETER.sub(rf"\1{HIDDEN}", _PASSWORD.sub(rf"\1:{HIDDEN}@", url))


def secrets_in(settings: Settings) -> SecretMask:
    """Takes all secrets of the settings out of a text."""
    values = msgspec.to_builtins(settings)
    return SecretMask(
        text for _, place, value in leaves(root(), values) if place.secret and value for text in _texts(value)
    )


def upstream_secrets(upstreams: tuple[UpstreamSettings, ...]) -> SecretMask:
    """Takes out what these upstreams were sent as a secret: they may repeat it in their errors."""
    return SecretMask(
        text for each in upstreams for value in (each.url, each.ws_url, each.headers) for text in _texts(value)
    )


def _texts(value: str | dict[str, str]) -> Iterator[str]:
    """What is secret in a value, and as others may write it."""
    if isinstance(value, dict):
        for header in value.values():
            yield header
            yield header.rpartition(" ")[2]
    elif "://" in value:
        for text in _parts(value):
            yield from (text, unquote(text), quote(text, safe=""))
    else:
        yield value


def _parts(url: str) -> Iterator[str]:
    """What is secret in a URL: its password, and parts of its path and query that are named or look like keys."""
    try:
        parts = urlsplit(url)
    except ValueError:
        yield url
        return
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    if password:
        yield password
        yield base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
    yield from (each for name, each in parse_qsl(parts.query) if _SECRET_NAME.search(name) or _KEY.search(each))
    if parts.scheme in _OF_NODES:
        yield from (part for part in parts.path.split("/") if _KEY.search(part))
        if not password:
            yield user
    if (provider := provider_of(url)) is not None and PROVIDERS[provider].form != f"{provider}://":
        yield parts.netloc


def header_values(headers: dict[str, str]) -> dict[str, str]:
    return dict.fromkeys(headers, HIDDEN)


_MASKS: dict[tuple[str | int, str | int], Callable[[Any], Any]] = {
    ("families", "url"): endpoint,
    ("families", "ws_url"): endpoint,
    ("families", "headers"): header_values,
    ("store", "url"): store_url,
    ("shared", "url"): store_url,
    ("telemetry", "traces_headers"): header_values,
}
