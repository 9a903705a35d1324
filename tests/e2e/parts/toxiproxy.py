"""toxiproxy: spoils connections between a caller and a server, by its own control address.

What it can do to a connection is called a toxic: `latency`, `bandwidth`, `slow_close`, `reset_peer`, `timeout` and
others; their attributes are in its own documentation. They work downstream, on the way from the server to the
caller.
"""

from __future__ import annotations

import json
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .need import need
from .ports import LOOPBACK, accepts, free_port
from .processes import running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Proxy:
    """One address that leads to another, well or badly."""

    name: str
    port: int
    control: str

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{LOOPBACK}:{self.port}"

    def spoil(self, kind: str, *, share: float = 1.0, **attributes: int) -> None:
        """Add a toxic, to connections that are open too; `share` of the connections get it."""
        toxic = {"name": kind, "type": kind, "stream": "downstream", "toxicity": share, "attributes": attributes}
        _post(f"{self.control}/proxies/{self.name}/toxics", toxic)

    def mend(self, kind: str) -> None:
        """Take a toxic away; what it has swallowed is lost."""
        request = urllib.request.Request(f"{self.control}/proxies/{self.name}/toxics/{kind}", method="DELETE")
        urllib.request.urlopen(request, timeout=30).close()

    def cut(self) -> None:
        """Cut all connections, and let new ones through."""
        for enabled in (False, True):
            self.enable(enabled)

    def enable(self, enabled: bool) -> None:
        """Let connections through, or cut all of them and refuse new ones."""
        _post(f"{self.control}/proxies/{self.name}", {"enabled": enabled})


@dataclass(frozen=True)
class Toxiproxy:
    """A running toxiproxy."""

    control: str

    def before(self, name: str, port: int) -> Proxy:
        """Give an address that leads to a loopback port."""
        made = _post(
            f"{self.control}/proxies",
            {"name": name, "listen": f"{LOOPBACK}:0", "upstream": f"{LOOPBACK}:{port}", "enabled": True},
        )
        return Proxy(name, int(made["listen"].rpartition(":")[2]), self.control)


def _post(url: str, body: object) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


@contextmanager
def toxiproxy(folder: Path) -> Iterator[Toxiproxy]:
    """Run it; it has no proxies yet."""
    port = free_port()
    argv = [str(need("toxiproxy")), "-host", LOOPBACK, "-port", str(port)]
    with running(argv, folder=folder, env={"LOG_LEVEL": "error"}, ready=lambda _: accepts(port)):
        yield Toxiproxy(f"http://{LOOPBACK}:{port}")
