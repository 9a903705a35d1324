"""Tollgate: a blockchain RPC access service that anyone can host."""

import os

__version__ = "0.1.0"


def commit() -> str:
    """Return the commit that this was built from, or the checkout's; empty where neither is known."""
    here = os.path.dirname(__file__)  # noqa: PTH120 - pathlib takes longer to load than all of this
    built = _read(here, "COMMIT")  # written by hatch_build.py
    return (built or _checked_out(f"{here}/../../.git"))[:12]


def _checked_out(git: str) -> str:
    """The commit of a checkout, read from git's files: git itself may be missing, and takes longer."""
    if linked := _read(git).removeprefix("gitdir: "):  # a worktree
        git = linked
    head = _read(git, "HEAD")
    if not head.startswith("ref: "):
        return head
    name = head.removeprefix("ref: ")
    common = f"{git}/{_read(git, 'commondir') or '.'}"
    if found := _read(common, name):
        return found
    packed = (line.split(" ") for line in _read(common, "packed-refs").splitlines())
    return next((words[0] for words in packed if words[-1] == name), "")


def _read(*path: str) -> str:
    try:
        with open("/".join(path), encoding="utf-8") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return ""
