"""The error table is that of the specification, row by row."""

from collections.abc import Iterator

import pytest

from tollgate import errors
from tollgate.errors import ALL_REFUSALS, Refusal

# spec.md, section 7, and what is answered when we are at fault.
TABLE = {
    "parse_error": (400, -32700),
    "invalid_request": (400, -32600),
    "unsupported_media_type": (415, -32600),
    "body_too_large": (413, -32600),
    "batch_too_large": (413, -32600),
    "method_not_post": (405, -32600),
    "unknown_network": (404, -32600),
    "token_missing": (401, -32016),
    "token_invalid": (401, -32016),
    "token_expired": (401, -32016),
    "origin_not_allowed": (403, -32016),
    "address_not_allowed": (403, -32016),
    "network_not_allowed": (403, -32601),
    "method_not_allowed": (403, -32601),
    "rate_limited": (429, -32005),
    "spending_cap": (402, -32017),
    "upstream_unavailable": (503, -32603),
    "upstream_error": (502, -32603),
    "upstream_timeout": (504, -32603),
    "overloaded": (503, -32603),
    "internal_error": (500, -32603),
}
every_refusal = pytest.mark.parametrize("refusal", ALL_REFUSALS, ids=lambda refusal: refusal.reason)


def leaves(kind: type[Refusal]) -> Iterator[type[Refusal]]:
    below = kind.__subclasses__()
    for each in below:
        yield from leaves(each)
    if not below:
        yield kind


def test_refusals_are_exactly_the_rows_of_the_table() -> None:
    assert {each.reason: (each.status, each.code) for each in ALL_REFUSALS} == TABLE
    assert len(ALL_REFUSALS) == len(TABLE)


def test_no_refusal_is_missing_in_the_list() -> None:
    ours = {each for each in leaves(Refusal) if each.__module__ == errors.__name__}
    assert ours == set(ALL_REFUSALS)


@every_refusal
def test_refusal_shows_when_it_comes_and_what_to_do(refusal: type[Refusal]) -> None:
    assert refusal.hint
    assert refusal.when.endswith(".")
    assert (refusal.__doc__ or "").strip()


@every_refusal
def test_refusal_without_a_message_gives_its_hint(refusal: type[Refusal]) -> None:
    assert refusal().message == refusal.hint == str(refusal())


@pytest.mark.parametrize("refusal", [errors.TokenMissing, errors.TokenInvalid, errors.TokenExpired])
def test_refused_credentials_request_a_bearer_token(refusal: type[Refusal]) -> None:
    assert (b"www-authenticate", b"Bearer") in refusal().headers


def test_wrong_http_method_names_the_right_ones() -> None:
    assert dict(errors.MethodNotPost().headers) == {b"allow": b"POST, OPTIONS"}


def test_overload_shows_when_to_come_back() -> None:
    refusal = errors.Overloaded(retry_after=7)
    assert (b"retry-after", b"7") in refusal.headers
    assert refusal.data["retry_after"] == 7


def test_spending_cap_has_no_code_that_clients_retry() -> None:
    assert errors.SpendingCap.code != errors.RateLimited.code


def test_unknown_deleted_and_disabled_tokens_are_reported_alike() -> None:
    for word in ("unknown", "deleted", "disabled", "team"):
        assert word not in errors.TokenInvalid.hint


def test_refusals_do_not_share_their_facts() -> None:
    errors.RateLimited().data["limit"] = "token"
    assert errors.RateLimited().data == {}
