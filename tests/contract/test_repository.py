"""One table in every backend: the operations of `Rows`."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.contract.backends import Store
from tests.contract.samples import (
    ACCOUNT,
    DIGEST,
    DOMAIN,
    FULL,
    LOGIN,
    OTHER,
    PLAIN,
    TABLES,
    TEAM,
    TOKEN,
    add,
    digest_of,
    put,
    rows,
)

from tollgate.core.models import Team
from tollgate.core.people import AuditEntry, Invitation, Login

# --- Adding and finding ------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [FULL, PLAIN], ids=["full", "plain"])
async def test_row_keeps_every_field(samples: dict[str, Any], store: Store) -> None:
    await put(store, samples)
    async with store.reading() as records:
        for table in TABLES:
            row, these = samples[table], rows(records, table)
            found = await these.get(row.id)
            assert found == row
            assert [type(getattr(found, name)) for name in row.__struct_fields__] == [
                type(getattr(row, name)) for name in row.__struct_fields__
            ]
            assert await these.find(id=row.id, created_at=row.created_at) == row
            assert await these.page(10) == [row]
            assert await these.count() == 1


async def test_missing_row_is_not_found_changed_or_removed(store: Store) -> None:
    async with store.changing() as records:
        for table in TABLES:
            row, these = FULL[table], rows(records, table)
            assert await these.get(row.id) is None
            assert await these.find(created_at=1.5) is None
            assert await these.page(10) == []
            assert not await these.replace(row)
            assert await these.remove(id=row.id) == 0
            assert await these.remove_older("created_at", 9e9) == 0
            assert await these.count() == 0, table


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ({}, ["log_1", "log_2", "log_3"]),
        ({"account_id": "acc_1"}, ["log_1", "log_3"]),
        ({"account_id": "acc_1", "kind": "tool"}, ["log_1"]),
        ({"account_id": "acc_2", "kind": "tool"}, []),
        ({"digest": b"l" * 32}, ["log_2"]),
        ({"expires_at": None}, ["log_2"]),
        ({"expires_at": 2.5}, ["log_1", "log_3"]),
        ({"id": ("log_3", "log_1", "log_9")}, ["log_1", "log_3"]),
        ({"id": ("log_3",), "kind": ("tool", "personal")}, []),
        ({"id": ()}, []),
        ({"expires_at": (None, 2.5)}, ["log_1", "log_2", "log_3"]),
        ({"refreshed_at": (None,)}, ["log_2", "log_3"]),
        ({"refreshed_at": (None, 1.0)}, ["log_2", "log_3"]),
        ({"kind": "TOOL"}, []),
        ({"kind": "%"}, []),
        ({"name": "ann@laptop' OR 1=1 --"}, []),
    ],
)
async def test_conditions_hold_together_and_a_tuple_means_any(
    where: dict[str, Any], ids: list[str], store: Store
) -> None:
    await put(store, FULL)
    await put(store, PLAIN)
    third = Login("log_3", "acc_1", "console", "", 3.0, b"3" * 32, expires_at=2.5)
    async with store.changing() as records:
        await records.logins.add(third)
    async with store.reading() as records:
        assert [login.id for login in await records.logins.page(10, **where)] == ids
        assert await records.logins.count(**where) == len(ids)
        one = await records.logins.find(**where)
        assert (one.id in ids) if one else not ids
    async with store.changing() as records:
        assert await records.logins.remove(**where) == len(ids)
        left = [login.id for login in await records.logins.page(10)]
        assert sorted(left + ids) == ["log_1", "log_2", "log_3"]


async def test_digest_of_a_token_is_kept_and_requested_but_never_shown(store: Store) -> None:
    await put(store, FULL, ["teams", "tokens"])
    async with store.reading() as records:
        found = await records.tokens.find(digest=DIGEST)
        assert found == TOKEN
        assert await records.tokens.find(digest=bytes(32)) is None
        assert "digest" not in found.__struct_fields__
        assert str(DIGEST)[2:-1] not in repr(found)
    changed = replace(TOKEN, name="renamed", prefix="tg_zzzzz", created_by="eve")
    async with store.changing() as records:
        assert await records.tokens.replace(changed)
    grant = await store.token(DIGEST)
    assert grant is not None
    assert grant.token == changed


# --- Replacing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES)
async def test_replaced_row_is_the_new_one_and_others_stay(table: str, store: Store) -> None:
    """All columns but the id may change, unless they refer to something that is not there."""
    kept = {"id", "team_id", "account_id"}
    await put(store, FULL)
    await put(store, PLAIN)
    old: Any = FULL[table]
    new: Any = replace(
        old, **{name: other(getattr(old, name)) for name in old.__struct_fields__ if name not in kept}
    )
    async with store.changing() as records:
        assert await rows(records, table).replace(new)
        assert await rows(records, table).get(old.id) == new
    async with store.reading() as records:
        assert await rows(records, table).get(old.id) == new
        assert await rows(records, table).get(PLAIN[table].id) == PLAIN[table]


def other(value: Any) -> Any:
    """Another value of the same kind."""
    if value is None:
        return 9.5  # a time that is not set in the sample, because a set one would hide the team's grants
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return value[1:]
    return value * 2 if isinstance(value, float | int) else value[:-1] + value[:1]


async def test_fields_are_emptied_by_replacing(store: Store) -> None:
    await put(store, FULL)
    plain_token = replace(TOKEN, expires_at=None, networks=(), methods=(), capped_until=None, active=False)
    plain_login = replace(LOGIN, refresh_digest=None, old_refresh_digest=None, refresh_until=None)
    async with store.changing() as records:
        await records.tokens.replace(plain_token)
        await records.logins.replace(plain_login)
    async with store.reading() as records:
        assert await records.tokens.get(TOKEN.id) == plain_token
        assert await records.logins.get(LOGIN.id) == plain_login


@pytest.mark.parametrize(
    "changed",
    [
        [],
        [replace(TOKEN, last_used_at=9_999.0)],
        [replace(ACCOUNT, name="Anna")],
    ],
)
async def test_replacing_by_the_same_noting_a_use_and_changing_an_account_are_no_changes_of_grants(
    changed: list[Any], store: Store
) -> None:
    await put(store, FULL)
    beginning = await store.changes(None)
    assert beginning is not None
    async with store.changing() as records:
        for table in TABLES:
            assert await rows(records, table).replace(FULL[table])
        for row in changed:
            table = {"tok_1": "tokens", "dom_1": "domains", "team_1": "teams", "acc_1": "accounts"}[row.id]
            assert await rows(records, table).replace(row)
            assert await rows(records, table).get(row.id) == row
    assert await store.changes(beginning.revision) is None


async def test_replacing_writes_only_what_differs(store: Store, another_worker: Store) -> None:
    """Also in a table of grants: a token whose name changed is reported once, its team and domain not at all."""
    await put(store, FULL)
    beginning = await store.changes(None)
    assert beginning is not None
    async with store.changing() as records:
        await records.teams.replace(TEAM)
        await records.domains.replace(DOMAIN)
        await records.tokens.replace(replace(TOKEN, name="renamed", last_used_at=None))
    seen = await another_worker.changes(beginning.revision)
    assert seen is not None
    assert (seen.tokens, seen.domains, seen.teams) == ((DIGEST,), (), ())


# --- Removing and counting ---------------------------------------------------------------------------------


async def test_removing_shows_how_many_went(store: Store) -> None:
    async with store.changing() as records:
        for number in range(8):
            await records.audit.add(AuditEntry(f"a{number}", float(number // 2), "a", "operator", number=number))
        assert await records.audit.remove(created_at=(1.0, 2.0)) == 4
        assert await records.audit.remove(created_at=2.0) == 0
        assert await records.audit.remove(id=("a0", "a1", "a7", "unknown"), created_at=0.0) == 2
        assert await records.audit.remove(id=()) == 0
        assert [entry.id for entry in await records.audit.page(9)] == ["a6", "a7"]


async def test_removed_row_frees_what_is_unique(store: Store) -> None:
    await put(store, FULL)
    async with store.changing() as records:
        await records.teams.add(OTHER)
        assert await records.tokens.remove(id=TOKEN.id) == 1
        assert await records.domains.remove(id=DOMAIN.id) == 1
        await records.tokens.add(replace(TOKEN, id="tok_9"), digest=DIGEST)
        await records.domains.add(replace(DOMAIN, id="dom_9", team_id=OTHER.id))
        assert await records.domains.count(team_id=TEAM.id) == 0


async def test_rows_whose_time_has_passed_are_removed_and_those_without_one_stay(store: Store) -> None:
    await put(store, FULL)
    async with store.changing() as records:
        for number, expires_at in enumerate([10.0, 10.5, 11.0, None]):
            login = Login(f"l{number}", "acc_1", "tool", "", 1.0, bytes([number]) * 32, expires_at)
            await records.logins.add(login)
        assert await records.logins.remove_older("expires_at", 1.0) == 0
        assert await records.logins.remove_older("expires_at", 10.5) == 2  # l0, and the one of the samples
        assert [login.id for login in await records.logins.page(9)] == ["l1", "l2", "l3"]
        assert await records.logins.remove_older("expires_at", 9e9) == 2
        assert [login.id for login in await records.logins.page(9)] == ["l3"]


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("device_logins", "expires_at"),
        ("invitations", "expires_at"),
        ("reset_links", "expires_at"),
        ("failures", "created_at"),
        ("replays", "created_at"),
        ("logins", "refresh_until"),
    ],
)
async def test_every_table_that_is_swept_can_be(table: str, column: str, store: Store) -> None:
    await put(store, FULL)
    at = getattr(FULL[table], column)
    async with store.changing() as records:
        assert await rows(records, table).remove_older(column, at) == 0
        assert await rows(records, table).remove_older(column, at + 0.25) == 1
        assert await rows(records, table).count() == 0


async def test_counts_are_of_what_fits(store: Store) -> None:
    async with store.changing() as records:
        for number in range(5):
            await add(records, "teams", Team(f"t{number}", f"name {number}"))
            token = replace(TOKEN, id=f"k{number}", team_id="t0", name=f"n{number}", active=number < 2)
            await records.tokens.add(token, digest=digest_of(token.id))
        await records.invitations.add(Invitation("i", "e", b"d" * 32, 1.0, 2.0, team_id="t3"))
        assert await records.tokens.count(team_id="t0") == 5
        assert await records.tokens.count(team_id="t0", active=True) == 2
        assert await records.tokens.count(team_id="t1") == 0
        assert await records.invitations.count(team_id=("t2", "t3")) == 1
