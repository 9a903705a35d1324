"""Runs a JavaScript client of tests/e2e/clients, to its end or beside a test.

It finds the packages that make has put into .deps/js.

A module's imports are resolved from the folder it lies in (NODE_PATH does not count for ES modules, and
a link is followed to its end first), so the clients are copied beside the packages for one run.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .need import CLIENTS, need
from .processes import answer, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# A client must reach the gateway on this machine itself, whatever proxy the developer's shell names.
LOCAL = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}


def run_node(
    script: str,
    *args: str,
    folder: Path,
    clients: Path = CLIENTS,
    env: Mapping[str, str] | None = None,
    within: float = 60.0,
) -> dict[str, Any]:
    """Run `clients/script` with the arguments and give the JSON object that it prints."""
    with _beside_packages(clients) as beside:
        return answer(
            [str(need("node")), str(beside / script), *args],
            folder=folder,
            env={**LOCAL, **(env or {})},
            within=within,
        )


@contextmanager
def watching(script: str, *args: str, folder: Path) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Run `clients/script` beside the test, once it reports that it is ready; gives what it has printed so far."""
    with (
        _beside_packages(CLIENTS) as beside,
        running(
            [str(need("node")), str(beside / script), *args],
            folder=folder,
            env=LOCAL,
            ready=lambda program: any(line.startswith('{"ready"') for line in program.lines()),
            within=60,
        ) as program,
    ):
        yield lambda: [json.loads(line) for line in program.lines()]


@contextmanager
def _beside_packages(clients: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="run-", dir=need("js").parent) as beside:
        for module in clients.glob("*.mjs"):
            shutil.copy(module, beside)
        yield Path(beside)
