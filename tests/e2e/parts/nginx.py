"""nginx as people put it in front of a gateway: with a configuration of the test's own.

Everything it writes (pid, logs, buffers) stays in the test's folder, and it runs as the user who runs the
test, so that its workers may read and write there.
"""

from __future__ import annotations

import grp
import os
import re
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .need import need
from .ports import LOOPBACK, accepts, free_port
from .processes import running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .certs import Certificate

_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@dataclass(frozen=True)
class Nginx:
    """A running nginx: where it listens, and its master process."""

    port: int
    pid: int
    access_log: Path


@contextmanager
def nginx(folder: Path, http: str, *, port: int) -> Iterator[Nginx]:
    """Run nginx with `http` as the inside of its http block; ready once it accepts on the port."""
    folder.mkdir(parents=True, exist_ok=True)
    configuration = folder / "nginx.conf"
    configuration.write_text(_whole(folder, http))
    argv = [str(need("nginx")), "-p", str(folder), "-c", str(configuration), "-e", str(folder / "error.log")]
    with running(argv, folder=folder, ready=lambda _: accepts(port)) as program:
        yield Nginx(port, program.pid, folder / "access.log")


@contextmanager
def tls_proxy(
    folder: Path, certificate: Certificate, upstream: str, *, extra: str = "", http2: bool = True
) -> Iterator[Nginx]:
    """Run nginx with TLS and HTTP/2 in front of an upstream (`127.0.0.1:8402`), kept alive.

    `extra` goes into the location block, after what every proxy sets: Host and X-Forwarded-For.
    """
    port = free_port()
    with nginx(folder, _tls_server(port, certificate, upstream, extra, http2=http2), port=port) as proxy:
        yield proxy


def _whole(folder: Path, http: str) -> str:
    # As root, nginx gives its workers to another account, which may not enter the test's folder.
    user = f"user root {grp.getgrgid(0).gr_name};" if os.geteuid() == 0 else ""
    temporary = "\n".join(f"    {kind}_temp_path {folder}/{kind};" for kind in _TEMPORARY)
    return f"""
{user}
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
{temporary}
    access_log {folder}/access.log;
{http}
}}
"""


def _tls_server(port: int, certificate: Certificate, upstream: str, extra: str, *, http2: bool) -> str:
    listen, directive = "ssl", ""
    if http2 and _version() >= (1, 25, 1):
        directive = "http2 on;"
    elif http2:
        listen = "ssl http2"
    return f"""
    upstream behind {{ server {upstream}; keepalive 16; }}
    server {{
        listen {LOOPBACK}:{port} {listen};
        {directive}
        ssl_certificate {certificate.certificate};
        ssl_certificate_key {certificate.key};
        location / {{
            proxy_pass http://behind;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme;
            {extra}
        }}
    }}
"""


def _version() -> tuple[int, ...]:
    output = subprocess.run([str(need("nginx")), "-v"], capture_output=True, text=True, check=True).stderr
    found = re.search(r"nginx/(\d+)\.(\d+)\.(\d+)", output)
    if found is None:
        raise AssertionError(f"nginx -v gave no version: {output!r}")
    return tuple(int(number) for number in found.groups())
