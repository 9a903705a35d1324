"""`make fuzz`: python -m tests.fuzz [--seconds N] [TARGET ...]. Every target in turn, from the seeds."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tests.fuzz.engine import SEEDS, Failed, fuzz, seeds

atheris: Any = import_module("atheris") if find_spec("atheris") else None
# Ours alone is watched for coverage: what libraries do would drown it, and takes minutes to instrument.
with atheris.instrument_imports(include=["tollgate"]) if atheris else nullcontext():
    from tests.fuzz.targets import TARGETS


def main() -> int:
    """Fuzz, and report what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=600.0, help="for each target (600)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    given = parser.parse_args()
    unknown = set(given.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}; there are: {', '.join(TARGETS)}")
    found = 0
    for name in given.targets or TARGETS:
        if atheris is not None:
            found += _with_atheris(name, given.seconds)
            continue
        try:
            count = fuzz(TARGETS[name], seeds(name), given.seconds, random.Random(given.seed))
        except Failed as failed:
            found += 1
            sys.stdout.write(f"{name}: {failed} (--seed {given.seed})\n")
        else:
            sys.stdout.write(f"{name}: {count} inputs, nothing found\n")
        sys.stdout.flush()
    return 1 if found else 0


def _with_atheris(name: str, seconds: float) -> int:
    """Let atheris do it, in a process of its own: it ends its process."""
    # What it keeps goes into a folder of its own; the seeds are only read.
    with tempfile.TemporaryDirectory() as kept:
        pid = os.fork()
        if pid:
            return int(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0)
        arguments = [sys.argv[0], f"-max_total_time={int(seconds)}", "-verbosity=0", "-print_final_stats=1"]
        atheris.Setup([*arguments, kept, str(SEEDS / name)], TARGETS[name])
        atheris.Fuzz()
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
