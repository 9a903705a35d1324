"""Changes the code in a sample of places, one at a time, and counts the changes that unit tests catch.

    python scripts/mutants.py [--count 60] [--seed N] [--aim 95] [--jobs 2] [FILE ...]

All unit tests run once first, to record which tests run which lines. Then, for each change, the tests that run its
line are run, the shortest first; the change is caught when one of them fails. Works on copies of `src`, so an
interrupted run leaves nothing behind.

Not changed: types, logs and tuning (annotations, log lines, options of classes, numbers with a NAME of their own).
Changes that make no difference are listed in `scripts/mutants.toml`, each with its reason. The list cannot hide a
gap: a listed change is tried like any other, and fails the run if a test catches it or its line no longer exists;
the share is given with and without it.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import json
import mmap
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src/tollgate"
# Where a mistake costs money, secrets, records or other callers' time.
CHOSEN = (
    "core", "shm", "ledger", "gateway", "chains/access.py", "chains/catalogue.py", "chains/contracts.py",
    "chains/subscriptions.py", "control/services/throttle.py",
    "control/api/rates.py", "control/passwords.py", "control/safe_connect.py",
)  # fmt: skip
EQUIVALENT = ROOT / "scripts/mutants.toml"
SECONDS = 600
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv,
}  # fmt: skip

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


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

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the name that ast looks for

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

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        # An assertion, too: `zip(these, those, strict=True)`.
        return node if node.arg == "strict" else self.generic_visit(node)

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
    """Whether this gives numbers their name, as in `SECONDS = 600`: a test would only repeat them."""
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    if not all(isinstance(each, ast.Name) and each.id.strip("_").isupper() for each in names):
        return False
    return all(
        isinstance(each, ast.Constant | ast.BinOp | ast.Tuple | ast.operator | ast.expr_context)
        for each in ast.walk(value)
    )


def _lines(tree: ast.Module, line: int) -> range | None:
    """The lines that run when a place does; None where it runs on import, and all of its file may depend on it."""
    around = [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.stmt) and each.lineno <= line <= (each.end_lineno or 0)
    ]
    if not any(isinstance(each, _FUNCTIONS) for each in around):
        return None
    smallest = around[-1]
    inner = getattr(smallest, "body", None)
    if inner and not isinstance(smallest, _FUNCTIONS):
        return range(smallest.lineno, max(smallest.lineno + 1, inner[0].lineno))
    return range(smallest.lineno, (smallest.end_lineno or line) + 1)


# ---- which tests run a line


def pytest_configure(config: pytest.Config) -> None:
    """Load what the run that is started needs. For pytest, which is given this file as a plugin."""
    order = json.loads(Path(os.environ["MUTANTS"]).read_text())
    plugin = Noting(Path(order["folder"]), order["names"]) if "names" in order else Choosing(order["tests"])
    config.pluginmanager.register(plugin)


def _noted(names: list[str], jobs: int) -> Notes:
    """Run all unit tests, and note which lines of these files each of them runs."""
    notes = Notes()
    with tempfile.TemporaryDirectory() as folder:
        order = {"folder": folder, "names": names}
        argv = ["-n", str(jobs), "--dist", "worksteal", "--hypothesis-profile=tollgate-fast", "--timeout=600"]
        _pytest([*argv, "--ignore=tests/e2e", "-m", "not e2e", "tests"], order, ROOT / "src")
        for file in Path(folder).iterdir():
            starts, found, failed = json.loads(file.read_text())
            sys.stdout.writelines(f"left out   {test}: it fails without a change\n" for test in failed)
            for each in found:
                if each["test"] not in failed:
                    notes.add(starts, **each)
    return notes


class Notes:
    """Which tests ran which lines, and for how long."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._ran: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))

    def add(self, starts: dict[str, int], test: str, seconds: float, lines: list[int]) -> None:
        self._seconds[test] = seconds
        places, names = list(starts.values()), list(starts)
        for line in lines:
            place = bisect_right(places, line) - 1
            self._ran[names[place]][line - places[place]].add(test)

    def tests(self, name: str, lines: range | None) -> list[str]:
        """Tests that ran one of these lines of a file, or any; the shortest first."""
        ran = self._ran[str(SOURCE / name)]
        chosen = {test for line in (ran if lines is None else lines) for test in ran.get(line, ())}
        return sorted(chosen, key=self._seconds.__getitem__)


class Noting:
    """A plugin of pytest: notes which lines of some files each test runs, in processes that it forks too.

    What a fixture of several tests runs, it runs for the first of them alone: it counts for all that use it.
    """

    def __init__(self, folder: Path, names: list[str]) -> None:
        self._folder = folder
        self._starts: dict[str, int] = {}
        size = 0
        for name in names:
            self._starts[str(SOURCE / name)] = size
            size += (SOURCE / name).read_text().count("\n") + 2
        self._seen = mmap.mmap(-1, size)
        self._shared: dict[object, set[int]] = defaultdict(set)
        self._notes: list[dict[str, Any]] = []
        self._failed: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._seen[:] = bytes(len(self._seen))
        began = time.perf_counter()
        threading.settrace(self._begun)
        sys.settrace(self._begun)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            seconds = time.perf_counter() - began
            fixtures = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009 - of no public kind
            lines = self._lines().union(*(self._shared[each] for named in fixtures for each in named))
            self._notes.append({"test": item.nodeid, "seconds": seconds, "lines": sorted(lines)})

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        before = self._lines()
        self._seen[:] = bytes(len(self._seen))
        try:
            return (yield)
        finally:
            self._shared[fixturedef] |= self._lines()
            for line in before:
                self._seen[line] = 1

    def _lines(self) -> set[int]:
        return {found.start() for found in re.finditer(b"\1", self._seen[:])}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        file = self._folder / f"{os.getpid()}.json"
        file.write_text(json.dumps([self._starts, self._notes, self._failed]))

    def _begun(self, frame: FrameType, _event: str, _value: object) -> Callable[..., Any] | None:
        start = self._starts.get(frame.f_code.co_filename)
        if start is None:
            return None
        seen = self._seen

        def run(frame: FrameType, _event: str, _value: object) -> Callable[..., Any]:
            seen[start + frame.f_lineno] = 1
            return run

        return run


class Choosing:
    """A plugin of pytest: runs the tests of a list, in its order."""

    def __init__(self, tests: list[str]) -> None:
        self._order = {test: place for place, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._order]
        items[:] = sorted(chosen, key=lambda item: self._order[item.nodeid])


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
    sys.stdout.flush()
    notes = _noted(sorted({name for name, _ in sample}), given.jobs)
    counts: dict[str, int] = defaultdict(int)
    copies: queue.Queue[Path] = queue.Queue()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.jobs):
            copies.put(Path(folder) / str(number))
            shutil.copytree(ROOT / "src", Path(folder) / str(number), ignore=shutil.ignore_patterns("__pycache__"))
        with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
            tried = [pool.submit(_try, copies, listed, notes, *place) for place in sample]
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


def _try(
    copies: queue.Queue[Path], listed: list[dict[str, str]], notes: Notes, name: str, number: int
) -> tuple[str, str]:
    """Change one place in a copy, and run the tests that run it."""
    copy = copies.get()
    file = copy / "tollgate" / name
    try:
        before = file.read_text()
        changer = _Changer(number)
        changed = changer.visit(ast.parse(before))
        file.write_text(ast.unparse(ast.fix_missing_locations(changed)))
        is_caught = _fails(copy, notes.tests(name, _lines(ast.parse(before), changer.line)))
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
    if not tests:
        return False
    files = sorted({test.partition("::")[0] for test in tests})
    try:
        ended = _pytest(["-x", "--timeout=60", *files], {"tests": tests}, copy, SECONDS)
    except subprocess.TimeoutExpired:
        # A test that hangs is noticed as well.
        return True
    return ended.returncode != 0


def _pytest(
    argv: list[str], order: dict[str, Any], source: Path, seconds: float | None = None
) -> subprocess.CompletedProcess[bytes]:
    path = os.pathsep.join((str(source), str(ROOT / "scripts")))
    with tempfile.NamedTemporaryFile("w") as file:
        json.dump(order, file)
        file.flush()
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "MUTANTS": file.name}
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "mutants", *argv],
            cwd=ROOT, env=environment, capture_output=True, timeout=seconds, check=False,
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
