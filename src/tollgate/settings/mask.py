"""How a setting is shown to people: secrets masked, everything else as it is.

Owns the masks and nothing else. A secret without a mask of its own is hidden whole, so that a new secret
setting is safe before anyone thinks of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from tollgate.settings.lines import KeyPath, dotted
from tollgate.settings.providers import PROVIDERS, provider_of
from tollgate.settings.schema import SettingNode, leaves, root

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollgate.settings.model import Settings

HIDDEN = "…"

# The last `@` ends the user-info, as in SQLAlchemy: a password may hold an unescaped one.
_PASSWORD = re.compile(r"^([^:/]+://[^:/@]*):.*@", re.DOTALL)
_PASSWORD_PARAMETER = re.compile(r"([?&][^=&]*(?:pass|secret|token|key)[^=&]*=)[^&]*", re.IGNORECASE)


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
