"""Whether spool, logs, usage, months and invoices agree. Looks, and never writes.

Each check is a plain function from what was read to what it found. What merely waits for the collector is no
disagreement. `examine` reads while the service runs: files before the ledger and again after it, so that a segment
which is finished in between is not taken for a lost one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from tollgate.core.clock import MAX_GAP_SECONDS
from tollgate.core.posting import MonthKey
from tollgate.ledger import segments
from tollgate.store.base import Mark
from tollgate.store.ledger_facts import LedgerFacts, LedgerState, Sums

PIECE_BYTES = 4 << 20
REQUESTS, BILLABLE, MICROS = "requests", "billable requests", "µUSD"
_ALL = (REQUESTS, BILLABLE, MICROS)

Side = tuple[str, Mapping[MonthKey, tuple[int, ...]]]
"""A name, and numbers by team or token and month."""


class Check(Struct, frozen=True):
    """What one check found. No differences: all is well."""

    name: str
    looked_at: str
    differences: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.differences


class SegmentFile(Struct, frozen=True):
    """A file of the spool, read against its mark."""

    name: str
    identity: bytes | None
    waiting: int = 0
    """Whole records behind the mark."""
    fault: str = ""


def examine(spool: Path, ledger: LedgerFacts, now: float, *, is_shared: bool = False) -> list[Check]:
    """Do all checks. A ledger that is shared has been written from spools of other nodes too."""
    before = _identities(spool)
    facts = ledger.read()
    files = [_inspect(path, facts.marks) for path in sorted(spool.glob(f"*{segments.SUFFIX}"))]
    present = {*before, *_identities(spool)}
    gone = set()
    if not is_shared:
        gone = {identity for identity, mark in facts.marks.items() if not mark.done and identity not in present}
    if gone:
        marks = ledger.marks()
        gone = {identity for identity in gone if identity in marks and not marks[identity].done}
    aside = sorted(path.name for path in spool.glob(f"*{segments.DAMAGED_SUFFIX}"))
    return [
        check_spool(files, gone, aside),
        check_logs(facts),
        check_blocks(facts),
        check_months(facts),
        check_sources(facts),
        check_invoices(facts),
        check_clock(facts, now),
    ]


# --- The rules ---------------------------------------------------------------------------------------------


def check_spool(files: Iterable[SegmentFile], gone: Iterable[bytes], aside: Iterable[str]) -> Check:
    """Segments against how far they were read."""
    listed = list(files)
    waiting = sum(file.waiting for file in listed)
    wrong = [f"{file.name}: {file.fault}" for file in listed if file.fault]
    wrong += [f"segment {identity.hex()} is gone before it was read to its end" for identity in sorted(gone)]
    wrong += [f"{name} was put aside because it is damaged: its last records are not counted" for name in aside]
    return Check("spool", f"{len(listed)} segments, {waiting} records wait for the collector", tuple(wrong))


def check_logs(facts: LedgerState) -> Check:
    """Log entries against usage, of the months whose entries are all kept."""
    logs, usage = (
        {key: _all_of(sums) for key, sums in each.items() if _is_kept(key[1], facts)}
        for each in (facts.logs, facts.usage)
    )
    kept = sorted({month for _, month in usage.keys() | logs.keys()})
    span = f"{kept[0]} to {kept[-1]}" if kept else "no month is kept whole"
    return Check("logs", f"against usage, {span}", tuple(_unequal(("logs", logs), ("usage", usage), _ALL)))


def check_blocks(facts: LedgerState) -> Check:
    """Whether every block and every record of the logs can be read."""
    return Check("blocks", "blocks and records of logs", tuple(facts.damaged))


def check_clock(facts: LedgerState, now: float) -> Check:
    """Whether the clock is near what the ledger has seen."""
    seen = facts.clock.seen_at
    looked_at = "the ledger was never written" if seen is None else f"the ledger was last written at {_time(seen)}"
    wrong: tuple[str, ...] = ()
    if facts.clock.is_doubtful(now):
        jump = f"the clock says {_time(now)}, and jumped by more than {MAX_GAP_SECONDS / 86_400:.0f} days"
        wrong = (
            f"{jump}: no month is closed and no logs are dropped until it is set right, or has run for a day",
        )
    return Check("clock", looked_at, wrong)


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def check_months(facts: LedgerState) -> Check:
    """Usage against what teams are charged for."""
    usage = {key: (sums.billable, sums.cost) for key, sums in facts.usage.items() if sums.billable or sums.cost}
    differences = _unequal(("usage", usage), ("months", facts.months), (BILLABLE, MICROS))
    return Check("usage", f"against months of teams, {len(facts.months)}", tuple(differences))


def check_sources(facts: LedgerState) -> Check:
    """Usage against what the monthly caps of tokens are held to."""
    usage, counted = (
        {key: (count,) for key, count in each.items()} for each in (facts.used_by_source, facts.source_months)
    )
    differences = _unequal(("usage", usage), ("months of tokens", counted), (BILLABLE,))
    return Check("tokens", f"against months of tokens and domains, {len(counted)}", tuple(differences))


def check_invoices(facts: LedgerState) -> Check:
    """Usage of closed months against final invoices, and those against their own lines."""
    usage = {key: _all_of(sums) for key, sums in facts.usage.items() if key[1] in facts.closed}
    invoices = {key: (each.requests, each.billable, each.cost) for key, each in facts.invoices.items()}
    wrong = list(_unequal(("usage", usage), ("invoices", invoices), _ALL))
    for (team, month), invoice in sorted(facts.invoices.items()):
        if month not in facts.closed:
            wrong.append(f"{team} {month}: there is a final invoice, but the month is open")
        difference = sum(line.amount for line in invoice.lines) - invoice.total
        if difference:
            wrong.append(
                f"{team} {month}: the lines of {invoice.number} differ from its total by {difference} µUSD"
            )
    return Check("invoices", f"{len(invoices)} final ones, {len(facts.closed)} closed months", tuple(wrong))


def _is_kept(month: str, facts: LedgerState) -> bool:
    """Whether all log entries of a month are kept. None is committed before its month."""
    return facts.dropped_before is None or f"{month.replace('-', '')}01" >= facts.dropped_before


def _all_of(sums: Sums) -> tuple[int, ...]:
    return sums.requests, sums.billable, sums.cost


def _unequal(these: Side, those: Side, what: tuple[str, ...]) -> Iterator[str]:
    """Where two that should be the same differ, and by how much."""
    (this, one), (that, other) = these, those
    nothing = (0,) * len(what)
    for key in sorted(one.keys() | other.keys()):
        parts = [
            f"{this} {a}, {that} {b} {unit} ({a - b:+})"
            for a, b, unit in zip(one.get(key, nothing), other.get(key, nothing), what, strict=True)
            if a != b
        ]
        if parts:
            yield f"{key[0]} {key[1]}: {'; '.join(parts)}"
        elif (key in one) != (key in other):
            yield f"{key[0]} {key[1]}: is in {this if key in one else that} alone, with all counts 0"


# --- Reading the spool -------------------------------------------------------------------------------------


def _identities(spool: Path) -> set[bytes]:
    found = set()
    for path in spool.glob(f"*{segments.SUFFIX}"):
        try:
            identity = segments.read_id(path)
        except FileNotFoundError:
            continue  # finished meanwhile
        if identity is not None:
            found.add(identity)
    return found


def _inspect(path: Path, marks: Mapping[bytes, Mark]) -> SegmentFile:
    try:
        identity = segments.read_id(path)
        if identity is None:
            return SegmentFile(path.name, None, fault="it has no header")
        mark = marks.get(identity, Mark(segments.HEADER_BYTES))
        return _walk(path, identity, mark)
    except FileNotFoundError:
        return SegmentFile(path.name, None)  # finished meanwhile


def _walk(path: Path, identity: bytes, mark: Mark) -> SegmentFile:
    """Read all records; one must end where the mark is."""
    place, waiting, met = segments.HEADER_BYTES, 0, mark.offset == segments.HEADER_BYTES
    try:
        while (piece := segments.read_piece(path, place, PIECE_BYTES)).payloads:
            before = 0
            for count, place in piece.frames:
                waiting += count - before if place > mark.offset else 0
                met = met or place == mark.offset
                before = count
    except segments.Damaged as error:
        return SegmentFile(path.name, identity, waiting, f"{error}; {waiting} records before that wait")
    if met:
        return SegmentFile(path.name, identity, waiting)
    if place < mark.offset:
        return SegmentFile(
            path.name, identity, 0, f"it was read to byte {mark.offset}, but its records end at {place}"
        )
    return SegmentFile(path.name, identity, waiting, f"it was read to byte {mark.offset}, where no record ends")
