"""Changes the code in a sample of places, one at a time, and counts the changes that its tests catch.

    python scripts/mutants.py [--count 20] [--seed N] [--aim 95] [FILE ...]

Works on a copy of `src`, so an interrupted run leaves nothing behind. For each file the tests of its folder run.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Where a mistake costs money, secrets or records.
CHOSEN = (
    "core/audit_chain.py", "core/contracts.py", "core/cursors.py", "core/jsonrpc.py", "core/limits.py",
    "core/methods.py", "core/origins.py",
    "core/patience.py", "core/pricing.py", "core/sealed.py", "core/secrets.py", "core/addresses.py",
    "chains/subscriptions.py", "gateway/access/credentials.py", "gateway/access/limits.py",
    "gateway/upstream/pool.py", "gateway/upstream/sticky.py", "gateway/upstream/log_ranges.py",
    "gateway/feeds/subscribers.py", "gateway/feeds/statuses.py", "ledger/segments.py", "ledger/spool.py",
    "shm/limits.py", "control/services/throttle.py", "control/api/rates.py",
)  # fmt: skip
SECONDS = 300
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv,
}  # fmt: skip


class _Changer(ast.NodeTransformer):
    """Changes the place of one number; without one, counts the places."""

    def __init__(self, number: int = -1) -> None:
        self.count = 0
        self.line = 0
        self._number = number

    def _is_it(self, node: ast.AST) -> bool:
        self.count += 1
        if self.count - 1 != self._number:
            return False
        self.line = getattr(node, "lineno", 0)
        return True

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if type(node.ops[0]) in _SWAPS and self._is_it(node):
            node.ops[0] = _SWAPS[type(node.ops[0])]()  # type: ignore[assignment]
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if self._is_it(node):
            node.op = _SWAPS[type(node.op)]()  # type: ignore[assignment]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        texts = any(
            isinstance(each, ast.Constant) and isinstance(each.value, str | bytes) for each in ast.walk(node)
        )
        if type(node.op) in _SWAPS and not texts and self._is_it(node):
            node.op = _SWAPS[type(node.op)]()  # type: ignore[assignment]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return node.operand if isinstance(node.op, ast.Not) and self._is_it(node) else node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if type(node.value) is bool and self._is_it(node):
            return ast.copy_location(ast.Constant(not node.value), node)
        if type(node.value) is int and self._is_it(node):
            return ast.copy_location(ast.Constant(node.value + 1), node)
        return node


def main() -> int:
    """Change, test, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="below src/tollgate; a choice where none is given")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--aim", type=int, default=95, help="per cent to be caught")
    given = parser.parse_args()
    files = given.files or [name for name in CHOSEN if (ROOT / "src/tollgate" / name).exists()]
    chance = random.Random(given.seed)
    places = [(name, number) for name in files for number in range(_count(name))]
    caught = 0
    sample = chance.sample(places, min(given.count, len(places)))
    for name, number in sample:
        line, is_caught = _try(name, number)
        caught += is_caught
        sys.stdout.write(f"{'caught ' if is_caught else 'MISSED '} src/tollgate/{name}:{line}\n")
        sys.stdout.flush()
    share = 100 * caught / len(sample) if sample else 100.0
    sys.stdout.write(f"{caught} of {len(sample)} changes were caught: {share:.0f} % (aim: {given.aim} %)\n")
    return 0 if share >= given.aim else 1


def _count(name: str) -> int:
    changer = _Changer()
    changer.visit(ast.parse((ROOT / "src/tollgate" / name).read_text()))
    return changer.count


def _try(name: str, number: int) -> tuple[int, bool]:
    """Change one place in a copy, and run the tests of its folder."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
        file = copy / "tollgate" / name
        changer = _Changer(number)
        changed = changer.visit(ast.parse(file.read_text()))
        file.write_text(ast.unparse(ast.fix_missing_locations(changed)))
        tests = ROOT / "tests" / Path(name).parent
        while not tests.exists():
            tests = tests.parent
        environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        argv = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout=60", str(tests)]
        try:
            ended = subprocess.run(  # noqa: S603 - our own tests
                argv, cwd=ROOT, env=environment, capture_output=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return changer.line, True
        return changer.line, ended.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
