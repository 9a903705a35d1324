"""Uniqueness in every backend: a unique value exists once, and errors show no secret."""

import traceback
from typing import Any

import pytest
from msgspec.structs import replace
from tests.contract.backends import Store
from tests.contract.samples import (
    ACCOUNT,
    AUDIT,
    DEVICE_LOGIN,
    DIGEST,
    DOMAIN,
    FULL,
    INVITATION,
    LOGIN,
    OTHER,
    PLAIN,
    TABLES,
    TEAM,
    TOKEN,
    add,
    put,
    rows,
)

from tollgate.store.base import Conflict, StoreUnavailable

# A second row that agrees with the sample of its table in one thing that may be there once.
TAKEN: list[tuple[str, Any]] = [
    ("teams", replace(OTHER, name=TEAM.name)),
    ("tokens", replace(TOKEN, id="tok_9")),
    ("domains", replace(DOMAIN, id="dom_9")),
    ("domains", replace(PLAIN["domains"], domain=DOMAIN.domain, active=False)),
    ("accounts", replace(PLAIN["accounts"], email=ACCOUNT.email)),
    ("identities", replace(PLAIN["identities"], subject=FULL["identities"].subject)),
    ("logins", replace(PLAIN["logins"], digest=LOGIN.digest)),
    ("logins", replace(PLAIN["logins"], refresh_digest=LOGIN.refresh_digest)),
    ("device_logins", replace(PLAIN["device_logins"], digest=DEVICE_LOGIN.digest)),
    ("device_logins", replace(PLAIN["device_logins"], code_digest=DEVICE_LOGIN.code_digest)),
    ("members", replace(FULL["members"], id="mem_9", role="viewer")),
    ("invitations", replace(PLAIN["invitations"], digest=INVITATION.digest)),
    ("reset_links", replace(PLAIN["reset_links"], digest=FULL["reset_links"].digest)),
    ("alerts", replace(FULL["alerts"], id="alr_9", state="pending")),
    ("reports", replace(FULL["reports"], id="rep_9", reference="")),
]


@pytest.mark.parametrize(("table", "second"), TAKEN)
async def test_unique_values_are_given_once(table: str, second: Any, store: Store) -> None:
    """Neither by adding nor by replacing."""
    await put(store, FULL)
    await put(store, PLAIN)
    with pytest.raises(Conflict):
        async with store.changing() as records:
            await add(records, table, replace(second, id="another"))
    with pytest.raises(Conflict):
        async with store.changing() as records:
            await rows(records, table).replace(replace(second, id=PLAIN[table].id))
    async with store.reading() as records:
        assert await rows(records, table).page(9) == sorted(
            [FULL[table], PLAIN[table]], key=lambda row: float(row.created_at)
        )


async def test_id_is_given_once(store: Store) -> None:
    await put(store, PLAIN)
    await put(store, FULL)
    for table in TABLES:
        with pytest.raises(Conflict):
            await put(store, {table: FULL[table]}, [table])


async def test_digest_of_a_token_is_given_once(store: Store) -> None:
    await put(store, FULL)
    await put(store, PLAIN, ["teams"])
    with pytest.raises(Conflict):
        async with store.changing() as records:
            await records.tokens.add(PLAIN["tokens"], digest=DIGEST)


NOT_TAKEN: list[tuple[str, Any]] = [
    ("tokens", replace(TOKEN, id="another", team_id=OTHER.id)),
    ("identities", replace(FULL["identities"], id="another", subject="another")),
    ("identities", replace(FULL["identities"], id="another", issuer="https://another.example")),
    ("logins", replace(PLAIN["logins"], id="another", digest=b"a" * 32)),
    ("logins", replace(LOGIN, id="another", digest=b"a" * 32, refresh_digest=b"b" * 32)),
    ("members", replace(FULL["members"], id="another", account_id="acc_2")),
    ("members", replace(FULL["members"], id="another", team_id=OTHER.id)),
    ("invitations", replace(INVITATION, id="another", digest=b"a" * 32)),
    ("reset_links", replace(FULL["reset_links"], id="another", digest=b"a" * 32)),
    ("audit", replace(AUDIT, id="another", number=8)),
]


@pytest.mark.parametrize(("table", "second"), NOT_TAKEN)
async def test_other_values_may_repeat(table: str, second: Any, store: Store) -> None:
    await put(store, FULL)
    await put(store, PLAIN)
    await put(store, {table: second}, [table])


async def test_reference_to_nothing_is_a_defect_and_no_conflict(store: Store) -> None:
    with pytest.raises(Exception, match=r"(?i)foreign key") as caught:
        await put(store, FULL, ["tokens"])
    assert not isinstance(caught.value, Conflict | StoreUnavailable)
    async with store.reading() as records:
        assert await records.tokens.count() == 0


async def test_error_quotes_no_stored_value(store: Store) -> None:
    """An error that is logged with its causes must not write digests and addresses of people into the log."""

    async def fail(table: str, row: Any) -> str:
        try:
            await put(store, {table: row}, [table])
        except Exception as error:  # noqa: BLE001 - whatever it is, its text is looked at
            return "".join(traceback.format_exception(error))
        raise AssertionError("it must fail")

    await put(store, FULL)
    for table, row in (
        ("accounts", replace(ACCOUNT, id="another")),
        ("logins", replace(LOGIN, id="another")),
        ("tokens", replace(TOKEN, id="another", team_id="unknown")),
    ):
        message = await fail(table, row)
        for secret in (ACCOUNT.email, ACCOUNT.password_hash, "L" * 32, "R" * 32, TOKEN.prefix):
            assert secret not in message
