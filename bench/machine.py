"""Where a run was measured: a figure without its machine means nothing."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from bench.load import find_wrk
from bench.nginx import find_nginx

if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGES = ("tollgate", "uvicorn", "uvloop", "httptools", "msgspec")


def describe() -> dict[str, object]:
    """Return cores, processor, memory, load before the run, and the versions that matter."""
    return {
        "cores": os.cpu_count(),
        "cpu": _field("/proc/cpuinfo", "model name"),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "load_average": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "nginx": _first_line([find_nginx(), "-v"]).rpartition("/")[2],
        "wrk": _first_line([find_wrk(), "-v"]).partition(" [")[0].removeprefix("wrk "),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
    }


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return "unknown"


def _first_line(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # wrk -v ends with 1
    return (done.stdout + done.stderr).strip().partition("\n")[0]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
