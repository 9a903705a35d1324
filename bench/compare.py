"""Two result files side by side: `python -m bench.compare OLD NEW`. Reads what `report.py` wrote."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

LINE = "{:<9} {:>7} {:<8} {:>5} {:>10} {:>10} {:>8} {:>10} {:>10} {:>8}"


def main() -> None:
    """Print requests a second and CPU cost of the cases that both files have."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description="Compare two runs.")
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    given = parser.parse_args()
    old, new = (json.loads(path.read_text()) for path in (given.old, given.new))
    print(f"old: {old['at']}  {old['machine']['cpu']}\nnew: {new['at']}  {new['machine']['cpu']}\n")
    print(LINE.format("", "workers", "body", "conns", "req/s old", "new", "", "CPU µs old", "new", ""))
    before = {_key(case): case for case in old["cases"]}
    for case in new["cases"]:
        if _key(case) in before:
            print(_line(before[_key(case)], case))
    print()
    values = {goal["name"]: goal["value"] for goal in old["goals"]}
    for goal in new["goals"]:
        was, now = ("-" if v is None else f"{v:.2f}" for v in (values.get(goal["name"]), goal["value"]))
        print(f"{goal['verdict']:<12} {was:>8} -> {now:>8} {goal['unit']:<2}  {goal['name']}")


def _key(case: dict[str, Any]) -> tuple[str, int, str, int]:
    return case["subject"], case.get("workers", 1), case["body"], case["connections"]


def _line(old: dict[str, Any], new: dict[str, Any]) -> str:
    cells: list[str] = []
    for name, digits in (("requests_per_second", 0), ("cpu_us", 1)):
        change = new[name] / old[name] - 1
        cells += [f"{old[name]:,.{digits}f}", f"{new[name]:,.{digits}f}", f"{change:+.1%}"]
    line = LINE.format(*_key(new), *cells)
    return line if not (old["problems"] or new["problems"]) else f"{line}  INVALID"


if __name__ == "__main__":
    main()
