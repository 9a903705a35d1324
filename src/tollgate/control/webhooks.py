"""Which webhook URLs are accepted. `outbound.py` calls them."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from msgspec import Struct

from tollgate.api.billing import MAX_WEBHOOK
from tollgate.control.outbound import HTTPS_PORT, FetchRefused
from tollgate.core.origins import normal_host

# Besides 443, none of the ports below 1024, where other services listen.
MIN_PORT = 1_024
# In path and query: what RFC 3986 allows, and nothing that another parser could take for the end of the host.
_VISIBLE = re.compile(r"[!-~]+")
_ACCEPTED = (
    f"A webhook is an https:// URL of a named host, at most {MAX_WEBHOOK} characters of ASCII, at port "
    f"{HTTPS_PORT} or from {MIN_PORT} on, without a user name or a fragment: https://example.com/tollgate"
)


class Target(Struct, frozen=True):
    """Where a webhook is called."""

    host: str
    url: str

    def __repr__(self) -> str:
        # The rest of the URL is often a secret.
        return f"Target({self.host!r})"


def target_of(text: str) -> Target:
    """Parse the URL of a webhook; raise FetchRefused if it is not accepted."""
    # Characters that urlsplit silently removes, such as line ends, are refused first.
    if len(text) > MAX_WEBHOOK or not _VISIBLE.fullmatch(text) or "#" in text or "\\" in text:
        raise FetchRefused(_ACCEPTED)
    try:
        parts = urlsplit(text)
        port = HTTPS_PORT if parts.port is None else parts.port
    except ValueError:
        raise FetchRefused(_ACCEPTED) from None
    host = normal_host(parts.hostname or "")
    fits = parts.scheme == "https" and host is not None and "@" not in parts.netloc
    if not fits or host is None or (port != HTTPS_PORT and not MIN_PORT <= port <= 65535):
        raise FetchRefused(_ACCEPTED)
    place = host if port == HTTPS_PORT else f"{host}:{port}"
    return Target(host, f"https://{place}{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}")
