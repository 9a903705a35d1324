"""What the gateway reads from every backend: grants, and the changes of them."""

import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace
from tests.contract.backends import Backend, Store

from tollgate.core.models import Domain, Grant, Team, Token
from tollgate.store import sql
from tollgate.store.base import Directory, Repositories, StoreUnavailable

TEAM = Team("team_1", "acme", requests_per_second=50, created_at=500.25)
TOKEN = Token("tok_1", "team_1", "ci", "tg_abcde", 1_000.0, requests_per_second=7)
DIGEST = bytes(range(32))
DOMAIN = Domain("dom_1", "team_1", "example.com", 1_000.0, address_per_minute=60)
DEADLINE = 6.0

ByHand = Callable[[str], None]
Act = Callable[[Repositories], Coroutine[Any, Any, object]]
Change = Callable[[Act], Coroutine[Any, Any, None]]


@pytest.fixture
async def change(store: Store) -> Change:
    """Change records that are filled with a team, a token and a domain."""

    async def do(act: Act) -> None:
        async with store.changing() as records:
            await act(records)

    await do(lambda records: records.teams.add(TEAM))
    await do(lambda records: records.tokens.add(TOKEN, digest=DIGEST))
    await do(lambda records: records.domains.add(DOMAIN))
    return do


# --- Grants ------------------------------------------------------------------------------------------------


async def test_token_is_found_by_its_digest(change: Change, directory: Directory) -> None:
    assert await directory.token(DIGEST) == Grant(TEAM, token=TOKEN)
    assert await directory.token(bytes(32)) is None
    assert await directory.token(b"") is None


async def test_expired_token_is_found_so_that_its_caller_gets_the_reason(
    change: Change, directory: Directory
) -> None:
    expired = replace(TOKEN, expires_at=1.0)
    await change(lambda records: records.tokens.replace(expired))
    assert await directory.token(DIGEST) == Grant(TEAM, token=expired)


async def test_disabled_token_is_not_found_until_it_is_enabled(change: Change, directory: Directory) -> None:
    await change(lambda records: records.tokens.replace(replace(TOKEN, active=False)))
    assert await directory.token(DIGEST) is None
    await change(lambda records: records.tokens.replace(TOKEN))
    assert await directory.token(DIGEST) is not None


async def test_deleted_token_is_not_found(change: Change, directory: Directory) -> None:
    await change(lambda records: records.tokens.remove(id=TOKEN.id))
    assert await directory.token(DIGEST) is None


async def test_grants_of_a_suspended_team_are_not_found(change: Change, directory: Directory) -> None:
    await change(lambda records: records.teams.replace(replace(TEAM, suspended_at=9.0)))
    assert await directory.token(DIGEST) is None
    assert await directory.domain(["example.com"]) is None


async def test_domain_is_found_among_the_names_of_a_host(change: Change, directory: Directory) -> None:
    grant = Grant(TEAM, domain=DOMAIN)
    assert await directory.domain(["a.example.com", "example.com", "com"]) == grant
    assert await directory.domain(["example.com"]) == grant


@pytest.mark.parametrize(
    "names", [[], ["com"], ["notexample.com", "com"], ["EXAMPLE.COM"], ["example.com.evil.com"], ["%"]]
)
async def test_domain_is_found_by_no_other_name(names: list[str], change: Change, directory: Directory) -> None:
    assert await directory.domain(names) is None


async def test_disabled_or_removed_domain_is_not_found(change: Change, directory: Directory) -> None:
    await change(lambda records: records.domains.replace(replace(DOMAIN, active=False)))
    assert await directory.domain(["example.com"]) is None
    await change(lambda records: records.domains.replace(DOMAIN))
    assert await directory.domain(["example.com"]) is not None
    await change(lambda records: records.domains.remove(id=DOMAIN.id))
    assert await directory.domain(["example.com"]) is None


async def test_new_token_is_found_by_every_worker_at_once(change: Change, another_worker: Directory) -> None:
    assert await another_worker.token(b"n" * 32) is None
    await change(lambda records: records.tokens.add(replace(TOKEN, id="tok_2", name="new"), digest=b"n" * 32))
    assert await another_worker.token(b"n" * 32) is not None


# --- Changes -----------------------------------------------------------------------------------------------


async def start(directory: Directory) -> int:
    beginning = await directory.changes(None)
    assert beginning is not None
    assert not beginning.everything
    return beginning.revision


async def test_nothing_changes_by_itself_or_by_reading(change: Change, directory: Directory) -> None:
    revision = await start(directory)
    await directory.token(DIGEST)
    await directory.domain(["example.com"])
    assert await directory.changes(revision) is None


@pytest.mark.parametrize(
    ("act", "tokens", "domains", "teams"),
    [
        (lambda r: r.tokens.add(replace(TOKEN, id="tok_2", name="b"), digest=b"n" * 32), [b"n" * 32], [], []),
        (lambda r: r.tokens.replace(replace(TOKEN, active=False)), [DIGEST], [], []),
        (lambda r: r.tokens.replace(replace(TOKEN, methods=("eth_call",))), [DIGEST], [], []),
        (lambda r: r.tokens.remove(id="tok_1"), [DIGEST], [], []),
        (lambda r: r.domains.add(replace(DOMAIN, id="dom_2", domain="b.org")), [], ["b.org"], []),
        (lambda r: r.domains.replace(replace(DOMAIN, active=False)), [], ["example.com"], []),
        (lambda r: r.domains.replace(replace(DOMAIN, domain_per_minute=5)), [], ["example.com"], []),
        (lambda r: r.domains.remove(id="dom_1"), [], ["example.com"], []),
        (lambda r: r.teams.add(Team("team_2", "other")), [], [], ["team_2"]),
        (lambda r: r.teams.replace(replace(TEAM, capped_until=9e9)), [], [], ["team_1"]),
        (lambda r: r.teams.replace(replace(TEAM, spending_cap=7)), [], [], ["team_1"]),
        (lambda r: r.teams.replace(replace(TEAM, suspended_at=9.0)), [], [], ["team_1"]),
        (lambda r: r.teams.replace(replace(TEAM, free_requests=9)), [], [], ["team_1"]),
        (lambda r: r.teams.replace(replace(TEAM, micros_per_million=7)), [], [], ["team_1"]),
        (lambda r: r.teams.replace(replace(TEAM, operator_cap=7)), [], [], ["team_1"]),
        (lambda r: r.teams.remove(id="team_1"), [DIGEST], ["example.com"], ["team_1"]),
    ],
)
async def test_every_kind_of_change_is_reported_to_other_workers(
    act: Act, tokens: list[bytes], domains: list[str], teams: list[str], change: Change, another_worker: Directory
) -> None:
    revision = await start(another_worker)

    await change(act)
    changes = await another_worker.changes(revision)
    assert changes is not None
    assert changes.revision > revision
    assert not changes.everything
    assert (list(changes.tokens), list(changes.domains), list(changes.teams)) == (tokens, domains, teams)
    assert await another_worker.changes(changes.revision) is None


@pytest.mark.parametrize(
    ("statement", "tokens", "domains", "teams"),
    [
        ("UPDATE tokens SET active = false WHERE id = 'tok_1'", [DIGEST], [], []),
        ("UPDATE tokens SET expires_at = 1", [DIGEST], [], []),
        ("UPDATE tokens SET allow_in_url = true", [DIGEST], [], []),
        ("UPDATE tokens SET show_upstream = true", [DIGEST], [], []),
        ("UPDATE tokens SET addresses = '[]'", [DIGEST], [], []),
        ("UPDATE tokens SET contracts = '[]'", [DIGEST], [], []),
        ("DELETE FROM tokens", [DIGEST], [], []),
        ("UPDATE domains SET active = false", [], ["example.com"], []),
        ("DELETE FROM domains WHERE id = 'dom_1'", [], ["example.com"], []),
        ("UPDATE teams SET requests_per_second = 1", [], [], ["team_1"]),
        ("DELETE FROM teams", [DIGEST], ["example.com"], ["team_1"]),
    ],
)
async def test_change_by_hand_in_the_database_is_reported_too(
    statement: str,
    tokens: list[bytes],
    domains: list[str],
    teams: list[str],
    change: Change,
    directory: Directory,
    by_hand: ByHand,
) -> None:
    revision = await start(directory)
    by_hand(statement)
    changes = await directory.changes(revision)
    assert changes is not None
    assert (list(changes.tokens), list(changes.domains), list(changes.teams)) == (tokens, domains, teams)


async def test_replaced_digest_and_renamed_domain_show_the_old_and_the_new(
    change: Change, directory: Directory, by_hand: ByHand, backend: Backend
) -> None:
    revision = await start(directory)
    by_hand(f"UPDATE tokens SET digest = {backend.blob(b'n' * 32)}")
    by_hand("UPDATE domains SET domain = 'new.org'")
    changes = await directory.changes(revision)
    assert changes is not None
    assert set(changes.tokens) == {DIGEST, b"n" * 32}
    assert set(changes.domains) == {"example.com", "new.org"}


async def test_use_of_a_token_is_no_change_of_a_grant(
    change: Change, directory: Directory, by_hand: ByHand
) -> None:
    revision = await start(directory)
    by_hand("UPDATE tokens SET last_used_at = 5")
    assert await directory.changes(revision) is None


@pytest.mark.parametrize(
    "other", ["active = false", "expires_at = NULL, methods = '[\"eth_call\"]'", "prefix = 'x'"]
)
async def test_use_of_a_token_together_with_another_change_is_a_change(
    other: str, change: Change, directory: Directory, by_hand: ByHand
) -> None:
    revision = await start(directory)
    by_hand(f"UPDATE tokens SET last_used_at = 5, {other}")
    changes = await directory.changes(revision)
    assert changes is not None
    assert changes.tokens == (DIGEST,)


@pytest.mark.parametrize(("table", "key"), [("tokens", DIGEST), ("domains", "example.com"), ("teams", "team_1")])
async def test_change_of_a_column_that_is_added_later_is_a_change_of_the_grant(
    table: str, key: object, change: Change, directory: Directory, backend: Backend
) -> None:
    """So a migration that adds a column needs no new triggers."""
    backend.add_column(table, "later INTEGER")
    revision = await start(directory)
    backend.by_hand(f"UPDATE {table} SET later = 1")
    changes = await directory.changes(revision)
    assert changes is not None
    assert getattr(changes, table) == (key,)
    if table == "tokens":
        backend.by_hand("UPDATE tokens SET last_used_at = 5")
        assert await directory.changes(changes.revision) is None


async def test_several_changes_are_reported_together_and_each_once(
    change: Change, directory: Directory, by_hand: ByHand
) -> None:
    revision = await start(directory)
    for active in ("false", "true", "false"):
        by_hand(f"UPDATE tokens SET active = {active}")
    by_hand("UPDATE domains SET active = false")
    changes = await directory.changes(revision)
    assert changes is not None
    assert changes.tokens == (DIGEST,)
    assert changes.domains == ("example.com",)


async def test_worker_that_missed_trimmed_changes_is_directed_to_forget_everything(
    change: Change, directory: Directory, by_hand: ByHand
) -> None:
    revision = await start(directory)
    for active in ("false", "true", "false"):
        by_hand(f"UPDATE tokens SET active = {active}")
    by_hand(f"DELETE FROM changes WHERE revision <= {revision + 1}")
    changes = await directory.changes(revision)
    assert changes is not None
    assert changes.everything
    assert await directory.changes(changes.revision) is None


async def test_worker_that_has_seen_all_that_was_trimmed_and_missed_not_too_many_reads_each(
    change: Change, directory: Directory, by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    revision = await start(directory)
    for active in ("false", "true", "false"):
        by_hand(f"UPDATE tokens SET active = {active}")
    by_hand(f"DELETE FROM changes WHERE revision <= {revision}")
    monkeypatch.setattr(sql, "MAX_CHANGES", await start(directory) - revision)
    changes = await directory.changes(revision)
    assert changes is not None
    assert (changes.everything, changes.tokens) == (False, (DIGEST,))


async def test_worker_that_missed_too_many_changes_is_directed_to_forget_everything(
    change: Change, directory: Directory, by_hand: ByHand
) -> None:
    revision = await start(directory)
    by_hand(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 12000) "
        "INSERT INTO changes (kind, key) SELECT 'team', 'team_1' FROM n"
    )
    changes = await directory.changes(revision)
    assert changes is not None
    assert changes.everything
    assert changes.revision == revision + 12_000


async def test_worker_that_is_ahead_of_the_store_is_directed_to_forget_everything(
    change: Change, directory: Directory
) -> None:
    revision = await start(directory)
    changes = await directory.changes(revision + 50)
    assert changes is not None
    assert changes.everything
    assert changes.revision == revision


async def test_empty_store_has_a_start_position(directory: Directory) -> None:
    revision = await start(directory)
    assert await directory.changes(revision) is None


# --- Outages -----------------------------------------------------------------------------------------------


async def test_store_that_cannot_be_used_is_reported_unavailable_in_time(broken: Store) -> None:
    started = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await broken.token(DIGEST)
    with pytest.raises(StoreUnavailable):
        await broken.domain(["example.com"])
    with pytest.raises(StoreUnavailable):
        await broken.changes(None)
    assert time.monotonic() - started < DEADLINE
