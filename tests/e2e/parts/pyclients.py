"""Runs a Python client of tests/e2e/clients, to its end or beside a test.

web3.py and starknet.py each have an environment of their own in .deps, because their requirements conflict.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from .need import CLIENTS, need
from .node import LOCAL
from .processes import answer, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
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


@contextmanager
def watching_python(
    environment: Literal["web3", "starknet"], script: str, *args: str, folder: Path
) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Run `clients/script` beside the test, once it reports that it is ready; gives what it has printed so far."""
    with running(
        [str(need(environment)), "-E", str(CLIENTS / script), *args],
        folder=folder,
        env=LOCAL,
        ready=lambda program: any(line.startswith('{"ready"') for line in program.lines()),
        within=60,
    ) as program:
        yield lambda: [json.loads(line) for line in program.lines()]
