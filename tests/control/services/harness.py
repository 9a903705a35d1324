"""A whole control plane in a folder: a real store, a manual clock, scripted proofs and a box for its mail.

Its people are rows, made once: a team `acme` with one member of each role, a team `rival` with an owner, and
a person who belongs to none.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from argon2 import PasswordHasher
from msgspec.structs import replace
from tests.gateway.fakes import Clock
from tests.store.migrated import make_control, make_ledger

from tollgate.api.me import NewPersonalToken
from tollgate.control.mail import Mailer
from tollgate.control.passwords import Passwords
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import Problem
from tollgate.control.proofs import Finding, Proofs
from tollgate.control.service_context import Actor, ClientInfo, PageRequest
from tollgate.control.services.accounts import Accounts
from tollgate.control.services.admin import Admin
from tollgate.control.services.domains import Domains
from tollgate.control.services.email_changes import EmailChanges
from tollgate.control.services.invitations import Invitations
from tollgate.core.models import Team
from tollgate.core.people import PERSONAL, Account, AuditEntry, Member
from tollgate.settings.model import (
    AccountSettings,
    MailSettings,
    NetworkSettings,
    Settings,
    UpstreamSettings,
    WhitelistSettings,
)
from tollgate.store import sqlite
from tollgate.store.base import Repositories
from tollgate.store.sql import SqlStore

Result = TypeVar("Result")
Refused = TypeVar("Refused", bound=Exception)

NOON = 1_794_744_000.0  # 2026-11-15T12:00:00Z
MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0
PEPPER = b"p" * 32
BASE_URL = "https://toll.example"
PASSWORD = "correct horse battery"
VISIT = ClientInfo("192.0.2.7", "Mozilla/5.0 Firefox/140.0", "req-1")
ELSEWHERE = ClientInfo("198.51.100.9", "curl/8", "req-2")
ALL = PageRequest(1_000)
# Seconds that the store may take: a busy machine is no outage.
PATIENCE = 60.0

# The same algorithm at the least cost: what a real one costs is tested in tests/control/test_passwords.py.
CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)

ROLES = ("owner", "admin", "developer", "billing", "viewer")
ACME = Team("team_acme000000000", "acme", created_at=NOON - DAY)
RIVAL = Team("team_rival00000000", "rival", created_at=NOON - DAY)
PEOPLE = {
    **{role: f"{role}@acme.example" for role in ROLES},
    "outsider": "outsider@rival.example",
    "loner": "loner@nowhere.example",
}


def member_id(who: str) -> str:
    """The id of a person's membership."""
    return f"mem_{who}"


async def people(records: Repositories) -> None:
    """Add all people. Only the owner has a password, because hashing is slow."""
    hashed = CHEAP.hash(PASSWORD)
    for place, (who, email) in enumerate(PEOPLE.items()):
        at = NOON - DAY + place
        await records.accounts.add(
            Account(f"acc_{who}", email, at, who.title(), hashed if who == "owner" else "", verified_at=at)
        )
    for team in (ACME, RIVAL):
        await records.teams.add(team)
    for place, role in enumerate(ROLES):
        await records.members.add(Member(member_id(role), ACME.id, f"acc_{role}", role, NOON - DAY + place))
    await records.members.add(Member(member_id("outsider"), RIVAL.id, "acc_outsider", "owner", NOON - DAY))


def make_template(folder: Path) -> Path:
    """A migrated store with all people in it, to be copied."""
    made = make_control(folder)
    make_ledger(folder)

    async def fill() -> None:
        store = sqlite.open_store(sqlite.store_url("", folder), deadline=PATIENCE)
        async with store.changing() as records:
            await people(records)
        await store.close()

    asyncio.run(fill())
    return made


class Postbox(Mailer):
    """Takes mail and keeps it."""

    def __init__(self) -> None:
        super().__init__(MailSettings())
        self.open = True
        self.posted: list[tuple[str, str, str]] = []

    @property
    def enabled(self) -> bool:
        return self.open

    def post(self, to: str, subject: str, text: str) -> bool:
        if self.open:
            self.posted.append((to, subject, text))
        return self.open


class ScriptedProofs(Proofs):
    """Proofs as the test sets it. `meanwhile` is called during the next look-up."""

    def __init__(self) -> None:
        super().__init__(_Nowhere(), _Nowhere())
        self.proven: set[tuple[str, str]] = set()
        self.unsure: set[tuple[str, str]] = set()
        self.looks: list[tuple[str, str]] = []
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def look(self, domain: str, team_id: str) -> Finding:
        self.looks.append((domain, team_id))
        work, self.meanwhile = self.meanwhile, None
        if work is not None:
            await work()
        if (domain, team_id) in self.proven:
            return Finding(proven=True, by="dns")
        unsure = (domain, team_id) in self.unsure
        return Finding(proven=False, certain=not unsure, problems=("Nothing was there", "Nor there."))


class _Nowhere:
    def url(self, host: str, path: str) -> str:
        return f"https://{host}:8443{path}"

    async def texts(self, name: str) -> list[str]:
        raise AssertionError("no test uses the network")

    async def get(self, host: str, path: str) -> bytes:
        raise AssertionError("no test uses the network")


def settings(**accounts: Any) -> Settings:
    """Settings with two networks."""
    node = NetworkSettings(upstreams=(UpstreamSettings(name="node", url="http://127.0.0.1:1"),))
    families = {"eth": {"mainnet": node, "sepolia": node}}
    return Settings(accounts=AccountSettings(**accounts), families=families)


class Harness:
    """A control plane and everything around it, for tests that are transcripts."""

    def __init__(self, template: Path, folder: Path, loop: asyncio.Runner, chosen: Settings) -> None:
        self.folder = folder
        shutil.copy(template, folder / "control.db")
        if not (folder / "ledger.db").exists():
            shutil.copy(template.with_name("ledger.db"), folder / "ledger.db")
        self._loop = loop
        self.clock = Clock(NOON)
        self.post = Postbox()
        self.proofs = ScriptedProofs()
        self.store: SqlStore = sqlite.open_store(sqlite.store_url("", folder), deadline=PATIENCE)
        self.plane = self.another(chosen)

    def another(self, chosen: Settings) -> ControlPlane:
        """A plane over the same store with other settings."""
        ledger = sqlite.ledger_url(self.folder)
        plane = ControlPlane(
            self.store,
            chosen,
            PEPPER,
            BASE_URL,
            self.clock,
            proofs=self.proofs,
            logbook=sqlite.open_logbook(ledger, look_seconds=60.0),
            accountbook=sqlite.open_accountbook(ledger),
        )
        passwords = Passwords(CHEAP)
        plane.mailer = self.post
        plane.accounts = Accounts(plane.context, passwords, self.post)
        plane.email_changes = EmailChanges(plane.context, plane.accounts, self.post)
        plane.admin = Admin(plane.context, passwords, plane.accounts, plane.teams)
        plane.invitations = Invitations(plane.context, plane.teams, self.post)
        plane.domains = Domains(plane.context, self.proofs, self.post)
        return plane

    def choose(self, *, allow_localhost: bool = False, **accounts: Any) -> ControlPlane:
        """Go on with other settings of accounts."""
        chosen = replace(settings(**accounts), whitelist=WhitelistSettings(allow_localhost=allow_localhost))
        self.plane = self.another(chosen)
        return self.plane

    def close(self) -> None:
        self.do(self.plane.close())

    # --- Doing -----------------------------------------------------------------------------------------

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run it, and return its result."""
        return self._loop.run(work)

    def refused(self, kind: type[Refused], work: Coroutine[Any, Any, Any]) -> Refused:
        """Do it, and return why it was refused: exactly this kind."""
        with pytest.raises(kind) as caught:
            self.do(work)
        assert type(caught.value) is kind
        return caught.value

    def at_once(self, *works: Coroutine[Any, Any, Result]) -> list[Result | BaseException]:
        """Run all of it concurrently; refusals are among the results."""

        async def together() -> list[Result | BaseException]:
            return await asyncio.gather(*works, return_exceptions=True)

        return self.do(together())

    def write(self, work: Callable[[Repositories], Coroutine[Any, Any, Result]]) -> Result:
        """Do something to the records past all services."""

        async def change() -> Result:
            async with self.store.changing() as records:
                return await work(records)

        return self.do(change())

    # --- People ----------------------------------------------------------------------------------------

    def account(self, who: str) -> Account:
        """The current row of an account."""
        found = self.write(lambda records: records.accounts.get(f"acc_{who}"))
        assert found is not None
        return found

    def actor(self, who: str, client: ClientInfo = VISIT) -> Actor:
        """A person at a browser."""
        return Actor(self.account(who), None, client)

    def program(self, who: str, name: str = "ci", days: int | None = None) -> tuple[Actor, str]:
        """A program with a person's personal access token, and the token."""
        _, secret = self.do(self.plane.logins.new_personal(self.actor(who), NewPersonalToken(name, days)))
        return self.do(self.plane.logins.actor(VISIT, secret, PERSONAL)), secret

    def joins(self, who: str, role: str, team: Team = ACME) -> str:
        """Make a person a member; return the member's id."""
        member = Member(f"mem_{team.name}_{who}", team.id, f"acc_{who}", role, self.clock.now)
        self.write(lambda records: records.members.add(member))
        return member.id

    # --- The audit log ---------------------------------------------------------------------------------

    def notes(self) -> list[AuditEntry]:
        """Every audit entry, oldest first."""
        with closing(sqlite3.connect(self.folder / "control.db")) as connection:
            order = [row[0] for row in connection.execute("SELECT id FROM audit ORDER BY rowid")]
        entries = self.write(lambda records: records.audit.page(10_000))
        # Entries of the same moment have no order by time alone.
        return sorted(entries, key=lambda entry: order.index(entry.id))

    def actions(self) -> list[str]:
        return [entry.action for entry in self.notes()]


def moment(seconds: float) -> datetime:
    """A time as commands have it."""
    return datetime.fromtimestamp(seconds, UTC)


def details_of(entry: AuditEntry) -> dict[str, Any]:
    """What an entry has besides."""
    return msgspec.json.decode(entry.details, type=dict[str, Any])


def words(problem: Problem) -> tuple[int, str, str, dict[str, object]]:
    """All that a problem shows."""
    return problem.status, problem.reason, problem.detail, problem.extras
