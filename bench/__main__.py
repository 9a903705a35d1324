"""Options, and the order of a run: stub, cases, workers, tokens, memory, report."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench import cache, collector, gateway, goals, load, machine, nginx, processes, rounds, scale
from bench.plan import CACHED, CASES, DIRECT, FEW_TOKENS, MISS, MORE_WORKERS, PARTS, WORKERS_CASE, BenchError, Plan
from bench.report import Report
from tollgate import log

if TYPE_CHECKING:
    from collections.abc import Sequence


def main() -> int:
    """Run the benchmark; return the exit code."""
    options = _options()
    if not sys.platform.startswith("linux"):
        print("bench: Linux is needed, for pinning and /proc", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that all is stopped
    log.configure("warning", "text")
    try:
        if options.logs:
            # Imported here: it needs the control plane, which the other parts need not carry.
            from bench import logs  # noqa: PLC0415

            return logs.run(options.logs, options.output, _progress)
        if options.console:
            # Imported here: it needs the control plane and a browser, which the other parts need not carry.
            from bench import console  # noqa: PLC0415

            return console.run(options.rows or console.DEFAULT_ROWS, options.output, _progress)
        if options.instructions:
            # Imported here: it needs the gateway, which the other parts need not carry.
            from bench import instructions  # noqa: PLC0415

            return instructions.run(_progress, write=options.write)
        if options.ledger:
            # Imported here: it needs the collector, which the other parts need not carry.
            from bench import ledger  # noqa: PLC0415

            return ledger.run(_plan(options), options.rows or ledger.DEFAULT_ROWS, options.output, _progress)
        if options.postgresql:
            # Imported here: it needs the collector and psycopg, which the other parts need not carry.
            from bench import postgresql  # noqa: PLC0415

            return postgresql.run(
                _plan(options), options.rows or postgresql.DEFAULT_ROWS, options.output, _progress
            )
        report = _run(_plan(options), options)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted, everything is stopped", file=sys.stderr)
        return 130
    print(report.text())
    print(f"\nwritten: {report.write(options.output)}")
    return 1 if report.problems() else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure what a call costs.")
    parser.add_argument("--quick", action="store_true", help="short rounds: a first impression, not a figure")
    parser.add_argument("--only", metavar="PARTS", type=_parts, default=PARTS, help=f"some of {','.join(PARTS)}")
    parser.add_argument("--seconds", type=_positive, metavar="N", help="length of a round (1)")
    parser.add_argument(
        "--rounds", type=_positive, metavar="N", help="rounds of each case (12), and 2 N of tokens"
    )
    parser.add_argument(
        "--logs", type=_positive, metavar="ROWS", help="instead: pages of a ledger with this many log rows"
    )
    parser.add_argument("--ledger", action="store_true", help="instead: what recording costs, and the collector")
    parser.add_argument(
        "--postgresql", action="store_true", help="instead: records, pages and calls on PostgreSQL and Valkey"
    )
    parser.add_argument("--console", action="store_true", help="instead: pages of the console, and live tails")
    parser.add_argument(
        "--rows",
        type=_positive,
        metavar="N",
        help="with --ledger: also collect upon so many; with --console, --postgresql: over so many (10,000,000)",
    )
    parser.add_argument(
        "--instructions", action="store_true", help="instead: instructions, frames, files and tasks of a call"
    )
    parser.add_argument(
        "--write", action="store_true", help="with --instructions: keep the counts in bench/instructions.json"
    )
    parser.add_argument("--stub-port", type=_positive, metavar="PORT", help="where the stub listens (a free port)")
    parser.add_argument(
        "--beside", action="append", default=[], metavar="NAME,PID,URL", help="a server to measure as well"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write the JSON (bench/results/)")
    parser.add_argument("--tollgate", type=Path, metavar="PROGRAM", help="the program to run (beside python)")
    return parser.parse_args()


def _parts(text: str) -> tuple[str, ...]:
    parts = tuple(word.strip() for word in text.split(",") if word.strip())
    unknown = [part for part in parts if part not in PARTS]
    if unknown or not parts:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown) or 'nothing'}: choose from {', '.join(PARTS)}")
    return parts


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: a whole number from 1 is needed")
    return int(text)


def _plan(options: argparse.Namespace) -> Plan:
    default = Plan(seconds=1, rounds=2) if options.quick else Plan()
    return Plan(
        parts=options.only,
        seconds=options.seconds or default.seconds,
        rounds=options.rounds or default.rounds,
    )


def _run(plan: Plan, options: argparse.Namespace) -> Report:
    others = [load.beside(text) for text in options.beside]
    about = machine.describe()
    cores = processes.Cores.choose()
    os.sched_setaffinity(0, {cores.load})  # this process, wrk and the crowd
    if cores.server == cores.load:
        _progress("only one core: load and server disturb each other, the figures are not comparable")
    _progress(f"about {plan.estimate_seconds()} s; server on core {cores.server}, load and stub on {cores.load}")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tollgate-bench-")))
        stub = stack.enter_context(nginx.stub(folder, cores.load, options.stub_port))
        tollgate = None
        if set(plan.parts) & {"tollgate", "workers", "tokens", "memory"}:
            tollgate = gateway.Gateway(gateway.find_tollgate(options.tollgate), folder, cores, stub.port)
        rows, shares = _cases(plan, folder, cores, stub, tollgate, others)
        rows += _workers(plan, folder, cores, stub, tollgate) if tollgate and "workers" in plan.parts else []
        growth = scale.growth(tollgate, plan, _progress) if tollgate and "tokens" in plan.parts else None
        weight = scale.weight(tollgate, _progress) if tollgate and "memory" in plan.parts else None
    return Report(plan, about, rows, growth, weight, goals.goals(rows, growth, weight, shares), shares)


def _cases(
    plan: Plan,
    folder: Path,
    cores: processes.Cores,
    stub: nginx.Nginx,
    tollgate: gateway.Gateway | None,
    others: Sequence[load.Subject],
) -> tuple[list[rounds.Row], list[collector.Share]]:
    """Put the chosen servers through all cases; only they run meanwhile. Then see what the collector takes."""
    names = plan.subjects()
    if not names:
        return [], []
    with contextlib.ExitStack() as stack:
        subjects: list[load.Subject] = []
        if "direct" in names:
            subjects.append(stub.subject("direct", DIRECT))
        if "nginx" in names:
            proxy = stack.enter_context(nginx.proxy(folder, cores, stub.port))
            subjects.append(proxy.subject("nginx"))
        served = stack.enter_context(tollgate.serve(FEW_TOKENS)) if "tollgate" in names and tollgate else None
        subjects += [*([served] if served else []), *others]
        problems = cache.fill(served, _progress) if served else ()
        before = cache.counted(served) if served else {}
        by_case = rounds.alternate(subjects, CASES, plan.seconds, plan.rounds, _progress)
        after = cache.counted(served) if served else {}
        shares = collector.shares(served, plan, _progress) if served else []
    odd = {body.name: cache.odd(before[body.name], after[body.name], {body.name}) for body in CACHED if after}
    odd[MISS.name] = (*problems, *odd.get(MISS.name, ()))
    found = [
        replace(row, problems=(*row.problems, *odd.get(row.body, ()))) if row.subject == "tollgate" else row
        for rows in by_case
        for row in rows
    ]
    return found, shares


def _workers(
    plan: Plan, folder: Path, cores: processes.Cores, stub: nginx.Nginx, tollgate: gateway.Gateway
) -> list[rounds.Row]:
    """Measure more workers than one, beside nginx with as many, as far as there are cores."""
    found = []
    for workers in MORE_WORKERS:
        if workers > len(cores.all):
            _progress(f"{workers} workers are not measured: there are {len(cores.all)} cores")
            continue
        _progress(
            f"{workers} workers" + (", which share a core with the load" if workers == len(cores.all) else "")
        )
        with (
            nginx.proxy(folder, cores, stub.port, workers) as proxy,
            tollgate.serve(FEW_TOKENS, workers) as served,
        ):
            subjects = [proxy.subject("nginx"), served]
            (rows,) = rounds.alternate(subjects, [WORKERS_CASE], plan.seconds, plan.rounds, _progress)
        found += rows
    return found


def _progress(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
