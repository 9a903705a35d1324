"""One row of every table with all of its fields set, one with as few as it may have, and how to put them down."""

from collections.abc import Sequence
from typing import Any

from tests.contract.backends import Store
from tests.samples import settings

from tollgate.api.domains import DomainSettings
from tollgate.api.tokens import TokenSettings
from tollgate.core.alerts import Alert, BillingSettings
from tollgate.core.audit_chain import AuditChain
from tollgate.core.invoices import Report
from tollgate.core.models import Domain, Lineage, PriceChange, Team, Token
from tollgate.core.nodes import JobLease, Node
from tollgate.core.people import (
    APPROVED,
    PASSKEY,
    PERSONAL,
    RECOVERY,
    TOOL,
    Account,
    AuditEntry,
    DeviceLogin,
    Factor,
    Failures,
    Identity,
    Invitation,
    Login,
    Member,
    Replay,
    ResetLink,
)
from tollgate.store.base import Repositories

TEAM = Team(
    "team_1",
    "acme",
    requests_per_second=50,
    capped_until=5.5,
    created_at=500.25,
    spending_cap=25,
    suspended_reason="unpaid",
    free_requests=3,
    micros_per_million=4_000_000,
    operator_cap=20,
)
OTHER = Team("team_2", "other")
TOKEN = Token(
    "tok_1",
    "team_1",
    "ci",
    "tg_abcde",
    1_000.25,
    created_by="ann@example.com",
    last_used_at=2_000.0,
    expires_at=3_000.0,
    capped_until=4_000.0,
    replaces="tok_0",
    **settings(TokenSettings, active=True, methods=("eth_*", 'odd"\\é')),
)
DIGEST = bytes(range(32))
DOMAIN = Domain(
    "dom_1",
    "team_1",
    "example.com",
    1_000.25,
    created_by="ann@example.com",
    verified_at=2_000.0,
    **settings(DomainSettings, active=True),
)
ACCOUNT = Account(
    "acc_1", "ann@example.com", 1.5, "Ann Ø", "$argon2id$v=19$sample", verified_at=2.5, active=False, operator=True
)
LOGIN = Login(
    "log_1",
    "acc_1",
    TOOL,
    "ann@laptop",
    1.5,
    b"L" * 32,
    expires_at=2.5,
    last_used_at=3.5,
    address="2001:db8::1",
    agent="tollgate/1",
    refresh_digest=b"R" * 32,
    old_refresh_digest=b"O" * 32,
    refreshed_at=4.5,
    refresh_until=5.5,
)
DEVICE_LOGIN = DeviceLogin(
    "dev_1", b"D" * 32, b"C" * 32, "ann@laptop", "192.0.2.1", "tollgate/1", 1.5, 601.5, 5, 3.5, APPROVED, "acc_1"
)
INVITATION = Invitation(
    "inv_1", "new@example.com", b"I" * 32, 1.5, 9.5, "ann@example.com", "team_1", "admin", True
)
AUDIT = AuditEntry(
    "aud_1", 1.5, "token.create", "ann@example.com", "acc_1", "team_1", "tok_1", "ci", '{"a":1}', "192.0.2.1",
    "tool", "req-1", "team_1", 7, "a" * 64, "b" * 64,
)  # fmt: skip

FULL: dict[str, Any] = {
    "teams": TEAM,
    "price_changes": PriceChange("prc_1", "team_1", 1.5, 3, 4_000_000),
    "tokens": TOKEN,
    "lineages": Lineage("tok_1", 1_000.25, "team_1", "tok_0"),
    "domains": DOMAIN,
    "accounts": ACCOUNT,
    "factors": Factor("fac_1", "acc_1", PASSKEY, "laptop", 1.5, b"K" * 77, b"id", 7, 2.5, False),
    "identities": Identity("idn_1", "acc_1", "https://id.example", "248289761001", 1.5),
    "logins": LOGIN,
    "device_logins": DEVICE_LOGIN,
    "members": Member("mem_1", "team_1", "acc_1", "owner", 1.5, "operator"),
    "invitations": INVITATION,
    "reset_links": ResetLink("rst_1", "acc_1", b"S" * 32, 1.5, 9.5),
    "failures": Failures("password acc_1", 3, 1.5),
    "replays": Replay("f" * 64, b"B" * 32, 1.5, 201, b'{"id":"tok_1"}\x00\xff'),
    "audit": AUDIT,
    "audit_chains": AuditChain("team_1", 1.5, 7, "b" * 64),
    "billing": BillingSettings(
        "team_1", 1.5, "https://hooks.example/x", "a1b2", emails=False, buyer="Acme Ltd", tax_number="X1"
    ),
    "alerts": Alert("alr_1", "team_1", "2026-11", 80, "webhook", 1.5, 4, 5, "given_up", 6, 2.5),
    "reports": Report("rep_1", "team_1", "2026-11", "invoice_item", 1.5, 2.5, "ii_1"),
    "nodes": Node("n1-all", 1.5, "host", "1.0", "all", 2.5, 7),
    "leases": JobLease("sweep", 1.5, "n1-all", 60.5),
}
PLAIN: dict[str, Any] = {
    "teams": OTHER,
    "price_changes": PriceChange("prc_2", "team_2", 2.0),
    "tokens": Token("tok_2", "team_2", "plain", "tg_zzzzz", 2_000.0),
    "lineages": Lineage("tok_2", 2_000.0, "team_2", "tok_2"),
    "domains": Domain("dom_2", "team_2", "example.org", 2_000.0),
    "accounts": Account("acc_2", "bob@example.com", 2.0),
    "factors": Factor("fac_2", "acc_2", RECOVERY, "", 2.0, b"r" * 32),
    "identities": Identity("idn_2", "acc_2", "https://id.example", "2", 2.0),
    "logins": Login("log_2", "acc_2", PERSONAL, "ci", 2.0, b"l" * 32),
    "device_logins": DeviceLogin("dev_2", b"d" * 32, b"c" * 32, "", "", "", 2.0, 602.0, 5),
    "members": Member("mem_2", "team_2", "acc_2", "viewer", 2.0),
    "invitations": Invitation("inv_2", "x@example.com", b"i" * 32, 2.0, 9.0),
    "reset_links": ResetLink("rst_2", "acc_2", b"s" * 32, 2.0, 9.0),
    "failures": Failures("address 192.0.2.1", 1, 2.0),
    "replays": Replay("0" * 64, b"b" * 32, 2.0),
    "audit": AuditEntry("aud_2", 2.0, "account.create", "operator"),
    "audit_chains": AuditChain("service", 2.0),
    "billing": BillingSettings("team_2", 2.0),
    "alerts": Alert("alr_2", "team_2", "2026-11", 80, "webhook", 2.0, 4, 5),
    "reports": Report("rep_2", "team_2", "", "customer", 2.0),
    "nodes": Node("n2-all", 2.0, "", "", "", 0.0, 0),
    "leases": JobLease("alerts", 2.0, "", 0.0),
}
TABLES: Sequence[str] = tuple(FULL)
"""In an order in which nothing refers to what comes later."""


def rows(records: Repositories, table: str) -> Any:
    """Give a table's rows by its name."""
    return getattr(records, table)


async def put(store: Store, samples: dict[str, Any], tables: Sequence[str] = TABLES) -> None:
    """Add these samples in one transaction."""
    async with store.changing() as records:
        for table in tables:
            await add(records, table, samples[table])


async def add(records: Repositories, table: str, row: Any) -> None:
    """Add one row; a token gets a digest of its own."""
    hidden = {"digest": digest_of(row.id)} if table == "tokens" else {}
    await rows(records, table).add(row, **hidden)


def digest_of(token_id: str) -> bytes:
    """The digest under which a token of the samples is kept."""
    return DIGEST if token_id == TOKEN.id else token_id.encode().ljust(32, b"-")
