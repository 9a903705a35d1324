"""Runs a Python client of tests/e2e/clients in the environment that make has put into .deps.

web3.py and starknet.py each have one of their own, because their requirements conflict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from .need import CLIENTS, need
from .node import LOCAL
from .processes import answer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def run_python(
    environment: Literal["web3", "starknet"],
    script: str,
    *args: str,
    folder: Path,
    clients: Path = CLIENTS,
    env: Mapping[str, str] | None = None,
    within: float = 60.0,
) -> dict[str, Any]:
    """Run `clients/script` with the arguments and give the JSON object that it prints."""
    # -E: the PYTHON… variables of the shell are not meant for the client.
    return answer(
        [str(need(environment)), "-E", str(clients / script), *args],
        folder=folder,
        env={**LOCAL, **(env or {})},
        within=within,
    )
