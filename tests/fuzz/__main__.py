"""`make fuzz`: python -m tests.fuzz [--seconds N] [TARGET ...]. Every target in turn, from the seeds."""

from __future__ import annotations

import argparse
import os
import random
import sys
from importlib.util import find_spec

from tests.fuzz.engine import SEEDS, Failed, fuzz, seeds
from tests.fuzz.targets import TARGETS


def main() -> int:
    """Fuzz, and say what was found."""
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
        if find_spec("atheris") is not None:
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
    pid = os.fork()
    if pid:
        return int(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0)
    import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]  # noqa: PLC0415

    folder = SEEDS / name
    arguments = [sys.argv[0], f"-max_total_time={int(seconds)}", "-verbosity=0", str(folder)]
    atheris.instrument_all()
    atheris.Setup(arguments, TARGETS[name])
    atheris.Fuzz()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
