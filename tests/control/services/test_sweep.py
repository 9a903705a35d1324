"""The sweep: everything that has expired is removed, and nothing else."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from tests.control.services.harness import ACME, DAY, MINUTE, NOON, VISIT, Harness

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
    """Expired rows that the sweep keeps, because people may still look at them."""
    long_ago = NOON - 5_000 * DAY
    await records.tokens.add(
        Token("tok_1", ACME.id, "ci", "tg_", long_ago, expires_at=long_ago), digest=digest("k")
    )
    await records.domains.add(Domain("dom_1", ACME.id, "example.com", long_ago))
    await records.identities.add(Identity("idn_1", WHO, "https://idp.example", "s", long_ago))
    await records.logins.add(Login("log_ci", WHO, PERSONAL, "ci", long_ago, digest("p"), expires_at=long_ago))
    await records.logins.add(Login("log_ci2", WHO, PERSONAL, "ci", long_ago, digest("q")))


def everything(harness: Harness) -> set[str]:
    tables = (
        "device_logins", "replays", "failures", "invitations", "reset_links", "logins", "audit", "tokens",
        "domains", "identities", "accounts", "teams", "members",
    )  # fmt: skip
    with closing(sqlite3.connect(harness.folder / "control.db")) as connection:
        return {row[0] for table in tables for row in connection.execute(f"SELECT id FROM {table}")}


def test_only_expired_rows_are_removed(harness: Harness) -> None:
    harness.write(fill)
    harness.write(keep)
    before = everything(harness)
    harness.do(harness.plane.sweep.run())
    gone = before - everything(harness)
    assert gone == {name for name in before if name.endswith("_over")}
    assert len(gone) == 8
    harness.clock.advance(2)
    harness.do(harness.plane.sweep.run())
    assert {name for name in before if name.endswith("_left")} & everything(harness) == set()
    assert {"tok_1", "dom_1", "idn_1", "log_ci", "log_ci2", "acc_owner", ACME.id} <= everything(harness)


def test_clock_far_ahead_ends_neither_the_audit_log_nor_logins_nor_invitations(harness: Harness) -> None:
    harness.write(fill)
    with closing(sqlite3.connect(harness.folder / "ledger.db")) as connection, connection:
        connection.execute("DELETE FROM state")
        connection.execute("INSERT INTO state (id, seen_at) VALUES (1, ?)", (NOON,))
    before = everything(harness)
    harness.clock.advance(500 * DAY)
    harness.do(harness.plane.sweep.run())
    gone = before - everything(harness)
    assert {name.partition("_")[0] for name in gone} == {"dev", "rep", "fai", "rst"}
    # Set right, or after a day of running on: then expired rows are removed.
    harness.clock.advance(-500 * DAY)
    harness.do(harness.plane.sweep.run())
    assert before - everything(harness) - gone == {"inv_over", "log_console_over", "log_tool_over", "aud_over"}


def test_sweep_without_expired_rows_changes_nothing(harness: Harness) -> None:
    before = everything(harness)
    harness.do(harness.plane.sweep.run())
    assert everything(harness) == before
    assert harness.notes() == []


@pytest.mark.parametrize("days", [1, 1_000])
def test_entries_of_the_audit_log_are_kept_as_long_as_is_set(harness: Harness, days: int) -> None:
    plane = harness.choose(audit_days=days)
    harness.write(lambda records: records.audit.add(AuditEntry("aud_1", NOON - 2 * DAY, "x", "y")))
    harness.do(plane.sweep.run())
    assert ("aud_1" in everything(harness)) is (days == 1_000)


def test_expiry_of_a_code_is_reported_to_its_tool_for_a_while(harness: Harness) -> None:
    started = harness.do(harness.plane.devices.start(VISIT, ""))
    harness.clock.advance(15 * MINUTE + 1)
    harness.do(harness.plane.sweep.run())
    poll = harness.plane.devices.poll
    assert harness.refused(OAuthError, poll(VISIT, started.device_code)).code == "expired_token"
    harness.clock.advance(10 * MINUTE)
    harness.do(harness.plane.sweep.run())
    assert harness.refused(OAuthError, poll(VISIT, started.device_code)).code == "invalid_grant"
