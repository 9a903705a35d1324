"""A control plane with a ledger to read: two teams, a member of each role, and rows to commit."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.control.services.harness import PATIENCE
from tests.store.log_rows import ACME, CI, DAY, NOON, RIVAL, THEIRS, WEB, Ledger
from tests.store.migrated import make_control

from tollgate.api.logs import LogQuery
from tollgate.control.plane import ControlPlane
from tollgate.control.service_context import Actor
from tollgate.control.services.logs import LogResults
from tollgate.core.models import Domain, Team, Token
from tollgate.core.people import Account, Member
from tollgate.core.roles import Role
from tollgate.settings.model import Settings
from tollgate.store import sqlite
from tollgate.store.base import Repositories

Result = TypeVar("Result")
Refused = TypeVar("Refused", bound=Exception)

PEPPER = b"p" * 32
BASE_URL = "https://toll.example"


async def people(records: Repositories) -> None:
    """Add all people."""
    for team_id, name in ((ACME, "acme"), (RIVAL, "rival")):
        await records.teams.add(Team(team_id, name, created_at=NOON - DAY))
    for who in (*Role, "outsider"):
        await records.accounts.add(Account(f"acc_{who}", f"{who}@x.example", NOON - DAY, verified_at=NOON - DAY))
    for role in Role:
        await records.members.add(Member(f"mem_{role}", ACME, f"acc_{role}", role.value, NOON - DAY))
    await records.members.add(Member("mem_outsider", RIVAL, "acc_outsider", "owner", NOON - DAY))
    for number, (token_id, team_id, name) in enumerate(((CI, ACME, "ci"), (THEIRS, RIVAL, "theirs"))):
        await records.tokens.add(Token(token_id, team_id, name, "tg_", NOON - DAY), digest=bytes([number]) * 32)
    await records.domains.add(Domain(WEB, ACME, "web.example", NOON - DAY))


class LogHarness:
    """A control plane and its ledger, for tests that are transcripts."""

    def __init__(self, folder: Path, loop: asyncio.Runner, **looks: Any) -> None:
        self._loop = loop
        self.ledger = Ledger(folder)
        url = sqlite.store_url("", folder)
        make_control(folder)
        self.store = sqlite.open_store(url, deadline=PATIENCE)
        self.plane = ControlPlane(
            self.store,
            Settings(),
            PEPPER,
            BASE_URL,
            lambda: self.ledger.now,
            logbook=sqlite.open_logbook(self.ledger.url, **looks),
        )
        self.do(self._fill())

    async def _fill(self) -> None:
        async with self.store.changing() as records:
            await people(records)

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run it, and return its result."""
        return self._loop.run(work)

    def actor(self, who: str = "owner") -> Actor:
        """One of the people."""
        return Actor(Account(f"acc_{who}", f"{who}@x.example", NOON - DAY))

    def page(self, who: str = "owner", team: str = "acme", **query: Any) -> LogResults:
        """A part of a team's logs."""
        return self.do(self.plane.logs.page(self.actor(who), team, LogQuery(**query)))

    def refused(self, kind: type[Refused], who: str = "owner", team: str = "acme", **query: Any) -> Refused:
        """Why a part is refused: exactly this kind."""
        with pytest.raises(kind) as caught:
            self.page(who, team, **query)
        assert type(caught.value) is kind
        return caught.value

    def close(self) -> None:
        self.do(self.plane.close())
        self.ledger.close()


def seqs(page: LogResults) -> list[int]:
    """The rows of a page."""
    return [row.seq for row in page.rows]
