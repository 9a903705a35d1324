"""Changes the code in a sample of places, one at a time, and counts the changes that unit tests catch.

    python scripts/mutants.py [--count 60] [--seed N] [--aim 95] [--jobs 2] [FILE ...]

For each change the unit tests of its module run, nearest first: those that bear its name, those that import it, the
others of its folder. A change is caught when one of them fails. Works on copies of `src`, so an interrupted run leaves
nothing behind.

Not changed: what only types, logs or tunes (annotations, log lines, options of classes, numbers with a NAME of their
own). Changes that make no difference are listed in `scripts/mutants.toml`, each with its reason. The list cannot hide
a gap: a listed change is tried like any other, and fails the run if a test does catch it or if its line is there no
more; the share is given with and without it.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src/tollgate"
# Where a mistake costs money, secrets, records or other callers' time.
CHOSEN = (
    "core", "shm", "ledger", "gateway", "chains/subscriptions.py", "control/services/throttle.py",
    "control/api/rates.py", "control/safe_connect.py",
)  # fmt: skip
EQUIVALENT = ROOT / "scripts/mutants.toml"
SECONDS = 600
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
        self.change = ""
        self._number = number

    def _changed(self, node: ast.AST, new: ast.AST) -> ast.AST:
        self.count += 1
        if self.count - 1 != self._number:
            return node
        self.line = getattr(node, "lineno", 0)
        self.change = f"{_short(node)}  ->  {_short(new)}"
        return ast.copy_location(new, node)

    # ---- what is left alone

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        node.args.defaults = [self.visit(each) for each in node.args.defaults]
        node.args.kw_defaults = [each and self.visit(each) for each in node.args.kw_defaults]
        node.body = [self.visit(each) for each in node.body]
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = [self.visit(each) for each in node.body]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None and not _is_tunable(node.target, node.value):
            node.value = self.visit(node.value)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if not _is_tunable(node.targets[0], node.value):
            node.value = self.visit(node.value)
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return node

    # ---- what is changed

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        called = node.value.value if isinstance(node.value, ast.Await) else node.value
        if not isinstance(called, ast.Call) or _is_log(called):
            return node
        self.generic_visit(node)
        return self._changed(node, ast.Pass())

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if (swap := _SWAPS.get(type(node.ops[0]))) is None:
            return node
        return self._changed(node, ast.Compare(node.left, [swap(), *node.ops[1:]], node.comparators))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        return self._changed(node, ast.BoolOp(_SWAPS[type(node.op)](), node.values))

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        texts = any(
            isinstance(each, ast.Constant) and isinstance(each.value, str | bytes) for each in ast.walk(node)
        )
        if texts or (swap := _SWAPS.get(type(node.op))) is None:
            return node
        return self._changed(node, ast.BinOp(node.left, swap(), node.right))

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if (swap := _SWAPS.get(type(node.op))) is None:
            return node
        return self._changed(node, ast.AugAssign(node.target, swap(), node.value))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return self._changed(node, node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if type(node.value) is bool:
            return self._changed(node, ast.Constant(not node.value))
        if type(node.value) is int:
            return self._changed(node, ast.Constant(node.value + 1))
        return node


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(ast.fix_missing_locations(node)).split())
    return text if len(text) < 90 else f"{text[:87]}..."


def _is_log(called: ast.Call) -> bool:
    return isinstance(called.func, ast.Attribute) and "log" in ast.unparse(called.func.value).lower().split("_")


def _is_tunable(target: ast.expr, value: ast.expr) -> bool:
    """Whether this gives a number its name, as in `SECONDS = 600`: a test would only repeat it."""
    if not isinstance(target, ast.Name) or not target.id.strip("_").isupper():
        return False
    return all(
        isinstance(each, ast.Constant | ast.BinOp | ast.operator | ast.expr_context) for each in ast.walk(value)
    )


def _tests(name: str) -> list[str]:
    """Files of tests for a module: those that bear its name, those that import it, then the others of its folder."""
    module = Path(name).with_suffix("")
    package, stem = ".".join(("tollgate", *module.parent.parts)), module.stem
    imports = re.compile(
        rf"{re.escape(package)}\.{stem}\b|from {re.escape(package)} import (\([^)]*|[^\n]*)\b{stem}\b"
    )
    folder = ROOT / "tests" / module.parent
    while not folder.exists():
        folder = folder.parent

    def nearness(file: Path) -> int | None:
        is_near = folder in file.parents
        if is_near and stem.rstrip("s") in file.stem:
            return 0
        if imports.search(file.read_text()):
            return 1 if is_near else 2
        return 3 if is_near else None

    files = [file for file in sorted((ROOT / "tests").rglob("test_*.py")) if "e2e" not in file.parts]
    found = [(near, file) for file in files if (near := nearness(file)) is not None]
    return [str(file.relative_to(ROOT)) for _, file in sorted(found)]


# ---- changing, testing, counting


def main() -> int:
    """Change, test, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "files", nargs="*", help="files or folders below src/tollgate; a choice where none is given"
    )
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--aim", type=int, default=95, help="per cent to be caught")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    names = [
        str(file.relative_to(SOURCE))
        for chosen in given.files or CHOSEN
        for file in ([SOURCE / chosen] if chosen.endswith(".py") else sorted((SOURCE / chosen).rglob("*.py")))
    ]
    places = [(name, number) for name in names for number in range(_count(name))]
    sample = random.Random(given.seed).sample(places, min(given.count, len(places)))
    listed = tomllib.loads(EQUIVALENT.read_text())["equivalent"] if EQUIVALENT.exists() else []
    stale = [each for each in listed if each["line"] not in (SOURCE / each["file"]).read_text()]
    sys.stdout.write(f"{len(sample)} of {len(places)} places in {len(names)} files\n")
    counts: dict[str, int] = defaultdict(int)
    copies: queue.Queue[Path] = queue.Queue()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.jobs):
            copies.put(Path(folder) / str(number))
            shutil.copytree(ROOT / "src", Path(folder) / str(number), ignore=shutil.ignore_patterns("__pycache__"))
        with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
            tried = [pool.submit(_try, copies, listed, *place) for place in sample]
            for each in concurrent.futures.as_completed(tried):
                verdict, line = each.result()
                counts[verdict] += 1
                sys.stdout.write(f"{verdict:10} {line}\n")
                sys.stdout.flush()
    for each in stale:
        sys.stdout.write(f"stale      {EQUIVALENT.name}: {each['file']} has no line {each['line']!r}\n")
    matter = len(sample) - counts["equivalent"]
    share = 100 * counts["caught"] / matter if matter else 100.0
    sys.stdout.write(
        f"{counts['caught']} of {matter} changes that matter were caught: {share:.0f} % (aim: {given.aim} %); "
        f"with {counts['equivalent']} that make no difference: {100 * counts['caught'] / len(sample):.0f} %\n"
    )
    return 0 if share >= given.aim and not stale and not counts["NOT EQUAL"] else 1


def _count(name: str) -> int:
    changer = _Changer()
    changer.visit(ast.parse((SOURCE / name).read_text()))
    return changer.count


def _try(copies: queue.Queue[Path], listed: list[dict[str, str]], name: str, number: int) -> tuple[str, str]:
    """Change one place in a copy, and run its tests."""
    copy = copies.get()
    file = copy / "tollgate" / name
    try:
        before = file.read_text()
        changer = _Changer(number)
        changed = changer.visit(ast.parse(before))
        file.write_text(ast.unparse(ast.fix_missing_locations(changed)))
        is_caught = _fails(copy, _tests(name))
        file.write_text(before)
    finally:
        copies.put(copy)
    text = before.splitlines()[changer.line - 1].strip()
    is_listed = any(
        each["file"] == name and each["line"] == text and each["change"] == changer.change for each in listed
    )
    verdict = {
        (True, False): "caught", (False, False): "MISSED", (False, True): "equivalent", (True, True): "NOT EQUAL",
    }[is_caught, is_listed]  # fmt: skip
    return verdict, f"{name}:{changer.line}: {changer.change}"


def _fails(copy: Path, tests: list[str]) -> bool:
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout=60", *tests]
    try:
        ended = subprocess.run(  # noqa: S603 - our own tests
            argv, cwd=ROOT, env=environment, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
