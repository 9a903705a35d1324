"""Who calls: which credential decides, what is refused, and how often strangers may ask."""

import tracemalloc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.gateway.fakes import run
from tests.gateway.worker import OTHER_TEAM, TOKEN, Worker, digest, request, token_grant, with_token
from tollgate.core import secrets
from tollgate.core.limits import Limit
from tollgate.errors import (
    OriginNotAllowed,
    Overloaded,
    RateLimited,
    Refusal,
    TokenExpired,
    TokenInvalid,
    TokenMissing,
)
from tollgate.gateway.caller import Caller
from tollgate.gateway.messages import Request


async def identify(worker: Worker, asked: Request) -> Caller:
    """Find the caller as the pipeline does: from memory, or else from the store."""
    return worker.credentials.recall(asked) or await worker.credentials.look_up(asked)


async def refusal(worker: Worker, asked: Request) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await identify(worker, asked)
    return caught.value


def with_worker(test: Callable[[Worker], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def inside() -> None:
        worker = Worker(**options)
        await worker.directory.refresh()
        await test(worker)

    run(inside)


def in_path(token: str, **headers: str) -> Request:
    asked = request(**headers)
    asked.path_token = token.encode()
    return asked


# --- Which credential decides ------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER ", "Bearer   "])
def test_token_is_known_by_its_header_with_the_scheme_in_any_case(scheme: str) -> None:
    async def test(worker: Worker) -> None:
        for _ in range(2):
            caller = await identify(worker, request(authorization=f"{scheme}{TOKEN}"))
            assert caller.grant == token_grant()
        assert worker.store.asked == [digest(TOKEN)]

    with_worker(test)


@pytest.mark.parametrize("header", ["Basic abc", TOKEN, "Bearer", "", f"Token {TOKEN}", f"path {TOKEN}"])
def test_other_schemes_are_refused_without_a_look_up(header: str) -> None:
    async def test(worker: Worker) -> None:
        refused = await refusal(worker, request(authorization=header, origin="https://example.com"))
        assert isinstance(refused, TokenInvalid)
        assert worker.store.asked == []

    with_worker(test)


def test_scheme_that_looks_like_a_token_of_the_path_is_refused_too() -> None:
    async def test(worker: Worker) -> None:
        worker.store.tokens[digest(TOKEN)] = token_grant(allow_in_url=True)
        await identify(worker, in_path(TOKEN))
        assert isinstance(await refusal(worker, request(authorization=f"path {TOKEN}")), TokenInvalid)

    with_worker(test)


def test_authorization_decides_alone() -> None:
    async def test(worker: Worker) -> None:
        other = secrets.new_token()
        worker.store.tokens[digest(other)] = token_grant(OTHER_TEAM, allow_in_url=True)
        caller = await identify(
            worker, in_path(other, authorization=f"Bearer {TOKEN}", origin="https://example.com")
        )
        assert caller.team_id == "team_1"
        unknown = f"Bearer {secrets.new_token()}"
        bad = await refusal(worker, request(authorization=unknown, origin="https://example.com"))
        assert isinstance(bad, TokenInvalid)

    with_worker(test)


def test_token_of_the_path_comes_before_the_origin() -> None:
    async def test(worker: Worker) -> None:
        worker.store.tokens[digest(TOKEN)] = token_grant(OTHER_TEAM, allow_in_url=True)
        for _ in range(2):
            caller = await identify(worker, in_path(TOKEN, origin="https://example.com"))
            assert caller.team_id == "team_2"

    with_worker(test)


def test_token_of_the_path_must_allow_it() -> None:
    async def test(worker: Worker) -> None:
        for _ in range(2):
            refused = await refusal(worker, in_path(TOKEN))
            assert isinstance(refused, TokenInvalid)
            assert "Authorization header" in refused.message
        assert (await identify(worker, with_token())).team_id == "team_1"
        assert isinstance(await refusal(worker, in_path(TOKEN)), TokenInvalid)

    with_worker(test)


@pytest.mark.parametrize("host", ["example.com", "app.example.com", "a.b.example.com", "EXAMPLE.com", "example.com."])
def test_whitelisted_domain_and_its_subdomains_pass(host: str) -> None:
    async def test(worker: Worker) -> None:
        for _ in range(2):
            assert (await identify(worker, request(origin=f"https://{host}:8443"))).grant.domain is not None
        assert len(worker.store.asked) == 1

    with_worker(test)


def test_no_credentials_at_all() -> None:
    async def test(worker: Worker) -> None:
        assert isinstance(await refusal(worker, request(referer="https://example.com/")), TokenMissing)

    with_worker(test)


# --- Refusals ----------------------------------------------------------------------------------------------


def test_mistyped_token_is_refused_without_a_look_up() -> None:
    async def test(worker: Worker) -> None:
        mistyped = TOKEN[:10] + ("a" if TOKEN[10] != "a" else "b") + TOKEN[11:]
        for token in (mistyped, TOKEN + "x", TOKEN[:-1], "tg_", "x" * 5_000, "ä" * 41):
            for asked in (with_token(token=token), in_path(token)):
                assert isinstance(await refusal(worker, asked), TokenInvalid)
        assert worker.store.asked == []
        assert worker.meters.taken == []

    with_worker(test)


def test_unknown_and_disabled_tokens_answer_alike() -> None:
    async def test(worker: Worker) -> None:
        del worker.store.tokens[digest(TOKEN)]
        first = await refusal(worker, with_token())
        again = await refusal(worker, with_token())
        unknown = await refusal(worker, with_token(token=secrets.new_token()))
        assert {(type(each), each.message, each.headers) for each in (first, again, unknown)} == {
            (TokenInvalid, TokenInvalid.hint, ((b"www-authenticate", b"Bearer"),))
        }

    with_worker(test)


def test_token_expires_at_its_moment_also_when_it_is_in_memory() -> None:
    async def test(worker: Worker) -> None:
        worker.store.tokens[digest(TOKEN)] = token_grant(expires_at=worker.wall() + 60)
        await identify(worker, with_token())
        worker.wall.advance(59)
        await identify(worker, with_token())
        worker.wall.advance(1)
        assert isinstance(await refusal(worker, with_token()), TokenExpired)

    with_worker(test)


def test_origin_that_is_not_whitelisted_is_named_with_the_command_that_would_allow_it() -> None:
    async def test(worker: Worker) -> None:
        for _ in range(2):
            refused = await refusal(worker, request(origin="https://app.unknown.co.uk"))
            assert isinstance(refused, OriginNotAllowed)
            assert "https://app.unknown.co.uk" in refused.message
            assert "tollgate rpc whitelist add unknown.co.uk --team <TEAM>" in refused.message
            assert refused.data == {"origin": "https://app.unknown.co.uk"}
        assert len(worker.store.asked) == 1

    with_worker(test)


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://example.com",
        "https://user@example.com",
        "https://192.0.2.1",
        "https://[::1]",
        "http://localhost",
        "https://example.com/",
        "https://example.com,https://example.com",
        "ftp://example.com",
        "https://" + "a." * 20_000 + "example.com",
    ],
)
def test_origin_that_can_never_be_whitelisted_is_refused_without_a_look_up(origin: str) -> None:
    async def test(worker: Worker) -> None:
        refused = await refusal(worker, request(origin=origin))
        assert isinstance(refused, OriginNotAllowed)
        assert "Authorization: Bearer" in refused.message
        assert len(refused.message) < 1_000
        assert worker.store.asked == []

    with_worker(test)


@pytest.mark.parametrize("host", ["notexample.com", "example.com.evil.org", "example.org"])
def test_look_alike_is_refused(host: str) -> None:
    async def test(worker: Worker) -> None:
        assert isinstance(await refusal(worker, request(origin=f"https://{host}")), OriginNotAllowed)

    with_worker(test)


def test_invented_origins_do_not_fill_the_memory() -> None:
    async def test(worker: Worker) -> None:
        tracemalloc.start()
        for number in range(500):
            await refusal(worker, request(origin=f"https://{number}" + "x" * 60_000))
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < 3_000_000

    with_worker(test)


# --- How often strangers may ask ---------------------------------------------------------------------------


def stranger(peer: str = "192.0.2.1") -> Request:
    return request(peer=peer, authorization=f"Bearer {secrets.new_token()}")


def test_look_ups_in_vain_are_limited_for_each_address() -> None:
    async def test(worker: Worker) -> None:
        for _ in range(3):
            assert isinstance(await refusal(worker, stranger()), TokenInvalid)
        refused = await refusal(worker, stranger())
        assert isinstance(refused, RateLimited)
        assert refused.data["limit"] == "address"
        assert refused.headers == ((b"retry-after", b"1"),)
        assert len(worker.store.asked) == 3
        assert isinstance(await refusal(worker, stranger("192.0.2.2")), TokenInvalid)
        worker.clock.advance(1.0)
        assert isinstance(await refusal(worker, stranger()), TokenInvalid)

    with_worker(test, misses_per_address=Limit(3, 1.0))


def test_look_ups_in_vain_are_limited_in_all() -> None:
    async def test(worker: Worker) -> None:
        for number in range(3):
            assert isinstance(await refusal(worker, stranger(f"192.0.2.{number}")), TokenInvalid)
        assert isinstance(await refusal(worker, stranger("192.0.2.9")), RateLimited)
        assert isinstance(await refusal(worker, request(origin="https://x.unknown.net")), RateLimited)
        assert len(worker.store.asked) == 3

    with_worker(test, misses=Limit(3, 1.0))


def test_whole_ipv6_network_counts_as_one_address() -> None:
    async def test(worker: Worker) -> None:
        await refusal(worker, stranger("2001:db8::1"))
        assert isinstance(await refusal(worker, stranger("2001:db8::ffff:1")), RateLimited)
        assert isinstance(await refusal(worker, stranger("2001:db8:0:1::1")), TokenInvalid)

    with_worker(test, misses_per_address=Limit(1, 1.0))


def test_look_ups_that_find_somebody_do_not_count() -> None:
    async def test(worker: Worker) -> None:
        for number in range(20):
            token = secrets.new_token()
            worker.store.tokens[digest(token)] = token_grant()
            await identify(worker, with_token(token=token))
            await identify(worker, request(origin=f"https://a{number}.example.com"))
        assert worker.meters.taken == []

    with_worker(test, misses_per_address=Limit(1, 1.0))


def test_known_callers_do_not_suffer_from_strangers_at_their_address() -> None:
    async def test(worker: Worker) -> None:
        await identify(worker, with_token())
        await refusal(worker, stranger())
        assert isinstance(await refusal(worker, stranger()), RateLimited)
        await identify(worker, with_token())

    with_worker(test, misses_per_address=Limit(1, 1.0))


def test_everybody_is_told_to_come_back_when_the_store_was_silent_for_too_long() -> None:
    async def test(worker: Worker) -> None:
        await identify(worker, with_token())
        worker.directory.stale = True
        assert isinstance(await refusal(worker, with_token()), Overloaded)

    with_worker(test)


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("10.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "198.51.100.1, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("192.0.2.1", "203.0.113.9", "192.0.2.1"),
    ],
)
def test_address_is_the_last_one_that_no_trusted_proxy_has(peer: str, forwarded: str, address: str) -> None:
    async def test(worker: Worker) -> None:
        assert worker.credentials.address(request(peer=peer, x_forwarded_for=forwarded)) == address

    with_worker(test, trusted=("10.0.0.0/8",))


def test_without_trusted_proxies_the_peer_is_the_address() -> None:
    async def test(worker: Worker) -> None:
        assert worker.credentials.address(request(x_forwarded_for="203.0.113.9")) == "192.0.2.1"

    with_worker(test)
