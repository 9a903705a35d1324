"""nginx twice: the stub upstream, which answers from its settings, and the proxy to compare Tollgate with."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench import processes
from bench.load import Subject, answers
from bench.plan import (
    BATCH_ANSWER,
    BLOCK_ANSWER,
    FAILURES,
    PROBES,
    PROXIED,
    REVERTED,
    REVERTS,
    SINGLE,
    SINGLE_ANSWER,
    BenchError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from bench.plan import Body
    from bench.processes import Cores

# The default, 1,000 requests a connection, would measure the opening of connections too.
NEVER = "1000000000"

COMMON = """
daemon off;
{user}
worker_processes {workers};
worker_rlimit_nofile 8192;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  default_type application/json;
  keepalive_requests {never};
  keepalive_timeout 3600s;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  {http}
}}
"""

# An upstream that does not report its head is taken out of rotation, and calls would be measured on the way of
# last resort. nginx answers before it has read the body: it knows the prober's requests by their lengths.
STUB = """
  map $content_length $single {{ default '{single}'; {probes} }}
  map $content_length $batch {{ default '{batch}'; {probes} }}
  split_clients $request_id $part {{ {reverts} reverts; {failures} fails; * answers; }}
  split_clients $request_id $well {{ {reverts} answers; {failures} answers; * answers; }}
  map $content_length:$part $mixed {{ default '{single}'; {mixed_probes} ~:reverts '{reverted}'; ~:fails ''; }}
  map $content_length:$well $healthy {{ default '{single}'; {mixed_probes} ~:reverts '{reverted}'; ~:fails ''; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location = /healthy {{ if ($healthy = '') {{ return 503; }} return 200 $healthy; }}
    location = /mixed {{ if ($mixed = '') {{ return 503; }} return 200 $mixed; }}
    location = /single {{ return 200 $single; }}
    location = /unique {{ add_header x-request-id $request_id; return 200 $single; }}
    location = /gzip {{ gzip on; gzip_types application/json; gzip_min_length 1; return 200 $single; }}
    location = /batch10 {{ return 200 $batch; }}
  }}
"""

PROXY = """
  upstream stub {{
    server 127.0.0.1:{stub};
    keepalive 512;
    keepalive_requests {never};
    keepalive_timeout 3600s;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096 reuseport;
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    location / {{ proxy_pass http://stub; }}
    location = /gzip {{
      proxy_pass http://stub;
      proxy_set_header Connection "";
      proxy_set_header Accept-Encoding gzip;
    }}
  }}
"""


def find_nginx() -> str:
    """Return the program; `sbin` is often not on the path of an ordinary user."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    program = shutil.which("nginx", path=path)
    if program is None:
        raise BenchError("nginx is not installed (Debian: apt install nginx-light)")
    return program


@dataclass(frozen=True, slots=True)
class Nginx:
    """An nginx that runs."""

    port: int
    pid: int

    def subject(self, name: str, bodies: Sequence[Body] = PROXIED) -> Subject:
        """Present it as something to put under load."""
        workers = tuple(pid for pid in processes.tree(self.pid) if pid != self.pid)
        paths = {body.name: body.stub_path for body in bodies}
        return Subject(name=name, port=self.port, paths=paths, token="", pid=self.pid, workers=workers)


@contextlib.contextmanager
def stub(folder: Path, core: int, port: int | None = None) -> Iterator[Nginx]:
    """Run the stub upstream."""
    port = port or processes.free_port()
    probes = " ".join(f"{len(probe)} '{BLOCK_ANSWER}';" for probe in PROBES)
    http = STUB.format(
        port=port,
        single=SINGLE_ANSWER,
        batch=BATCH_ANSWER,
        probes=probes,
        mixed_probes=" ".join(f"~^{len(probe)}: '{BLOCK_ANSWER}';" for probe in PROBES),
        reverted=REVERTED,
        reverts=REVERTS,
        failures=FAILURES,
    )
    with _nginx(folder / "stub", http, port, {core}) as process:
        yield process


@contextlib.contextmanager
def proxy(folder: Path, cores: Cores, stub_port: int, workers: int = 1) -> Iterator[Nginx]:
    """Run the proxy in front of the stub."""
    port = processes.free_port()
    http = PROXY.format(port=port, stub=stub_port, never=NEVER)
    with _nginx(folder / f"proxy-{workers}", http, port, cores.servers(workers), workers) as process:
        yield process


@contextlib.contextmanager
def _nginx(folder: Path, http: str, port: int, cores: set[int], workers: int = 1) -> Iterator[Nginx]:
    folder.mkdir(exist_ok=True)
    settings, log = folder / "nginx.conf", folder / "log"
    settings.write_text(COMMON.format(folder=folder, user=_user(), workers=workers, http=http, never=NEVER))
    with processes.running([find_nginx(), "-p", str(folder), "-c", str(settings)], cores, log) as process:
        processes.wait_until(lambda: answers(port, SINGLE.stub_path), process, log)
        yield Nginx(port, process.pid)


def _user() -> str:
    """Keep the worker's user: started by root it would become one that may not enter the temporary folder."""
    if os.geteuid() != 0:
        return ""
    return f"user {pwd.getpwuid(os.geteuid()).pw_name} {grp.getgrgid(os.getegid()).gr_name};"
