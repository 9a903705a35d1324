"""Whether a service could start with its settings, without starting it; and what its operator is warned of.

`problems` is what `serve` and `migrate` would refuse: files, ports, the data folder, the databases and what their
clients need. `warnings` is what it would start with all
the same, to its users' harm. Both are for people: `tollgate config check` prints them, `serve` logs the second.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from tollgate.control.outbound import DnsResolver
from tollgate.errors import StartError, TollgateError
from tollgate.processes import certificates, listeners
from tollgate.processes.bootstrap import PEPPER, check_peppers, check_private, read_pepper
from tollgate.processes.service_lock import holder
from tollgate.processes.shared_settings import slots_of
from tollgate.settings.model import Settings
from tollgate.store import engines, upgrade, valkey

_EVERYWHERE = ("0.0.0.0", "::")
_LOCAL = ("localhost", "127.0.0.1", "::1")


def problems(settings: Settings) -> list[str]:
    """Return what keeps the service from starting."""
    found: list[str] = []
    for check in (_data_dir, _pepper, _store, _shared, _resolvers, slots_of, tls_files, _ports):
        try:
            check(settings)
        except TollgateError as error:
            found.append(str(error))
    return found


def warnings(settings: Settings, now: float) -> list[str]:
    """Return what is likely not meant."""
    return [*_links(settings), *_expiry(settings, now)]


def tls_files(settings: Settings) -> tuple[str, str] | None:
    """Return certificate and key to serve with; None for plain HTTP; StartError where they cannot be used."""
    certificate, key = settings.server.tls_certificate, settings.server.tls_key
    if not certificate:
        return None
    for setting, path in (("server.tls_certificate", certificate), ("server.tls_key", key)):
        try:
            Path(path).open("rb").close()
        except OSError as error:
            raise StartError(
                f"{setting}: {path} cannot be read ({error.strerror}): give the path of a PEM file that the "
                "user of the service may read."
            ) from error
    try:
        certificates.context(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise StartError(
            f"server.tls_certificate or server.tls_key cannot be used ({error}): "
            "give PEM files of a certificate chain and its key."
        ) from error
    return certificate, key


def _data_dir(settings: Settings) -> None:
    folder = Path(settings.data_dir)
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not there.is_dir():
        raise StartError(f"data_dir: {there} is a file: give a folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        what = "cannot be written to" if there == folder else f"cannot be made: {there} cannot be written to"
        raise StartError(f"data_dir: {folder} {what} by this user: change its owner, or set another data_dir.")
    if there == folder:
        check_private(folder)


def _pepper(settings: Settings) -> None:
    file = Path(settings.data_dir) / PEPPER
    if not settings.secrets.pepper and file.exists():
        try:
            read_pepper(file)
        except OSError as error:
            raise StartError(f"{file} cannot be read: {error.strerror}.") from error


def _store(settings: Settings) -> None:
    """The databases: their clients, whether they can be reached, their version, and the pepper that they know."""
    data_dir = Path(settings.data_dir)
    url = engines.store_url(settings.store.url, data_dir)
    if not engines.exists(url):
        return
    steps = upgrade.plan(url, upgrade.CONTROL)
    ledger = engines.ledger_url(url, data_dir)
    if engines.exists(ledger):
        upgrade.plan(ledger, upgrade.LEDGER)
    if not steps:
        check_peppers(settings, data_dir, url)


def _shared(settings: Settings) -> None:
    if settings.shared.url:
        valkey.checked(settings.shared.url)


def _resolvers(settings: Settings) -> None:
    DnsResolver(settings.whitelist.resolvers)


def _ports(settings: Settings) -> None:
    try:
        if holder(Path(settings.data_dir)) is not None:
            return  # the service itself runs, and has them
    except OSError:
        pass
    server = settings.server
    for host, port, name in (
        (server.host, server.port, "server.port"),
        (server.metrics_host, server.metrics_port, "server.metrics_port"),
    ):
        for bound in listeners.bind(host, port, 1, name):
            bound.close()


def _links(settings: Settings) -> Iterator[str]:
    server = settings.server
    if not server.base_url:
        if server.host in _EVERYWHERE:
            yield (
                f"server.host is {server.host} and server.base_url is not set: links in mails, invitations and "
                "login pages lead to 127.0.0.1, where only this machine finds them. Set server.base_url to "
                "the address that people use, such as https://rpc.example.com."
            )
        elif server.trusted_proxies:
            yield (
                "server.trusted_proxies is set and server.base_url is not: links in mails and invitations lead to "
                f"{server.host}. Set server.base_url to the address of the proxy."
            )
        return
    parts = urlsplit(server.base_url)
    if parts.scheme == "http" and parts.hostname not in _LOCAL:
        yield (
            f"server.base_url is {server.base_url}: passwords and tokens cross the network in clear. Serve HTTPS "
            "(server.tls_certificate, or a proxy in front)."
        )


def _expiry(settings: Settings, now: float) -> Iterator[str]:
    if not settings.server.tls_certificate:
        return
    try:
        ends = certificates.expires_at(Path(settings.server.tls_certificate))
    except (OSError, ValueError):
        return  # `problems` has better words
    if warning := certificates.expiry_warning(ends, now):
        yield warning
