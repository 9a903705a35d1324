"""HTTP to one server through urllib3: deadlines, bounds, and every way a connection can fail as a Failure.

Owns sockets and nothing else: routes, credentials and JSON must not enter. It follows no redirect, so that a
credential is sent only to its server.
"""

from __future__ import annotations

import socket
import ssl
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from msgspec import Struct
from urllib3 import exceptions as broken

from tollgate import __version__
from tollgate.cli.address import is_loopback
from tollgate.cli.failures import Failure, Lost, NoServer, NotTollgate, TooSlow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CONNECT_SECONDS = 10.0
READ_SECONDS = 40.0
LARGEST_ANSWER = 32 * 1024 * 1024
"""Far above a page of a thousand audit entries."""

# Long enough for a restarting server to listen again, short enough not to be noticed.
_PAUSE_AFTER_REFUSAL = 0.2
_CHUNK = 64 * 1024
_READS = frozenset({"GET", "HEAD"})


class HttpReply(Struct, frozen=True):
    """An answer, not decoded."""

    status: int
    headers: Mapping[str, str]
    """Case-insensitive."""
    body: bytes

    def __repr__(self) -> str:
        return f"Reply({self.status})"  # a body may hold a secret


class Transport:
    """Requests to one server. Use it as a context manager, so that its connections are closed."""

    def __init__(
        self,
        url: str,
        *,
        total: float = CONNECT_SECONDS + READ_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url
        self._read = min(READ_SECONDS, total)
        self._sleep = sleep
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS, total=total)
        proxy = _proxy(url)
        self._pool = (
            urllib3.ProxyManager(proxy, timeout=timeout, retries=False)
            if proxy
            else urllib3.PoolManager(timeout=timeout, retries=False)
        )

    def __enter__(self) -> Transport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close open connections; a later request opens a new one."""
        self._pool.clear()

    def send(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> HttpReply:
        """Send a request and read its answer. A GET is retried once if the connection is refused."""
        try:
            return self._once(method, path, headers, body)
        except NoServer as error:
            if method != "GET" or not _refused(error):
                raise
        self._sleep(_PAUSE_AFTER_REFUSAL)
        return self._once(method, path, headers, body)

    def _once(self, method: str, path: str, headers: Mapping[str, str] | None, body: bytes | None) -> HttpReply:
        named = {"User-Agent": f"tollgate/{__version__}", "Accept": "application/json", **(headers or {})}
        try:
            response = self._pool.request(
                method, self.url + path, headers=named, body=body, redirect=False, preload_content=False
            )
            content = self._content(response, changes=method not in _READS)
        except broken.HTTPError as error:
            raise _failure(error, self.url, self._read, changes=method not in _READS) from error
        return HttpReply(response.status, response.headers, content)

    def _content(self, response: urllib3.BaseHTTPResponse, *, changes: bool) -> bytes:
        """Read a body within its bounds. The deadline is for all of it, however slowly it arrives."""
        deadline = time.monotonic() + self._read
        parts: list[bytes] = []
        size = 0
        while part := response.read1(_CHUNK):
            parts.append(part)
            size += len(part)
            if size > LARGEST_ANSWER:
                response.close()
                raise NotTollgate(f"The answer of {self.url} is too long: that is not a Tollgate.")
            if time.monotonic() > deadline:
                response.close()
                raise TooSlow(_too_slow(self.url, self._read, changes=changes))
        response.release_conn()
        return b"".join(parts)


# Errors of a server that speaks plain HTTP.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"})


def _failure(error: broken.HTTPError, url: str, read: float, *, changes: bool) -> Failure:
    """Map an exception of urllib3. No other place does."""
    if isinstance(error, broken.ProxyError):
        return NoServer(f"The proxy on the way to {url} does not answer. Check HTTPS_PROXY and NO_PROXY.")
    if isinstance(error, broken.NameResolutionError):
        return NoServer(f"The name of {url} is not found: check TOLLGATE_URL or --url, and the network.")
    if isinstance(error, broken.NewConnectionError | broken.ConnectTimeoutError):
        return NoServer(
            f"No Tollgate answers at {url}: is it running? "
            "Set TOLLGATE_URL or run `tollgate auth login --url URL` for another server."
        )
    if isinstance(error, broken.SSLError) and _tls_reason(error) in _NO_TLS:
        return Failure(f"{url} does not speak TLS: use {url.replace('https', 'http', 1)} instead.")
    if isinstance(error, broken.SSLError):
        return Failure(
            f"The certificate of {url} cannot be trusted or TLS fails there ({_tls_reason(error)}). "
            "For an authority of your own, set SSL_CERT_FILE to its file."
        )
    if isinstance(error, broken.ReadTimeoutError):
        return TooSlow(_too_slow(url, read, changes=changes))
    if isinstance(error, broken.LocationValueError):
        return Failure(f"{url} is not an address. Set TOLLGATE_URL to one like https://tollgate.example.com.")
    if url.startswith("http://") and _speaks_tls(url):
        return NoServer(f"{url} speaks TLS: use https://{url.removeprefix('http://')} instead.")
    return Lost(f"The connection to {url} broke before its answer arrived. {_advice(changes)}")


def _too_slow(url: str, read: float, *, changes: bool) -> str:
    return f"Tollgate at {url} did not answer within {read:.0f} s. {_advice(changes)}"


def _advice(changes: bool) -> str:
    return "A change may have been made: look before you try again." if changes else "Try again."


def _speaks_tls(url: str) -> bool:
    """Whether a server that did not answer in HTTP speaks TLS."""
    parts = urlsplit(url)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent; only the handshake matters
    try:
        with (
            socket.create_connection((parts.hostname or "", parts.port or 80), CONNECT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=parts.hostname),
        ):
            return True
    except OSError:
        return False


def _refused(error: NoServer) -> bool:
    """Whether the connection was refused, as opposed to a failed DNS lookup or a timeout."""
    cause = error.__cause__
    return isinstance(cause, broken.NewConnectionError) and isinstance(cause.__cause__, ConnectionRefusedError)


def _tls_reason(error: broken.SSLError) -> str:
    inner = error.args[0] if error.args else None
    return str(getattr(inner, "verify_message", "") or getattr(inner, "reason", "") or "no reason given")


def _proxy(url: str) -> str | None:
    """Return the proxy that the environment or the system sets; none for this machine itself."""
    parts = urlsplit(url)
    if is_loopback(url) or proxy_bypass(parts.netloc):
        return None
    return getproxies().get(parts.scheme)
