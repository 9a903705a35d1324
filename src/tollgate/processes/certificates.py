"""The certificate that the service shows: loaded, watched, and loaded again when its files change.

A process serves all connections with one `SSLContext`, which hands each new handshake to the newest context: a
changed pair of files is a context of its own, so that nothing of the old certificate remains, a half-written or
mismatched pair leaves the old one in force, and open connections are kept.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path

from tollgate import log
from tollgate.shm import metrics

POLL_SECONDS = 2.0
EXPIRY_DAYS = 21
"""A certificate that ends sooner is warned of, once a day."""
_DAY = 86_400
_log = log.get("tls")


def context(certificate: str, key: str) -> ssl.SSLContext:
    """Make the context of a server; OSError or SSLError where its files cannot be used."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    # A password for a key that needs one would be asked for on the terminal, and the process would wait.
    made.load_cert_chain(certificate, key, password="")
    return made


def expires_at(certificate: Path) -> float:
    """When the first certificate of a PEM file ends; ValueError where there is none."""
    # The only function of the standard library that reads the fields of a file; `cryptography` would cost each
    # process some megabytes.
    try:
        fields = ssl._ssl._test_decode_cert(str(certificate))  # type: ignore[attr-defined]
    except ssl.SSLError as error:
        raise ValueError(f"{certificate} holds no certificate") from error
    return float(ssl.cert_time_to_seconds(fields["notAfter"]))


def expiry_warning(ends: float, now: float) -> str:
    """The warning about a certificate that expires soon; empty where it does not."""
    days = int((ends - now) // _DAY)
    if days >= EXPIRY_DAYS:
        return ""
    when = f"expired {-days} days ago" if days < 0 else f"expires in {days} days"
    return f"server.tls_certificate {when}: renew it; the new one is loaded without a restart."


class Certificates:
    """The certificate of one process. `tick` is called now and then."""

    def __init__(self, certificate: str, key: str) -> None:
        self._certificate, self._key = certificate, key
        self._seen = self._state()
        self._newest = self.context = context(certificate, key)
        self.context.sni_callback = self._choose

    def tick(self) -> bool:
        """Load the files again where they have changed; whether they were."""
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        try:
            self._newest = context(self._certificate, self._key)
        except (OSError, ssl.SSLError) as error:
            # The other of the two files may be about to follow; its change is the next attempt.
            _log.warning("the changed certificate cannot be used: the one before stays", error=str(error))
            return False
        return True

    def _choose(self, handshake: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        # Called for every handshake, also of a client that names no server.
        if self._newest is not self.context:
            handshake.context = self._newest

    def _state(self) -> tuple[tuple[int, int, int], ...]:
        """Identifies a version of the files; a link that points elsewhere is another version."""
        try:
            found = [Path(path).stat() for path in (self._certificate, self._key)]
        except OSError:
            return ()
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)


class ExpiryWatch:
    """Shows in the parent when the certificate ends, and warns in time. `tick` is called now and then."""

    def __init__(
        self, certificate: str, key: str, writer: metrics.Writer, now: Callable[[], float] = time.time
    ) -> None:
        self._file = Path(certificate)
        self._loaded = Certificates(certificate, key)
        self._writer = writer
        self._now = now
        self._look_at = self._warn_at = 0.0
        self._show()

    def tick(self) -> None:
        """Look whether the files have changed, and whether it is time to warn."""
        now = self._now()
        if now < self._look_at:
            return
        self._look_at = now + POLL_SECONDS
        if self._loaded.tick():
            _log.info("the certificate was loaded again", file=str(self._file))
            self._warn_at = 0.0
            self._show()
        if now >= self._warn_at:
            self._warn_at = now + _DAY
            if warning := expiry_warning(self._ends, now):
                _log.warning(warning)

    def _show(self) -> None:
        try:
            self._ends = expires_at(self._file)
        except (OSError, ValueError):
            self._ends = 0.0
        self._writer.set(self._writer.cell(metrics.CERTIFICATE_EXPIRY), int(self._ends))
