"""Lets tests import the benchmark, which is not installed, and is not part of the source archive either."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if (ROOT / "bench").is_dir():
    sys.path.insert(0, str(ROOT))
else:
    collect_ignore_glob = ["test_*.py"]
