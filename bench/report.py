"""A run's figures as tables for people and as one JSON file for programs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bench.goals import Goal, ratios_to_nginx

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.collector import Share
    from bench.plan import Plan
    from bench.rounds import Row
    from bench.scale import Growth, Weight

RESULTS = Path(__file__).with_name("results")
TABLE = "{:<9} {:>7} {:<8} {:>5} {:>9} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9} {:>7} {:>6} {:>6} {:>7}"
HEAD = TABLE.format(
    "",
    "workers",
    "body",
    "conns",
    "req/s",
    "p50 ms",
    "p99 ms",
    "worker",
    "all µs",
    "w : nginx",
    "a : nginx",
    "spread",
    "busy",
    "waits",
    "RSS MB",
)
RESTLESS = "Other work had the server's core (waits): run again on a quiet machine before believing a figure."


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one run found."""

    plan: Plan
    machine: dict[str, object]
    rows: Sequence[Row]
    growth: Growth | None
    weight: Weight | None
    goals: Sequence[Goal]
    shares: Sequence[Share] = ()

    def problems(self) -> list[str]:
        """Return what makes figures invalid."""
        rows = [*self.rows, *((self.growth.few, self.growth.many) if self.growth else ())]
        found = [f"{r.subject} {r.body} {r.connections}: {problem}" for r in rows for problem in r.problems]
        found += [f"collector {share.body}: {problem}" for share in self.shares for problem in share.problems]
        return found + [f"memory: {problem}" for problem in (self.weight.problems if self.weight else ())]

    def text(self) -> str:
        """Return the tables."""
        parts = [
            _machine(self.machine),
            *(["\n".join([HEAD, *map(self._line, self.rows)])] if self.rows else []),
        ]
        parts += ["\n".join(map(_share, self.shares))] if self.shares else []
        parts += [_growth(self.growth)] if self.growth else []
        parts += [_weight(self.weight)] if self.weight else []
        parts.append("\n".join(map(_goal, self.goals)))
        parts += [RESTLESS] if any(row.subject != "direct" and row.waited > 0.05 for row in self.rows) else []
        parts += ["\n".join(["INVALID:", *self.problems()])] if self.problems() else []
        return "\n\n".join(parts)

    def _line(self, row: Row) -> str:
        ratios = ratios_to_nginx(row, self.rows)
        line = TABLE.format(
            row.subject,
            row.workers,
            row.body,
            row.connections,
            f"{row.requests_per_second:,.0f}",
            f"{row.p50_us / 1000:.2f}",
            f"{row.p99_us / 1000:.2f}",
            f"{row.worker_us:.1f}",
            f"{row.cpu_us:.1f}",
            *(("-", "-") if ratios is None else (f"{ratio:.2f}" for ratio in ratios)),
            f"{row.spread:.1%}",
            f"{row.busy:.0%}",
            f"{row.waited:.0%}",
            f"{row.rss / 1e6:.1f}",
        )
        return f"{line}  INVALID" if row.problems else line

    def write(self, output: Path | None) -> Path:
        """Write the JSON file: to `output`, or to the results folder and its `latest.json`."""
        now = datetime.now(UTC)
        text = json.dumps({"at": now.isoformat(timespec="seconds"), **self._values()}, indent=1) + "\n"
        path = output or RESULTS / f"{now:%Y%m%dT%H%M%SZ}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if output is None:
            (RESULTS / "latest.json").write_text(text)
        return path

    def _values(self) -> dict[str, object]:
        return {
            "machine": self.machine,
            "plan": asdict(self.plan),
            "valid": not self.problems(),
            "goals": [asdict(goal) for goal in self.goals],
            "cases": [asdict(row) | {"ratios_to_nginx": ratios_to_nginx(row, self.rows)} for row in self.rows],
            "collector": [asdict(share) for share in self.shares],
            "tokens": asdict(self.growth) if self.growth else None,
            "memory": asdict(self.weight) if self.weight else None,
        }


def _machine(machine: dict[str, object]) -> str:
    versions = ", ".join(f"{name} {machine[name]}" for name in ("kernel", "python", "nginx", "wrk"))
    load = f"load before the run {machine['load_average']:.2f}"
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['memory']}; {versions}; {load}"


def _share(share: Share) -> str:
    return f"Collector: {share.cpu_us:.1f} µs of CPU for each of {share.requests:,} requests ({share.body})"


def _growth(growth: Growth) -> str:
    few, many = growth.few, growth.many
    return (
        f"CPU of a call: {few.cpu_us:.1f} µs with few tokens (spread {few.spread:.1%}), "
        f"{many.cpu_us:.1f} µs with many (spread {many.spread:.1%}), "
        f"paired change {growth.change:+.1%} ± {growth.margin:.1%}"
    )


def _weight(weight: Weight) -> str:
    return (
        f"Worker with {weight.connections:,} connections ({weight.open_files:,} open files): "
        f"RSS {weight.rss / 1e6:.1f} MB, PSS {weight.pss / 1e6:.1f} MB, peak {weight.peak / 1e6:.1f} MB"
    )


def _goal(goal: Goal) -> str:
    value = "-" if goal.value is None else f"{goal.value:.2f}"
    return f"{goal.verdict:<12} {value:>8} {goal.unit:<2} (bar {goal.bar:g} {goal.unit})  {goal.name}"
