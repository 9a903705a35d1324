"""Names in the source: one name, one thing."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import tollgate

MODULES = [ast.parse(path.read_text()) for path in sorted(Path(tollgate.__file__).parent.rglob("*.py"))]


def test_no_two_modules_define_a_class_of_the_same_name() -> None:
    counts = Counter(node.name for module in MODULES for node in module.body if isinstance(node, ast.ClassDef))
    assert len(counts) > 500
    assert [name for name, count in counts.items() if count > 1] == []
