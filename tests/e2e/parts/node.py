"""Runs a JavaScript client of tests/e2e/clients with the packages that make has put into .deps/js.

A module's imports are resolved from the folder it lies in (NODE_PATH does not count for ES modules, and
a link is followed to its end first), so the clients are copied beside the packages for one run.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .need import CLIENTS, need
from .processes import answer

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    node, packages = need("node"), need("js")
    with tempfile.TemporaryDirectory(prefix="run-", dir=packages.parent) as beside:
        for module in clients.glob("*.mjs"):
            shutil.copy(module, beside)
        return answer(
            [str(node), str(Path(beside) / script), *args],
            folder=folder,
            env={**LOCAL, **(env or {})},
            within=within,
        )
