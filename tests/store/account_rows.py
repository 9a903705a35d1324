"""A ledger with accounts: calls committed by the real store, by the rules of the real collector, at any time."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.store.stored_blocks import batch_of

from tollgate.core.entries import CallEntry, Entry
from tollgate.core.posting import Opening, Posting, Rules, post
from tollgate.core.pricing import OwnPrice, Price
from tollgate.processes.collector import billing_month
from tollgate.store import sqlite
from tollgate.store.ledger import open_ledger

NOON = 1_794_744_000.0  # 2026-11-15T12:00:00Z
MONTH, BEFORE, AFTER = "2026-11", "2026-10", "2026-12"
ACME, RIVAL = "team_acme000000000", "team_rival00000000"
CI, CD, WEB = "tok_ci00000000000000", "tok_cd00000000000000", "dom_web0000000000000"


def calls(
    count: int,
    at: float = NOON,
    *,
    team: str = ACME,
    source: str = CI,
    network: str = "eth/mainnet",
    method: str = "eth_call",
    outcome: str = "ok",
    cap: int | None = None,
    price: OwnPrice | None = None,
    payer: str = "",
    micros: int = 0,
) -> Entry:
    """One record that counts for so many calls."""
    made = (CallEntry(method, outcome),)
    return Entry(
        at=at,
        team_id=team,
        source_id=source,
        network=network,
        source_name=source[4:6],
        status=200,
        stands_for=count,
        cap=cap,
        price=price,
        payer=payer,
        duration_micros=micros,
        calls=made,
        request_id=b"req",
    )


class Books:
    """What the collector writes."""

    def __init__(self, folder: Path, price: Callable[[str], Price] = lambda _: Price()) -> None:
        self.folder = folder
        self.url = sqlite.ledger_url(folder)
        self.ledger = open_ledger(self.url)
        self.price = price

    def commit(
        self,
        *entries: Entry,
        now: float = NOON,
        closed: frozenset[str] | None = None,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Posting:
        """Commit a batch. `meanwhile` is done within its transaction; `closed` is what it takes for closed."""
        batch = batch_of(entries)
        rules = Rules(self.price, lambda at, months: billing_month(at, months if closed is None else closed))

        def posted(opening: Opening) -> Posting:
            meanwhile()
            return post(batch, opening, rules)

        made = self.ledger.commit({}, batch.teams(), posted, now, payers=batch.payers())
        # As if the collector had run ever since: jumps of the clock have tests of their own.
        self.sql("UPDATE state SET seen_at = NULL, doubted_at = NULL")
        return made

    def sql(self, statement: str, *values: Any) -> list[Any]:
        """Do something past all our code."""
        with closing(sqlite3.connect(self.folder / "ledger.db")) as connection, connection:
            return connection.execute(statement, values).fetchall()

    def close(self) -> None:
        self.ledger.close()
