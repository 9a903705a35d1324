"""Fills the demo: an account, its team, an API token, a whitelist entry and a personal access token.

Started again on the same folder, the demo keeps its token, and makes a new password and personal token.
`fill` runs in a child process. The parent of all workers imports this module and must not load the control plane:
hence the lazy modules.
"""

from __future__ import annotations

import asyncio
import secrets as random
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from tollgate.api.domains import NewDomain
from tollgate.api.me import NewPersonalToken
from tollgate.api.teams import NewTeam
from tollgate.api.tokens import NewToken
from tollgate.core.models import Team
from tollgate.core.origins import LOCALHOST
from tollgate.core.people import PERSONAL, Account
from tollgate.core.roles import Role
from tollgate.demo import history
from tollgate.lazy_module import LazyModule
from tollgate.processes.bootstrap import Bootstrap, write_pepper
from tollgate.store import engines
from tollgate.store.base import Repositories

if TYPE_CHECKING:
    from tollgate.control import passwords, service_context
    from tollgate.control import plane as control_plane
    from tollgate.control.plane import ControlPlane
    from tollgate.control.service_context import Actor
else:
    control_plane = LazyModule("tollgate.control.plane")
    passwords = LazyModule("tollgate.control.passwords")
    service_context = LazyModule("tollgate.control.service_context")

TEAM = "demo"
EMAIL = "demo@tollgate.test"
MAX_TOKENS = 1_000
TOKEN_FILE = "demo-token"  # noqa: S105 - a name
"""The demo's token in clear: commands on the screen still work after a restart."""


class Filled(Struct, frozen=True):
    """What was made, in clear."""

    token: str
    password: str
    management_token: str

    def __repr__(self) -> str:
        return "Filled(…)"


def fill(bootstrap: Bootstrap, *, past: bool = True) -> Filled:
    """Fill the store of the demo; a new one also with a past."""
    return asyncio.run(_fill(bootstrap, past=past))


async def _fill(bootstrap: Bootstrap, *, past: bool) -> Filled:
    store = engines.open_store(bootstrap.store_url)
    now = time.time()
    clock = history.HistoryClock(now)
    plane = control_plane.ControlPlane(
        store, bootstrap.settings, bootstrap.pepper, "", clock, audit_key=bootstrap.audit_key
    )
    password = random.token_urlsafe(12)
    hashed = await passwords.Passwords().hash(password)
    try:
        async with store.changing() as records:
            account = await records.accounts.find(email=EMAIL)
            is_new = account is None
            if account is None:
                if past:
                    clock.now = now - history.SECONDS
                actor = service_context.Actor(None)
                account = await plane.accounts.add(records, actor, EMAIL, hashed, name="Demo", verified=True)
                account = replace(account, operator=True)
                await records.accounts.replace(account)
            else:
                await records.accounts.replace(replace(account, password_hash=hashed))
            actor = service_context.Actor(account)
            team = await _team(records, plane, actor, account)
        if is_new and past:
            await history.fill(bootstrap, plane, clock, account, team, now)
        async with store.changing() as records:
            await records.logins.remove(account_id=account.id, kind=PERSONAL, name=TEAM)
            _, management_token = await plane.logins.add_personal(
                records, actor, account, NewPersonalToken(TEAM, None)
            )
            kept = bootstrap.data_dir / TOKEN_FILE
            token = _kept_token(kept)
            if not token or await records.tokens.find(team_id=team.id, name=TEAM) is None:
                name = await _room_for_token(records, team)
                _, token = await plane.tokens.add(records, actor, team.id, NewToken(name=name))
                write_pepper(kept, token.encode())
        await _localhost(plane, actor, team)
    finally:
        await plane.close()
    return Filled(token, password, management_token)


async def _team(records: Repositories, plane: ControlPlane, actor: Actor, account: Account) -> Team:
    team = await records.teams.find(name=TEAM)
    if team is None:
        return (await plane.teams.add(records, actor, NewTeam(TEAM), account.id)).team
    if await records.members.find(team_id=team.id, account_id=account.id) is None:
        await plane.teams.add_member(records, actor, team, account.id, Role.OWNER)
    return team


def _kept_token(path: Path) -> str:
    """The token of an earlier start on this folder; empty where there was none."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


async def _room_for_token(records: Repositories, team: Team) -> str:
    """Delete tokens of earlier starts whose secret is lost; return the name of the next."""
    tokens = await records.tokens.page(MAX_TOKENS, team_id=team.id)
    earlier = [token for token in tokens if token.name == TEAM or token.name.startswith(f"{TEAM}-")]
    await records.tokens.remove(id=tuple(token.id for token in earlier))
    return TEAM


async def _localhost(plane: ControlPlane, actor: Actor, team: Team) -> None:
    async with plane.context.store.reading() as records:
        held = await records.domains.find(domain=LOCALHOST)
    if held is None:
        await plane.domains.add(actor, team.id, NewDomain(LOCALHOST))
