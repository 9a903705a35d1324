"""Builds wheel and sdist into dist/, with the bill of materials and checksums beside them.

The same commit gives the same bytes: the only clock is SOURCE_DATE_EPOCH, by default the commit's time.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

DIST = Path("dist")


def main() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    if "SOURCE_DATE_EPOCH" not in os.environ and Path(".git").exists():
        command = ["git", "log", "-1", "--format=%ct"]
        os.environ["SOURCE_DATE_EPOCH"] = subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout
    # The wheel from the sdist's tree is the same: what a build adds is in the sdist too.
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(DIST)], check=True, stdout=sys.stderr)
    (wheel,) = DIST.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (bill,) = (name for name in archive.namelist() if "/sboms/" in name)
        (DIST / Path(bill).name).write_bytes(archive.read(bill))
    built = sorted(path for path in DIST.iterdir())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in built]
    (DIST / "SHA256SUMS").write_text("".join(sums), encoding="ascii")
    sys.stdout.write("".join(sums))


if __name__ == "__main__":
    main()
