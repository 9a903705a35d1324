"""`make setup` shows why it cannot use a Python, and when that Python is slow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "make-venv"


@pytest.mark.parametrize(
    ("arguments", "warned"), [("'--without-pymalloc'", True), ("'--enable-optimizations'", False)]
)
def test_python_built_without_optimisation_is_named_with_the_way_to_another(
    tmp_path: Path, arguments: str, warned: bool
) -> None:
    python = tmp_path / "python"
    # This Python, as if it had been configured otherwise; the environment itself is not made.
    python.write_text(
        "#!/bin/sh\n"
        '[ "$1" = -m ] && exit 0\n'
        f"exec {sys.executable} -c \"import sysconfig; sysconfig.get_config_vars()['CONFIG_ARGS'] = "
        f'\\"{arguments}\\"\n$2"\n'
    )
    python.chmod(0o755)
    ran = subprocess.run(
        [SCRIPT, str(python), str(tmp_path / "venv")], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ("built without --enable-optimizations" in ran.stderr) is warned
    assert ("make setup PYTHON=" in ran.stderr) is warned
