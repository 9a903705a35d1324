"""The harness with a ledger: what its teams call is committed by the real collector's rules, caps and all.

Months go by with the clock. Webhooks are called by a scripted caller, which fails as the test sets it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import create_engine
from tests.control.services.harness import ACME, PEPPER, Harness
from tests.store.account_rows import Books, calls

from tollgate.api.billing import BillingChange
from tollgate.control.outbound import Unreachable
from tollgate.control.plane import ControlPlane
from tollgate.control.services.alerts import Alerts
from tollgate.control.services.billing import BillingService, BillingTerms
from tollgate.control.services.invoices import Invoices
from tollgate.control.services.usage import Usages
from tollgate.core.models import Team, Token
from tollgate.settings.model import PricingSettings, Settings
from tollgate.store import sqlite
from tollgate.store.caps import Caps

CENT, DOLLAR = 10_000, 1_000_000


class Sent(msgspec.Struct, frozen=True):
    """A call of a webhook."""

    host: str
    url: str
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Hooks:
    """What webhooks are called with. `failures` are raised first, one for each call."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.failures: deque[Exception] = deque()
        self.down = False

    async def post(self, host: str, url: str, body: bytes, headers: Mapping[str, str]) -> None:
        self.sent.append(Sent(host, url, body, dict(headers)))
        if self.failures:
            raise self.failures.popleft()
        if self.down:
            raise Unreachable(f"{host} cannot be reached.")


class Metering(Harness):
    """A control plane whose teams call and pay."""

    def __init__(self, template: Path, ledger: Path, folder: Path, loop: asyncio.Runner, chosen: Settings) -> None:
        shutil.copy(ledger, folder / "ledger.db")
        self.hooks = Hooks()
        self.book = sqlite.open_accountbook(sqlite.ledger_url(folder))
        super().__init__(template, folder, loop, chosen)
        self.books = Books(folder)
        self._control = create_engine(sqlite.store_url("", folder))
        sqlite.set_pragmas(self._control)
        self.use(chosen)

    def another(self, chosen: Settings) -> ControlPlane:
        """A plane over the same stores with other settings."""
        plane = super().another(chosen)
        plane.usage = Usages(plane.context, self.book)
        plane.billing = BillingService(plane.context, PEPPER, self.book)
        plane.invoices = Invoices(plane.context, self.book)
        plane.alerts = Alerts(plane.context, self.book, plane.billing, self.post, self.hooks)
        return plane

    def use(self, chosen: Settings) -> None:
        """Go on with other settings."""
        self.plane = self.another(chosen)
        self._caps = Caps(self._control, self.books.ledger, chosen.billing.price())
        price = chosen.billing.price()
        self.books.price = lambda _: price

    def charge(self, **billing: Any) -> None:
        """Go on with other prices."""
        self.use(replace(self.plane.settings, billing=PricingSettings(**billing)))

    def close(self) -> None:
        super().close()
        self.do(self.book.close())
        self.books.close()
        self._control.dispose()

    # --- What happens ----------------------------------------------------------------------------------

    def call(self, count: int = 1, at: float | None = None, **more: Any) -> None:
        """Let a team call so often, and the collector take note."""
        team_id = more.get("team", ACME.id)
        team = self.write(lambda records: records.teams.get(team_id))
        terms = {} if team is None else {"cap": team.cap, "price": team.price, "payer": team.payer}
        moment = self.clock.now if at is None else at
        self.books.commit(calls(count, moment, **{**terms, **more}), now=self.clock.now)
        self.reconcile()

    def set_billing(self, **change: Any) -> tuple[BillingTerms, str | None]:
        """Change billing settings of the team, as its owner."""
        return self.do(self.plane.billing.change(self.actor("owner"), ACME.id, BillingChange(**change)))

    def reconcile(self) -> None:
        """Let the collector bring the flags of caps in line, as it does every second."""
        self._caps.reconcile(self.clock.now)

    def team(self, team: Team = ACME) -> Team:
        """The current row of a team."""
        found = self.write(lambda records: records.teams.get(team.id))
        assert found is not None
        return found

    def token(self, token_id: str, name: str, team: Team = ACME) -> None:
        """Let there be a token."""
        made = Token(token_id, team.id, name, "tg_", self.clock.now)
        self.write(lambda records: records.tokens.add(made, digest=token_id.encode().ljust(32, b"-")))
