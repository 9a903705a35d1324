"""The sweep: everything that has expired goes, and nothing else."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from tests.control.services.house import ACME, DAY, MINUTE, NOON, VISIT, House

from tollgate.control.services.devices import OAuthError
from tollgate.core.models import Domain, Token
from tollgate.core.people import (
    CONSOLE,
    PERSONAL,
    TOOL,
    AuditEntry,
    DeviceLogin,
    Failures,
    Identity,
    Invitation,
    Login,
    Replay,
    ResetLink,
)
from tollgate.store.base import Repositories

WHO = "acc_owner"


def digest(text: str) -> bytes:
    return text.encode().ljust(32, b"-")


async def fill(records: Repositories) -> None:
    """Two of everything that ends: one that just did, called `over`, and one that has a second left."""
    for name, left in (("over", -1.0), ("left", 1.0)):
        end = NOON + left
        key = digest(name)
        await records.device_logins.add(
            DeviceLogin(f"dev_{name}", key, key, "", "", "", NOON - DAY, end - 10 * MINUTE, 5)
        )
        await records.replays.add(Replay(f"rep_{name}", key, end - DAY, 201, b"{}"))
        await records.failures.add(Failures(f"fai_{name}", 5, end - DAY))
        await records.invitations.add(Invitation(f"inv_{name}", "a@x.example", key, NOON - DAY, end))
        await records.reset_links.add(ResetLink(f"rst_{name}", WHO, key, NOON - DAY, end))
        await records.logins.add(
            Login(f"log_console_{name}", WHO, CONSOLE, "", NOON - DAY, digest(f"c{name}"), expires_at=end)
        )
        # Of a tool the access token may be long over while it can still be renewed.
        await records.logins.add(
            Login(
                f"log_tool_{name}", WHO, TOOL, "", NOON - DAY, digest(f"t{name}"), expires_at=NOON - DAY,
                refresh_digest=digest(f"r{name}"), refresh_until=end,
            )
        )  # fmt: skip
        await records.audit.add(AuditEntry(f"aud_{name}", end - 400 * DAY, "x", "y", chain=name))


async def keep(records: Repositories) -> None:
    """What no sweep may touch, though its time has passed: it is people's own, and they may look at it."""
    long_ago = NOON - 5_000 * DAY
    await records.tokens.add(
        Token("tok_1", ACME.id, "ci", "tg_", long_ago, expires_at=long_ago), digest=digest("k")
    )
    await records.domains.add(Domain("dom_1", ACME.id, "example.com", long_ago))
    await records.identities.add(Identity("idn_1", WHO, "https://idp.example", "s", long_ago))
    await records.logins.add(Login("log_ci", WHO, PERSONAL, "ci", long_ago, digest("p"), expires_at=long_ago))
    await records.logins.add(Login("log_ci2", WHO, PERSONAL, "ci", long_ago, digest("q")))


def everything(house: House) -> set[str]:
    tables = (
        "device_logins", "replays", "failures", "invitations", "reset_links", "logins", "audit", "tokens",
        "domains", "identities", "accounts", "teams", "members",
    )  # fmt: skip
    with closing(sqlite3.connect(house.folder / "control.db")) as connection:
        return {row[0] for table in tables for row in connection.execute(f"SELECT id FROM {table}")}


def test_what_has_expired_goes_and_nothing_else(house: House) -> None:
    house.write(fill)
    house.write(keep)
    before = everything(house)
    house.do(house.plane.sweep.run())
    gone = before - everything(house)
    assert gone == {name for name in before if name.endswith("_over")}
    assert len(gone) == 8
    house.clock.advance(2)
    house.do(house.plane.sweep.run())
    assert {name for name in before if name.endswith("_left")} & everything(house) == set()
    assert {"tok_1", "dom_1", "idn_1", "log_ci", "log_ci2", "acc_owner", ACME.id} <= everything(house)


def test_sweep_of_nothing_does_nothing(house: House) -> None:
    before = everything(house)
    house.do(house.plane.sweep.run())
    assert everything(house) == before
    assert house.notes() == []


@pytest.mark.parametrize("days", [1, 1_000])
def test_entries_of_the_audit_log_are_kept_as_long_as_is_set(house: House, days: int) -> None:
    plane = house.choose(audit_days=days)
    house.write(lambda records: records.audit.add(AuditEntry("aud_1", NOON - 2 * DAY, "x", "y")))
    house.do(plane.sweep.run())
    assert ("aud_1" in everything(house)) is (days == 1_000)


def test_tool_hears_for_a_while_why_its_code_is_gone(house: House) -> None:
    started = house.do(house.plane.devices.start(VISIT, ""))
    house.clock.advance(15 * MINUTE + 1)
    house.do(house.plane.sweep.run())
    poll = house.plane.devices.poll
    assert house.refused(OAuthError, poll(VISIT, started.device_code)).code == "expired_token"
    house.clock.advance(10 * MINUTE)
    house.do(house.plane.sweep.run())
    assert house.refused(OAuthError, poll(VISIT, started.device_code)).code == "invalid_grant"
