"""What the whole service takes, as the kernel counts it: pages that processes share count once."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from parts.processes import descendants
from parts.tollgate import linux_only, serving
from parts.upstream import upstream

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = [pytest.mark.e2e, linux_only]

MAX_MEGABYTES = 160


def megabytes(pids: Iterable[int]) -> float:
    """The proportional set size of processes."""
    total = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def test_a_service_with_one_worker_fits_160_megabytes(tmp_path: Path) -> None:
    with upstream() as node, serving(tmp_path, {"eth/mainnet": [node.url]}, {"server": {"workers": 1}}) as gateway:
        # Used once: pages are made and modules loaded when they are first needed.
        for path in ("/readyz", "/api/v1/service", "/console/sign-in", "/api/v1/docs"):
            with urllib.request.urlopen(f"{gateway.base_url}{path}", timeout=30) as response:
                response.read()
        gateway.metrics()
        taken = megabytes([gateway.program.pid, *descendants(gateway.program.pid)])
        assert taken <= MAX_MEGABYTES, f"{taken:.1f} MB"
