"""What a wheel or sdist is given beside the sources: the commit it was built from, and a bill of materials.

Both depend on the commit alone, so that a build can be repeated byte for byte: SOURCE_DATE_EPOCH, which `make
dist` sets to the commit's time, is the only clock.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMMIT = "COMMIT"
LOCK = "requirements/runtime.txt"
_PIN = re.compile(r"^([a-zA-Z0-9._-]+)==([^\s;]+)(?: ; (.*?))? \\$")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds both files to what is built; an editable installation needs neither."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root = Path(self.root)
        folder = Path(tempfile.mkdtemp(prefix="tollgate-build-"))
        name = (folder / COMMIT) if (commit := _commit(root)) else None
        where = "tollgate" if self.target_name == "wheel" else "src/tollgate"
        if name is not None:
            name.write_text(commit + "\n", encoding="ascii")
            build_data["force_include"][str(name)] = f"{where}/{COMMIT}"
        if self.target_name == "wheel":
            bill = folder / "tollgate-rpc.cdx.json"
            lock = (root / LOCK).read_text(encoding="utf-8")
            bill.write_text(bill_of_materials(lock, self.metadata.version, commit), encoding="utf-8")
            build_data["sbom_files"].append(str(bill))


def _commit(root: Path) -> str:
    """The commit of a checkout, or the one that an sdist was built from."""
    kept = root / "src" / "tollgate" / COMMIT
    if kept.exists():
        return kept.read_text(encoding="ascii").strip()
    if not (root / ".git").exists():
        return ""
    asked = subprocess.run(  # noqa: S603
        ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"],  # noqa: S607 - whichever git the builder has
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip()


def bill_of_materials(lock: str, version: str, commit: str) -> str:
    """The locked dependencies as CycloneDX 1.5."""
    components: list[dict[str, Any]] = []
    for line in lock.splitlines():
        if pin := _PIN.match(line):
            name, number, marker = pin.groups()
            components.append(
                {
                    "type": "library",
                    "bom-ref": f"pkg:pypi/{name}@{number}",
                    "name": name,
                    "version": number,
                    "purl": f"pkg:pypi/{name}@{number}",
                    "scope": "optional" if marker else "required",
                    "hashes": [],
                }
            )
        elif (digest := _HASH.search(line)) and components:
            components[-1]["hashes"].append({"alg": "SHA-256", "content": digest[1]})
    if not components:
        raise ValueError(f"{LOCK} names no dependency")
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'tollgate-rpc {version} {commit} {lock}')}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(epoch, datetime.UTC).isoformat(),
            "component": {
                "type": "application",
                "bom-ref": f"pkg:pypi/tollgate-rpc@{version}",
                "name": "tollgate-rpc",
                "version": version,
                "purl": f"pkg:pypi/tollgate-rpc@{version}",
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "properties": [{"name": "commit", "value": commit or "unknown"}],
            },
        },
        "components": components,
    }
    return json.dumps(bill, indent=1) + "\n"
