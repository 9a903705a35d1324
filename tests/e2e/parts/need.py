"""Where each program of the end-to-end tests is found: the one table of them.

A missing one is never passed over in silence: the test fails where CI is set and is skipped
elsewhere, with the same words, and they name the command that brings the part.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[3]
DEPS = ROOT / ".deps"
CLIENTS = ROOT / "tests" / "e2e" / "clients"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def _on_path(*names: str) -> Path | None:
    # Debian keeps nginx and dnsmasq in sbin, which the path of an ordinary account lacks.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin"])
    for name in names:
        if found := shutil.which(name, path=path):
            return Path(found)
    return None


def _installed(folder: str, program: str) -> Path | None:
    """Find a program under .deps, if make has finished installing its folder."""
    found = DEPS / program
    return found if (DEPS / folder / ".installed").exists() and found.exists() else None


def _anvil() -> Path | None:
    machine = platform.machine()
    part = f"anvil-{platform.system().lower()}-{_ARCHITECTURES.get(machine, machine)}"
    return _installed("js", f"js/node_modules/@foundry-rs/{part}/bin/anvil") or _on_path("anvil")


def _postgres() -> Path | None:
    """The server itself, which Debian keeps off the path; the newest where there are several."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    return found[-1] if found else _on_path("postgres")


def _faketime() -> Path | None:
    """The library that shows programs another time, for those with threads."""
    return next(Path("/usr/lib").glob("**/faketime/libfaketimeMT.so.1"), None)


def _namespaces() -> Path | None:
    """unshare, for one who may use it and become other users."""
    found = _on_path("unshare")
    if found is None or os.geteuid() != 0:
        return None
    tried = subprocess.run([found, "--mount", "true"], capture_output=True, check=False, timeout=10)
    return found if tried.returncode == 0 else None


# What a test may need: how it is found, and what it is.
PARTS: dict[str, tuple[Callable[[], Path | None], str]] = {
    "nginx": (lambda: _on_path("nginx"), "nginx, on the path"),
    "dnsmasq": (lambda: _on_path("dnsmasq"), "dnsmasq, on the path; Debian's package is dnsmasq-base"),
    "namespaces": (_namespaces, "root, who may unshare mounts"),
    "bash": (lambda: _on_path("bash"), "bash, on the path"),
    "zsh": (lambda: _on_path("zsh"), "zsh, on the path"),
    "fish": (lambda: _on_path("fish"), "fish, on the path"),
    "wrk": (lambda: _on_path("wrk"), "wrk, on the path"),
    "postgresql": (_postgres, "PostgreSQL 13 or newer, in /usr/lib/postgresql or on the path"),
    "pgbouncer": (lambda: _on_path("pgbouncer"), "PgBouncer, on the path"),
    "promtool": (lambda: _on_path("promtool"), "promtool, on the path; Debian's package is prometheus"),
    "libfaketime": (_faketime, "libfaketime, in /usr/lib; Debian's package is libfaketime"),
    "valgrind": (lambda: _on_path("valgrind"), "valgrind, on the path"),
    "chromium": (
        lambda: _on_path("chromium", "chromium-browser", "google-chrome"),
        "Chromium, on the path as chromium, chromium-browser or google-chrome",
    ),
    "node": (lambda: _installed("node", "bin/node"), "Node.js, as .deps/bin/node"),
    "js": (
        lambda: _installed("js", "js/node_modules"),
        "ethers, viem, starknet.js and oidc-provider, in .deps/js",
    ),
    "anvil": (_anvil, "anvil, in .deps/js or on the path"),
    "stripe-mock": (
        lambda: _installed("go", "go/stripe-mock") or _on_path("stripe-mock"),
        "stripe-mock, Stripe's own stand-in, as .deps/go/stripe-mock or on the path",
    ),
    "toxiproxy": (
        lambda: _installed("go", "go/toxiproxy-server") or _on_path("toxiproxy-server"),
        "toxiproxy, which spoils connections, as .deps/go/toxiproxy-server or on the path",
    ),
    "web3": (lambda: _installed("web3", "web3/bin/python"), "web3.py, in .deps/web3"),
    "starknet": (lambda: _installed("starknet", "starknet/bin/python"), "starknet.py, in .deps/starknet"),
}


def need(name: str) -> Path:
    """Give the path of a part; without it the test ends here, failed in CI and skipped elsewhere."""
    find, what = PARTS[name]
    found = find()
    if found is not None:
        return found
    words = f"{name} is missing ({what}). To get it: make test-deps"
    if os.environ.get("CI"):
        pytest.fail(words, pytrace=False)
    pytest.skip(words)
